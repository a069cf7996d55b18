"""`jaxretr.evaluate_typos`: the cost of typos in the questions for models and BM25 on a BEIR folder."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxretr.config import Keyboard
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.typos import PROFILES, TypoGenerator, generators
from jaxretr.embeddings.encoding import Encoder, loaded, name_of
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.measuring import OF_QRELS, Search, TestSet
from jaxretr.evaluate.robustness import CLEAN, AlteredValues, Draws, measure_altered, read_splits, share_changed
from jaxretr.evaluate.searches import EncoderSearch, bm25_search, encoder_search, note_lengths
from jaxretr.evaluate.typo_report import TypoReport
from jaxretr.runtime.errors import UsageError, UserError, at_least

log = logging.getLogger(__name__)

_Path = str | Path
_Model = Encoder | _Path | Callable[[], Encoder]


def evaluate_typos(
    encoders: _Model | Sequence[_Model],
    *,
    beir: _Path,
    splits: Sequence[str] = ("test",),
    profiles: Sequence[str] = PROFILES,
    draws: int = 10,
    seed: int = 0,
    keyboard: Keyboard | None = None,
    misspellings: _Path | None = None,
    queries: Mapping[str, Sequence[_Path]] | None = None,
    metrics: Sequence[str] = OF_QRELS,
    bm25: bool = True,
    batch_size: int | None = None,
) -> TypoReport:
    """Measure models and BM25 with the original questions of a BEIR folder and with typos in them.

    Args:
      encoders: one or more models, each a path or name as `load_encoder` takes it, or a function that loads it; one
        model is in memory at a time if they are not loaded yet. The others are compared with the first.
      beir: a folder with corpus, queries and qrels.
      splits: splits of the folder's judgements.
      profiles: profiles of `jaxretr.TypoGenerator`: the kinds of typos to generate; () for none.
      draws: query variants per question and profile.
      seed: seed of the typos.
      keyboard: keyboard layout, for dictionary and single_word; "qwerty" by default.
      misspellings: for dictionary: JSON {word: [misspellings]} or lines misspelling->word, also .gz; by default English.
      queries: {kind: files} of other questions with typos and the same ids, each file a draw.
      metrics: for instance "ndcg@10"; `jaxretr.evaluate.metrics` lists them.
      bm25: measure BM25 as well.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UsageError: an unknown metric, profile or keyboard, a setting that no profile reads, or a name used twice.
      UserError: bad input, or a file lacks a question.
    """
    # Find every error of the arguments and files before a model is loaded.
    measures.evaluate({"": {}}, {}, metrics)
    at_least(1, draws=draws)
    if not profiles and not queries:
        raise UsageError("there are no typos to measure; name profiles, or give queries with typos")
    makers = generators(profiles, keyboard=keyboard, misspellings=misspellings, seed=seed)
    questions, of_names = read_splits(beir, splits)
    typed = _read_typed(queries or {}, questions, of_names)
    if clash := typed.keys() & {*makers, CLEAN}:
        raise UsageError(f"queries named '{min(clash)}': the name is taken; choose another one")
    rows = {question.id: row for row, question in enumerate(questions)}
    typos = {name: _typos(split.questions, rows, makers, draws, typed) for name, split in of_names.items()}
    corpus = read_corpus(beir)
    of_names = {name: dataclasses.replace(split, corpus=corpus) for name, split in of_names.items()}
    models = [encoders] if isinstance(encoders, str | Path) or not isinstance(encoders, Sequence) else encoders
    values: dict[str, dict[str, AlteredValues]] = {name: {} for name in of_names}

    lengths: dict[str, tuple[int, int]] = {}

    def measure(name: str, search: Search) -> None:
        system = _unused(name, next(iter(values.values())))
        log.info("measuring %s", system)
        if isinstance(search, EncoderSearch):
            lengths[system] = search.lengths
        for split, of_system in values.items():
            of_system[system] = measure_altered(search, of_names[split], typos[split], metrics, f"{beir}, {split}")

    for model in models:  # One at a time: its embeddings are freed before the next one's are computed.
        encoder = loaded(model)
        measure(name_of(encoder), encoder_search(encoder, corpus, batch_size))
    note_lengths(lengths)
    if bm25:
        measure("BM25", bm25_search(corpus))
    changed = {
        name: {
            kind: share_changed(split.texts, of_kind, lambda text: text.lower().split())
            for kind, of_kind in typos[name].items()
        }
        for name, split in of_names.items()
    }
    judged = {name: len(split.qrels or ()) for name, split in of_names.items()}
    return TypoReport(_settings(makers, draws, misspellings), judged, changed, values, len(models))


def _unused(name: str, used_names: Mapping[str, object]) -> str:
    label, number = name, 1
    while label in used_names:
        number += 1
        label = f"{name} ({number})"
    return label


# ---- questions with typos --------------------------------------------------------------------------------------------


def _typos(
    questions: Sequence[Question],
    row_of: Mapping[str, int],
    makers: Mapping[str, TypoGenerator],
    draws: int,
    typed: Mapping[str, Sequence[Mapping[str, str]]],
) -> dict[str, Draws]:
    """The questions of each draw, by kind; generated ones equal those in the files that `jaxretr typos` writes."""
    texts, rows = [question.text for question in questions], [row_of[question.id] for question in questions]
    draws_of: dict[str, Draws] = {
        profile: [generator.texts(texts, draw, rows) for draw in range(draws)] for profile, generator in makers.items()
    }
    return draws_of | {kind: [[of_file[q.id] for q in questions] for of_file in files] for kind, files in typed.items()}


def _read_typed(
    files: Mapping[str, Sequence[_Path]], questions: Sequence[Question], splits: Mapping[str, TestSet]
) -> dict[str, list[dict[str, str]]]:
    """Read questions with typos from files: {kind: {question id: text} of each file}.

    Raises:
      UserError: a file lacks a question of a split, has one that the folder lacks, or cannot be read.
    """
    known = {question.id for question in questions}
    texts_of: dict[str, list[dict[str, str]]] = {}
    for kind, path in ((kind, path) for kind, paths in files.items() for path in paths):
        texts = {question.id: question.text for question in read_questions(Path(path))}
        unknown = [id for id in texts if id not in known]
        if unknown:
            raise UserError(
                f"{path}: {len(unknown)} of {len(texts)} questions are unknown (the first: '{unknown[0]}'); "
                "give them the ids of the BEIR folder's queries"
            )
        for name, split in splits.items():
            missing = [question.id for question in split.questions if question.id not in texts]
            if missing:
                raise UserError(
                    f"{path}: lacks {len(missing)} of {len(split.questions)} questions of split {name} (the first: "
                    f"'{missing[0]}'); add them, or name a split that the file covers"
                )
        texts_of.setdefault(kind, []).append(texts)
    return texts_of


def _settings(makers: Mapping[str, TypoGenerator], draws: int, misspellings: _Path | None) -> dict[str, object] | None:
    if not makers:
        return None
    first = next(iter(makers.values()))
    return {
        "profiles": list(makers),
        "draws": draws,
        "seed": first.seed,
        "keyboard": first.keyboard,
        "misspellings": None if misspellings is None else str(misspellings),
    }
