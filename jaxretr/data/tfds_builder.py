"""`jaxretr.build_data`: a corpus, a BEIR folder or a training set as a TFDS data set, which any program can read.

Each part is a config of the data set, NAME/CONFIG/VERSION: corpus (_id, title, text), queries (_id, text, answers), qrels
(query-id, corpus-id, score; one split each) and examples (dpr-scale's rows). Rows keep their order.
"""

import math
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.data.collection import CORPUS, EXAMPLES, QRELS, QUERIES
from jaxretr.data.corpus import iter_passages, read_corpus
from jaxretr.data.formats.example_rows import ExampleRows
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.formats.kinds import KINDS, file_kind
from jaxretr.data.formats.reading import examples_file, read_examples
from jaxretr.data.questions import read_questions
from jaxretr.data.readers import beir_splits, qrels_path, read_qrels
from jaxretr.data.source import NamedSource, Source, source_of
from jaxretr.data.tfds_records import Card, Value, write_config
from jaxretr.runtime.errors import UsageError, UserError, import_extra
from jaxretr.runtime.progress import counted
from jaxretr.runtime.storage.paths import is_remote

Path_ = str | Path
Rows = Iterable[Mapping[str, Value]]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_LISTS = ("positive_ctxs", "hard_negative_ctxs", "negative_ctxs")
_DESCRIPTIONS = {
    CORPUS: "The passages, in the order of the corpus.",
    QUERIES: "The questions, with their answers where they are known.",
    QRELS: "The judgements: one split for each of the data set's.",
    EXAMPLES: "Training examples: questions with positive and negative passages. A score that is not known is NaN.",
}


@dataclass(frozen=True)
class Built:
    """A data set that was written.

    Attributes:
      path: its folder, OUT/NAME, which "tfds:PATH" names.
      version: the version of its configs.
      rows: {config: {split: number of rows}}.
    """

    path: Path
    version: str
    rows: Mapping[str, Mapping[str, int]]


def build_data(
    path: Path_,
    out: Path_,
    *,
    name: str | None = None,
    version: str = "1.0.0",
    description: str | None = None,
    homepage: str = "",
    citation: str = "",
    licence: str = "",
    corpus: Path_ | None = None,
    queries: Path_ | None = None,
    split: str | None = None,
    skip_bad: bool = False,
) -> Built:
    """Write data as a TFDS data set of array_record files, without TensorFlow; needs `pip install 'jaxretr[data]'`.

    Args:
      path: a corpus, questions, judgements, a BEIR folder or a training set; also by name.
      out: the data folder; NAME/CONFIG/VERSION is written below it.
      name: name of the data set: lower-case letters, digits, underscores; by default that of `path`.
      version: three numbers.
      description: what it contains; by default the format and name of `path`.
      homepage: its address.
      citation: how to cite it, in BibTeX.
      licence: its licence.
      corpus: the passages of a training set that has their ids. Its texts are written into the examples.
      queries: the questions of triples-ids and distillation.
      split: what the judgements in a file are called; by default test.
      skip_bad: skip and count bad rows.

    Raises:
      UserError: bad data (as `path:line: what; remedy`), the data set is there already, or it cannot be written.
      UsageError: a name or version that TFDS does not take, or an argument that has no effect.
    """
    place, target = source_of(path), Path(out).expanduser()
    if is_remote(out):
        raise UsageError(f"{out}: is in a bucket; build the data set in a local folder, and copy it there")
    kind = file_kind(place)
    if kind == "run":
        raise UsageError(
            f"{place}: looks like {KINDS[kind].title}, which no data set is made of; give a corpus or training set"
        )
    if split is not None and kind != "qrels":
        raise UsageError(
            f"split= names the split of a file of judgements; {place} looks like {KINDS[kind].title}: leave it out"
        )
    if kind in ("corpus", "questions", "qrels", "beir") and (corpus is not None or queries is not None):
        raise UsageError(f"corpus= and queries= are for training sets; {place} looks like {KINDS[kind].title}")
    name = _default_name(place) if name is None else name
    if not _NAME.fullmatch(name):
        raise UsageError(f"name={name}: must be lower-case letters, digits and underscores, as in nq_train")
    if not _VERSION.fullmatch(version):
        raise UsageError(f"version={version}: must be three numbers, as in 1.0.0")
    import_extra("tensorflow_datasets", "data")
    card = Card(name, version, description or f"{KINDS[kind].title}: {place.name}", homepage, citation, licence)
    configs = _configs(place, kind, corpus, queries, split or "test", skip_bad)
    for config in configs:
        if (there := target / name / config / version).exists():
            raise UserError(f"{there}: is there already; choose another version= or name=, or remove it")
    # Written beside its place; the remains of a killed call are removed.
    for leftover in target.glob(f".{name}-{version}.*.part"):
        shutil.rmtree(leftover, ignore_errors=True)
    partial = target / f".{name}-{version}.{secrets.token_hex(4)}.part"
    written = {}
    try:
        for config, (features, splits) in configs.items():
            written[config] = write_config(partial / config, card, config, _DESCRIPTIONS[config], features, splits)
        for config in configs:
            (target / name / config).mkdir(parents=True, exist_ok=True)
            os.rename(partial / config, target / name / config / version)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error}); choose another folder") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Built(target / name, version, written)


def _default_name(place: Source) -> str:
    text = place.body if isinstance(place, NamedSource) else place.absolute().name.split(".")[0]
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") or "data"


# ---- configs ---------------------------------------------------------------------------------------------------------


def _configs(
    place: Source, kind: str, corpus: Path_ | None, queries: Path_ | None, split: str, skip_bad: bool
) -> dict[str, tuple[Any, dict[str, Rows]]]:
    """Return {config: (features, {split: rows})}."""
    found: dict[str, dict[str, Rows]] = {}
    if kind in ("corpus", "beir"):
        found[CORPUS] = {CORPUS: _passages(place, skip_bad)}
    if kind in ("questions", "beir"):
        found[QUERIES] = {QUERIES: _questions(place, skip_bad)}
    if kind == "qrels":
        found[QRELS] = {split: _judgements(place)}
    if kind == "beir" and (splits := beir_splits(place)):
        found[QRELS] = {each: _judgements(qrels_path(place, each)) for each in splits}
    if found:
        return {config: (_features(config), rows) for config, rows in found.items()}
    content = None if corpus is None else read_corpus(corpus, skip_bad=skip_bad)
    examples = read_examples(place, format=kind, corpus=content, queries=queries, skip_bad=skip_bad)
    rows = ExampleRows(content, examples_file(place))
    first = next(examples, None)
    if first is None:
        raise UserError(f"{place}: no example; give a training set with at least one row")
    with_texts = content is not None or any(each.text is not None for each in first.candidates)
    made = (_example(each, rows, with_texts) for each in counted(chain([first], examples), "row"))
    return {EXAMPLES: (_features(EXAMPLES, with_texts), {"train": made})}


def _passages(place: Source, skip_bad: bool) -> Iterator[Mapping[str, Value]]:
    for _, passage in counted(iter_passages(place, skip_bad=skip_bad), "passage"):
        yield {"_id": passage.id, "title": passage.title, "text": passage.text}


def _questions(place: Source, skip_bad: bool) -> Iterator[Mapping[str, Value]]:
    for question in read_questions(place, skip_bad=skip_bad):
        yield {"_id": question.id, "text": question.text, "answers": list(question.answers)}


def _judgements(place: Source) -> Iterator[Mapping[str, Value]]:
    for query, judged in read_qrels(place).items():
        for passage, grade in judged.items():
            yield {"query-id": query, "corpus-id": passage, "score": grade}


def _example(example: Example, rows: ExampleRows, with_texts: bool) -> Mapping[str, Value]:
    def passage(candidate: Candidate) -> dict[str, str | float]:
        row: dict[str, str | float] = {"passage_id": candidate.id or "", "title": candidate.title}
        if with_texts:
            row["title"], row["text"] = rows.content(candidate, example)
        elif candidate.text is not None:
            raise UserError(
                f"{rows.where(example)}: a passage has a text where those of the first row are ids alone; give the corpus "
                "as corpus="
            )
        return row | {"score": math.nan if candidate.score is None else float(candidate.score)}

    row: dict[str, Any] = {"id": example.id, "question": example.question, "answers": list(example.answers)}
    for name, candidates in zip(_LISTS, example.lists, strict=True):
        row[name] = [passage(each) for each in candidates]
    return row


# ---- features --------------------------------------------------------------------------------------------------------


def _features(config: str, with_texts: bool = True) -> Any:
    """Return the features of a config's rows; `with_texts`: whether the passages of examples have texts."""
    features = import_extra("tensorflow_datasets", "data").features

    def text(meaning: str) -> Any:
        return features.Text(doc=meaning)

    def several(feature: Any, meaning: str) -> Any:
        return features.Sequence(feature, doc=meaning)

    answers = several(text("an answer"), "empty if none are known")
    passage = {"passage_id": text("empty if there is none"), "title": text("empty if there is none")}
    passage |= {"text": text("its text")} if with_texts else {}
    passage["score"] = features.Scalar(np.float32, doc="a teacher's score; NaN if there is none")
    fields = {
        CORPUS: {"_id": text("id of the passage"), "title": text("empty if there is none"), "text": text("its text")},
        QUERIES: {"_id": text("id of the question"), "text": text("its text"), "answers": answers},
        QRELS: {
            "query-id": text("id of the question"),
            "corpus-id": text("id of the passage"),
            "score": features.Scalar(np.int64, doc="grade; above 0: relevant"),
        },
        EXAMPLES: {
            "id": text("id of the question; rows with one id are one example"),
            "question": text("the question"),
            "answers": answers,
            "positive_ctxs": several(passage, "passages that answer it"),
            "hard_negative_ctxs": several(passage, "hard negatives"),
            "negative_ctxs": several(passage, "other negatives"),
        },
    }
    return features.FeaturesDict(fields[config])
