"""`jaxretr evaluate MODEL --suite DIR`: every BEIR folder below a folder, one after the other, and their average."""

import argparse
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.commands.model import load_model
from jaxretr.data.readers import read_beir
from jaxretr.data.text_rows import find_input
from jaxretr.errors import UserError
from jaxretr.evaluate import metrics
from jaxretr.evaluate.measuring import OF_QRELS, Values, depth, of_qrels, run_of, warn_of_missing
from jaxretr.evaluate.searches import encoder_search
from jaxretr.models.combined_encoder import parts_of
from jaxretr.models.formats.dual_encoder_folder import check_finished
from jaxretr.storage.files import atomic_write, check_output, sha256
from jaxretr.stores.fingerprints import model_fingerprint
from jaxretr.tables import Cell, Grid, Row, render

log = logging.getLogger(__name__)

_FORMAT = "jaxretr-suite"
_VERSION = 1
_RESULT = "result.json"
_SUITE = "suite.json"

Means = dict[str, float]
"""{metric: mean}"""


@dataclass(frozen=True)
class DataSet:
    """A BEIR folder.

    Attributes:
      name: its path below the suite's folder, with slashes.
      folder: where it is.
      split: of its judgements.
    """

    name: str
    folder: Path
    split: str

    def files(self) -> dict[str, Path]:
        """What is read of it."""
        return {
            "corpus": find_input(self.folder, "corpus.jsonl"),
            "queries": find_input(self.folder, "queries.jsonl"),
            "qrels": _judgements(self.folder, self.split),
        }


@dataclass(frozen=True)
class Result:
    """The figures of one data set.

    Attributes:
      split: of its judgements.
      questions, passages: how many there are.
      values: {metric: {question id: value}}.
    """

    split: str
    questions: int
    passages: int
    values: Values

    @property
    def means(self) -> Means:
        """Over all questions."""
        return {name: metrics.mean(of_questions) for name, of_questions in self.values.items()}


def run(args: argparse.Namespace) -> None:
    """Measures what is not measured yet, and prints all of it."""
    names = args.metrics or OF_QRELS
    for name in names:
        metrics.parse(name)
    check_finished(args.model)
    if args.per_query is not None:
        check_output(args.per_query)
    root = Path(args.suite).expanduser()
    data_sets, skipped = find_data_sets(root, args.split)
    for name, why in skipped.items():
        log.warning("%s: skipped: %s", name, why)
    if not data_sets:
        raise UserError(
            f"{root}: no folder below it has corpus.jsonl, queries.jsonl and qrels/{args.split[0]}.tsv; "
            "give the folder that holds the BEIR folders"
        )
    encoder = load_model(args)
    settings = {
        "model_fingerprint": model_fingerprint(encoder, "question"),
        "compute": parts_of(encoder)[0].dtype,
        "metrics": list(names),
        "relevance_level": args.relevance_level,
    }
    out = None if args.out is None else Path(args.out).expanduser()
    results: dict[str, Result] = {}
    known = {} if out is None else {one.name: read_result(out, one, settings) for one in data_sets}
    for number, one in enumerate(data_sets, start=1):
        found = known.get(one.name)
        if found is None:
            log.info("%s (%d of %d)", one.name, number, len(data_sets))
            beir = read_beir(one.folder, one.split)
            search = encoder_search(encoder, beir.corpus, args.batch_size)
            hits = run_of(search, beir.questions, depth(names))
            values = of_qrels(beir.qrels, hits, names, args.relevance_level)
            warn_of_missing(next(iter(values.values())), hits, one.name)
            found = Result(one.split, len(beir.qrels), len(beir.corpus), values)
            if out is not None:
                write_result(out, one, settings, found, str(args.model))
            del search  # Before the next data set's embeddings are made.
        else:
            log.info("%s (%d of %d): measured before, taken from %s", one.name, number, len(data_sets), out)
        results[one.name] = found
    content = as_json(results, skipped, str(args.model))
    if out is not None:
        with atomic_write(out / _SUITE) as file:
            json.dump(content, file, indent=1, allow_nan=False)
    if args.per_query is not None:
        write_per_query(Path(args.per_query).expanduser(), results)
    form = args.format or "table"
    print(json.dumps(content, indent=1, allow_nan=False) if form == "json" else render([grid(results)], form))


# ---- data sets -------------------------------------------------------------------------------------------------------


def find_data_sets(root: Path, splits: Sequence[str]) -> tuple[list[DataSet], dict[str, str]]:
    """Looks for BEIR folders, however deep, but not inside of each other.

    Args:
      root: where to look.
      splits: of the judgements; the first that a folder has is taken.

    Returns:
      The data sets by name, and {folder: why it is left out} of those that have only some of the files.

    Raises:
      UserError: there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; give the folder that holds the BEIR folders")
    found, skipped = [], {}
    for folder in _folders(root):
        name = folder.relative_to(root).as_posix() if folder != root else folder.resolve().name
        missing = [file for file in ("corpus.jsonl", "queries.jsonl") if _input(folder, file) is None]
        split = next((split for split in splits if _judgements(folder, split).is_file()), None)
        if missing:
            skipped[name] = f"it has no {' and no '.join(missing)}"
        elif split is None:
            there = sorted({file.name.split(".tsv")[0] for file in folder.glob("qrels/*.tsv*")})
            has = f"it has {', '.join(there)}" if there else "it has no judgements at all"
            skipped[name] = f"no split {' or '.join(splits)} (qrels/{splits[0]}.tsv), {has}"
        else:
            found.append(DataSet(name, folder, split))
    return sorted(found, key=lambda one: one.name), dict(sorted(skipped.items()))


def _folders(root: Path) -> Iterator[Path]:
    """Yields the folders that hold any file of a BEIR folder; below these nothing is looked for."""
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


def _judgements(folder: Path, split: str) -> Path:
    plain = folder / "qrels" / f"{split}.tsv"
    return plain if plain.is_file() else plain.with_name(f"{split}.tsv.gz")


# ---- results that are kept -------------------------------------------------------------------------------------------


def read_result(out: Path, one: DataSet, settings: Mapping[str, Any]) -> Result | None:
    """Reads what an earlier call measured; None where it did not come to this data set.

    Raises:
      UserError: the result is of another model, of other settings or of other files, or cannot be read.
    """
    path = out / one.name / _RESULT
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content["format"], content["version"]) != (_FORMAT, _VERSION):
            raise ValueError("another format or version")
        result = Result(content["split"], content["questions"], content["passages"], content["per_query"])
        kept, files = content["settings"], content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: is no result of a suite ({error}); remove it, or give another --out folder") from None
    for name, value in {**settings, "split": one.split}.items():
        before = result.split if name == "split" else kept.get(name)
        if before != value:
            what = {"model_fingerprint": "another model"}.get(name, f"{name.replace('_', ' ')} {_short(before)}")
            raise UserError(f"{path}: was measured with {what}; give another --out folder, or remove the file")
    if files != _hashes(one):
        raise UserError(f"{path}: {one.folder} has changed since; give another --out folder, or remove the file")
    return result


def write_result(out: Path, one: DataSet, settings: Mapping[str, Any], result: Result, model: str) -> None:
    """Writes the result of one data set, whole or not at all."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "data_set": one.name,
        "split": result.split,
        "model": model,
        "settings": settings,
        "files": _hashes(one),
        "questions": result.questions,
        "passages": result.passages,
        "metrics": result.means,
        "per_query": result.values,
    }
    with atomic_write(out / one.name / _RESULT) as file:
        json.dump(content, file)


def _hashes(one: DataSet) -> dict[str, str]:
    return {name: sha256(path) for name, path in one.files().items()}


def _short(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


# ---- figures ---------------------------------------------------------------------------------------------------------


def averages(results: Mapping[str, Result]) -> tuple[dict[str, Means], Means]:
    """Averages over data sets, each counting once; those of one folder (CQADupStack's forums) count as one, as in BEIR.

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


def as_json(results: Mapping[str, Result], skipped: Mapping[str, str], model: str) -> dict[str, Any]:
    """All figures, as JSON can hold them."""
    groups, average = averages(results)
    return {
        "model": model,
        "data_sets": {
            name: {
                "split": result.split,
                "questions": result.questions,
                "passages": result.passages,
                "metrics": result.means,
            }
            for name, result in results.items()
        },
        "groups": groups,
        "average": average,
        "skipped": dict(skipped),
    }


def grid(results: Mapping[str, Result]) -> Grid:
    """A row for each data set, each folder of several, and the average."""
    groups, average = averages(results)
    columns = list(average)

    def row(name: str, means: Means, first: Sequence[str] = ("", "", ""), ruled: bool = False) -> Row:
        return Row(name, [*map(Cell, first), *(Cell(f"{means[column]:.4f}") for column in columns)], ruled)

    rows = [
        row(name, result.means, (result.split, str(result.questions), str(result.passages)))
        for name, result in results.items()
    ]
    rows += [row(f"{name}: mean", means, ruled=not place) for place, (name, means) in enumerate(sorted(groups.items()))]
    rows.append(row("average", average, ruled=True))
    notes = ["The average counts every data set once; those of one folder count together as one."] * bool(groups)
    count = f"{len(results)} data set{'s' * (len(results) != 1)}"
    return Grid(count, "data set", ("split", "questions", "passages", *columns), rows, notes)


def write_per_query(path: Path, results: Mapping[str, Result]) -> None:
    """Writes data set, question-id and the metrics, by tabs under a header."""
    with atomic_write(path) as file:
        names = list(next(iter(results.values())).values)
        file.write("\t".join(["data-set", "question-id", *names]) + "\n")
        for data_set, result in results.items():
            for question_id in result.values[names[0]]:
                figures = (f"{result.values[name][question_id]:.6g}" for name in names)
                file.write("\t".join([data_set, question_id, *figures]) + "\n")
