"""`jaxretr.evaluate_suite`: a model measured on every BEIR folder below a folder, and the averages."""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.data.named.ir_collections import members
from jaxretr.data.readers import beir_splits, qrels_path, read_beir
from jaxretr.data.source import FileSource, Input, NamedSource, Source, source_of
from jaxretr.data.text_rows import find_input
from jaxretr.embeddings.encoding import Encoder, loaded, name_of
from jaxretr.embeddings.fingerprints import search_fingerprint
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.measuring import OF_QRELS, TestSet, Values, depth, warn_of_missing
from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.searches import encoder_search
from jaxretr.evaluate.tables import Cell, Grid, Row
from jaxretr.models.combined_encoder import parts_of
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.storage.files import atomic_write, write_json

log = logging.getLogger(__name__)

_FORMAT = "jaxretr-suite"
_VERSION = 1
_RESULT = "result.json"
_SUITE = "suite.json"

Means = dict[str, float]
"""The mean of each metric."""


@dataclass(frozen=True)
class DataSet:
    """A BEIR folder of a suite, and the split that is measured.

    Attributes:
      name: its path below the suite's folder, with slashes.
      folder: where it is.
      split: the split of its judgements.
    """

    name: str
    folder: Source
    split: str

    def files(self) -> dict[str, Source]:
        """The files that a measurement reads, by what they hold."""
        return {
            "corpus": find_input(self.folder, "corpus.jsonl"),
            "queries": find_input(self.folder, "queries.jsonl"),
            "qrels": qrels_path(self.folder, self.split),
        }


@dataclass(frozen=True)
class Result:
    """The metrics of one data set.

    Attributes:
      split: the split of its judgements.
      questions, passages: the numbers of questions and passages.
      values: {metric: {question id: value}}.
    """

    split: str
    questions: int
    passages: int
    values: Values

    @property
    def means(self) -> Means:
        """The mean of each metric over all questions."""
        return {name: measures.mean(of_questions) for name, of_questions in self.values.items()}


@dataclass(frozen=True, repr=False)
class SuiteReport(Results):
    """The metrics of a model on the data sets of a suite.

    Attributes:
      model: the place that the model was loaded from.
      results: {data set: its metrics}.
      skipped: {folder: the reason why it was left out}.
    """

    model: str
    results: Mapping[str, Result]
    skipped: Mapping[str, str]

    @property
    def groups(self) -> dict[str, Means]:
        """The means of each folder of several data sets, deepest first."""
        return averages(self.results)[0]

    @property
    def average(self) -> Means:
        """The means of the whole suite; data sets of one folder count together as one."""
        return averages(self.results)[1]

    def __repr__(self) -> str:
        return f"SuiteReport({self.model!r}, {len(self.results)} data sets, average {self.average})"

    def content(self) -> dict[str, Any]:
        """The metrics of each data set and the averages for JSON."""
        groups, average = averages(self.results)
        data_sets = {
            name: {
                "split": result.split,
                "questions": result.questions,
                "passages": result.passages,
                "metrics": result.means,
            }
            for name, result in self.results.items()
        }
        return {
            "model": self.model,
            "data_sets": data_sets,
            "groups": groups,
            "average": average,
            "skipped": self.skipped,
        }

    def grids(self) -> list[Grid]:
        """A table with a row for each data set, each folder of several, and the average."""
        groups, average = averages(self.results)
        columns = list(average)

        def row(name: str, means: Means, first: Sequence[str] = ("", "", ""), ruled: bool = False) -> Row:
            return Row(name, [*map(Cell, first), *(Cell(f"{means[column]:.4f}") for column in columns)], ruled)

        rows = [
            row(name, result.means, (result.split, str(result.questions), str(result.passages)))
            for name, result in self.results.items()
        ]
        rows += [
            row(f"{name}: mean", means, ruled=not place) for place, (name, means) in enumerate(sorted(groups.items()))
        ]
        rows.append(row("average", average, ruled=True))
        notes = ["The average counts every data set once; those of one folder count together as one."] * bool(groups)
        count = f"{len(self.results)} data set{'s' * (len(self.results) != 1)}"
        return [Grid(count, "data set", ("split", "questions", "passages", *columns), rows, notes)]

    def blocks(self) -> Iterator[Block]:
        """The values of every question of each data set."""
        for data_set, result in self.results.items():
            yield {"data-set": data_set, QUESTION: ""}, result.values


def evaluate_suite(
    encoder: Encoder | str | Path | Callable[[], Encoder],
    *,
    suite: str | Path,
    splits: Sequence[str] = ("test",),
    out: str | Path | None = None,
    metrics: Sequence[str] = OF_QRELS,
    relevance_level: int = 1,
    batch_size: int | None = None,
) -> SuiteReport:
    """Measure a model on every BEIR folder below a folder, one after the other.

    Args:
      encoder: the model, a path or name as `load_encoder` takes it, or a function that loads it.
      suite: every BEIR folder below this folder, at any depth, and the average. Or a name, for instance "ir_datasets:nano-beir".
      splits: splits of the judgements, in order of preference: the first that a data set has.
      out: folder for the results of each data set of a suite; an interrupted one resumes there.
      metrics: for instance "ndcg@10"; `jaxretr.evaluate.metrics` lists them.
      relevance_level: the lowest grade that counts as relevant, except for ndcg.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UsageError: an unknown metric.
      UserError: there is no data set, one is bad, or `out` has results of another model, other settings or other files.
    """
    for name in metrics:
        measures.parse(name)
    root, out = source_of(suite), None if out is None else Path(out).expanduser()
    data_sets, skipped = find_data_sets(root, splits)
    for name, why in skipped.items():
        log.warning("%s: skipped: %s", name, why)
    if not data_sets:
        raise UserError(
            f"{root}: no folder below it has corpus.jsonl, queries.jsonl and qrels/{splits[0]}.tsv; "
            "give the folder that contains the BEIR folders"
        )
    model = loaded(encoder)
    settings = {
        "model_fingerprint": search_fingerprint(model),
        "compute": parts_of(model)[0].dtype,
        "metrics": list(metrics),
        "relevance_level": relevance_level,
    }
    # Read all of them first: results that do not belong here are found before anything is measured.
    known = {} if out is None else {data_set.name: read_result(out, data_set, settings) for data_set in data_sets}
    results: dict[str, Result] = {}
    for number, data_set in enumerate(data_sets, start=1):
        place = f"{data_set.name} ({number} of {len(data_sets)})"
        result = known.get(data_set.name)
        if result is None:
            log.info("%s", place)
            result = _measured(model, data_set, metrics, relevance_level, batch_size)
            if out is not None:
                write_result(out, data_set, settings, result, name_of(model))
        else:
            log.info("%s: measured before, taken from %s", place, out)
        results[data_set.name] = result
    report = SuiteReport(name_of(model), results, skipped)
    if out is not None:
        with atomic_write(out / _SUITE) as file:
            file.write(report.to_json())
    return report


def _measured(
    encoder: Encoder, data_set: DataSet, metrics: Sequence[str], relevance_level: int, batch_size: int | None
) -> Result:
    beir = read_beir(data_set.folder, data_set.split)
    on = TestSet(beir.questions, beir.corpus, beir.qrels, relevance_level=relevance_level)
    hits = on.search(encoder_search(encoder, beir.corpus, batch_size), depth(metrics))
    values = on(hits, metrics)
    warn_of_missing(next(iter(values.values())), hits, data_set.name)
    return Result(data_set.split, len(beir.qrels), len(beir.corpus), values)


# ---- data sets -------------------------------------------------------------------------------------------------------


def find_data_sets(root: Input, splits: Sequence[str]) -> tuple[list[DataSet], dict[str, str]]:
    """Look for BEIR folders at any depth, but not inside each other.

    Args:
      root: the folder to look in; or a name, of one collection or of all ids of ir_datasets that begin with it.
      splits: splits of the judgements, in order of preference.

    Returns:
      The data sets by name, and {folder: the reason why it is left out} of those that lack a file.

    Raises:
      UserError: there is no such folder.
    """
    data_sets, skipped = [], {}
    for name, place in _places(source_of(root)).items():
        named = isinstance(place, NamedSource)
        files = ("corpus.jsonl", "queries.jsonl")
        missing = [] if isinstance(place, NamedSource) else [file for file in files if _input(place.path, file) is None]
        existing_splits = beir_splits(place)
        split = next((split for split in splits if split in existing_splits), None)
        if missing:
            skipped[name] = f"it has no {' and no '.join(missing)}"
        elif split is None:
            file, nothing = ("", "no judgements") if named else (f" (qrels/{splits[0]}.tsv)", "no judgements at all")
            skipped[name] = f"no split {' or '.join(splits)}{file}, it has {', '.join(existing_splits) or nothing}"
        else:
            data_sets.append(DataSet(name, place, split))
    return data_sets, skipped


def _places(root: Source) -> dict[str, Source]:
    """The BEIR folders below a folder by name, sorted; or the collections that a name stands for, in their order."""
    if isinstance(root, NamedSource):
        if root.scheme == "ir_datasets" and (below := members(root.body)):
            return {id.removeprefix(f"{root.body}/"): NamedSource(f"{root.scheme}:{id}") for id in below}
        return {root.body.rpartition("/")[2]: root}
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; give the folder that contains the BEIR folders")
    top = root.path
    named = {
        folder.relative_to(top).as_posix() if folder != top else folder.resolve().name: FileSource(folder)
        for folder in _folders(top)
    }
    return dict(sorted(named.items()))


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders that contain any file of a BEIR folder, and do not descend into these."""
    seen = set()
    for place, folders, _ in os.walk(root, followlinks=True):
        folder = Path(place)
        if (real := folder.resolve()) in seen:  # A link back up.
            folders.clear()
            continue
        seen.add(real)
        if _input(folder, "corpus.jsonl") or _input(folder, "queries.jsonl") or (folder / "qrels").is_dir():
            folders.clear()
            yield folder
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]


def _input(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


# ---- kept results ----------------------------------------------------------------------------------------------------


def read_result(out: Path, data_set: DataSet, settings: Mapping[str, Any]) -> Result | None:
    """Read an earlier call's result; None if it did not get to this data set.

    Raises:
      UserError: the result is of another model, of other settings or of other files, or cannot be read.
    """
    path = out / data_set.name / _RESULT
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            raise ValueError("another format or version")
        result = Result(content["split"], content["questions"], content["passages"], content["per_query"])
        old_settings, files = content["settings"], content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: is not the result of a suite ({error}); remove it, or give another folder as out="
        ) from None
    for name, value in {**settings, "split": data_set.split}.items():
        before = result.split if name == "split" else old_settings.get(name)
        if before != value:
            what = {"model_fingerprint": "another model"}.get(name, f"{name.replace('_', ' ')} {_short(before)}")
            raise UserError(f"{path}: was measured with {what}; give another folder as out=, or remove the file")
    if files != _hashes(data_set):
        raise UserError(f"{path}: {data_set.folder} has changed since; give another folder as out=, or remove the file")
    return result


def write_result(out: Path, data_set: DataSet, settings: Mapping[str, Any], result: Result, model: str) -> None:
    """Write the result of one data set, completely or not at all."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "data_set": data_set.name,
        "split": result.split,
        "model": model,
        "settings": settings,
        "files": _hashes(data_set),
        "questions": result.questions,
        "passages": result.passages,
        "metrics": result.means,
        "per_query": result.values,
    }
    write_json(out / data_set.name / _RESULT, content)


def _hashes(data_set: DataSet) -> dict[str, str]:
    return {name: path.digest() for name, path in data_set.files().items()}


def _short(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


# ---- averages --------------------------------------------------------------------------------------------------------


def averages(results: Mapping[str, Result]) -> tuple[dict[str, Means], Means]:
    """Average over data sets; those of one folder (CQADupStack's forums) count together as one, as in BEIR.

    Returns:
      {folder of several data sets: means}, deepest first, and the means of the whole suite.
    """
    level = {name: result.means for name, result in results.items()}
    groups: dict[str, Means] = {}
    deepest = max(name.count("/") for name in level)
    for depth_of_names in range(deepest, 0, -1):
        parents = dict.fromkeys(name.rpartition("/")[0] for name in level if name.count("/") == depth_of_names)
        for parent in parents:
            members = [name for name in level if name.rpartition("/")[0] == parent]
            groups[parent] = _mean([level.pop(name) for name in members])
            level[parent] = groups[parent]
    return groups, _mean(list(level.values()))


def _mean(means: Sequence[Means]) -> Means:
    return {name: math.fsum(each[name] for each in means) / len(means) for name in means[0]}
