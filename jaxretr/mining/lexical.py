"""`jaxretr.mine_lexical`: the training set of ids for a dense model that imitates a ranking (SPAR)."""

import json
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxretr.data.arrays import write_array
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.lexical_set import DEV, SOURCES, LexicalSet, Ranking, Selection, is_lexical_set, usable_queries
from jaxretr.data.made_of import check_same_settings, note_settings
from jaxretr.data.mapped_texts import QueryStore, write_texts
from jaxretr.data.questions import Question, read_questions
from jaxretr.indexes.bm25.words import Bm25Settings
from jaxretr.mining.sentence_queries import COUNTS, Documents, Sampling, drawn, write_sentence_queries
from jaxretr.mining.teachers import RunTeacher, Task, file_digest, parse_teachers
from jaxretr.runtime.errors import UsageError, UserError, at_least, check_seed
from jaxretr.runtime.progress import Progress, counted
from jaxretr.runtime.storage.files import write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable

log = logging.getLogger(__name__)

Path_ = str | Path

_WORK = "work"
_COMMAND = "command.json"


def mine_lexical(
    *,
    corpus: Path_ | Sequence[Path_],
    out: Path_,
    queries: Path_ | None = None,
    teachers: Sequence[str] = ("bm25",),
    positives: int = 10,
    negative_ranks: tuple[int, int] = (46, 50),
    sampling: Literal["position", "uniform", "all"] | None = None,
    base: float | None = None,
    per_passage: int | None = None,
    documents: str | None = None,
    limit: int | None = None,
    dev: int | None = None,
    seed: int = 0,
    bm25: Bm25Settings | None = None,
    skip_bad: bool = False,
    threads: int | None = None,
    shard_passages: int = 1_000_000,
) -> LexicalSet:
    """Make a lexical set: queries, and for each the first ranks as positives and some later ones as negatives.

    An interrupted call continues where it was when it is repeated with the same arguments; a finished set is opened.

    Args:
      corpus: passages, as for `jaxretr.encode`. One file, or several.
      out: a new or empty folder, or that of an interrupted call.
      queries: these questions instead of sentences of the corpus.
      teachers: the rankers of passages: bm25, run:FILE (a run of `queries`) or model:MODEL (an encoder, dense or learned
        sparse, by exact search); training draws one of them for each query.
      positives: the last rank of the positives, which are ranks 1 to this.
      negative_ranks: first and last rank of the negatives.
      sampling: sentences per passage; position: max(1, round(sentences / (base (i + 1)))) of the passage at position i of
        its document, from 0; uniform: the same number of each; all; "position" by default.
      base: base of the sampling "position"; 1.2 by default.
      per_passage: sentences per passage of the sampling "uniform"; 1 by default.
      documents: which passages are a document, for the sampling "position": title: neighbours with the same title;
        field:NAME: those with the same value of a field of the corpus's JSON; id:REGEX: those whose ids agree in group
        1, as in id:(.+)-\\d+; "title" by default.
      limit: draw at most this many queries, evenly.
      dev: hold out this many queries, drawn evenly, as a set in the folder dev of `out`.
      seed: seed of all draws.
      bm25: BM25's settings.
      skip_bad: skip and count bad rows.
      threads: queries ranked in parallel; the number of processors by default.
      shard_passages: passages in memory at a time, about 1 GB per million; does not change the result.

    Raises:
      UsageError: arguments that contradict each other.
      UserError: a file cannot be read or written, `out` contains something else or a set made with other arguments,
        or no query has positives and negatives.
    """
    check_seed(seed)
    at_least(1, limit=limit, dev=dev, shard_passages=shard_passages, per_passage=per_passage)
    selection = Selection(positives, *negative_ranks)
    sampling_, documents_ = _sampling(queries, sampling, base, per_passage, documents, seed)
    rankers = parse_teachers(teachers, bm25)
    of_run = next((ranker for ranker in rankers if isinstance(ranker, RunTeacher)), None)
    if of_run is not None and queries is None:
        raise UsageError(f"teachers={of_run.name}: ranks for the ids of questions; give them as queries=")
    folder = Path(out).expanduser()
    _check_folder(folder)

    log.info("reading the corpus")
    paths = [corpus] if isinstance(corpus, str | Path) else corpus
    stream = CorpusStream(paths, skip_bad=skip_bad, watch=lambda passages: counted(passages, "passage"))
    settings = {
        "corpus": {"files": [str(path) for path in stream.paths], "sha256": stream.fingerprint},
        **_settings_of_queries(queries, sampling_, documents_),
        "limit": limit,
        "dev": dev,
        "seed": seed,
        "positives": positives,
        "negative_ranks": list(negative_ranks),
        "teachers": {ranker.name: ranker.identity() for ranker in rankers},
    }
    if is_lexical_set(folder):
        found = LexicalSet.open(folder)
        check_same_settings(folder, found.settings, settings)
        log.info("%s is finished already", folder)
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        return found
    _begin(folder, settings)

    # ---- the queries

    work = folder / _WORK / "queries"
    written = (work / COUNTS).is_file()
    query_ids = None
    if queries is not None and (of_run is not None or not written):
        questions = read_questions(queries, skip_bad=skip_bad)
        if limit is not None and limit < len(questions):
            questions = [questions[number] for number in drawn(len(questions), limit, seed, "limit").tolist()]
        query_ids = [question.id for question in questions]
        if not written:
            _write_questions(work, questions)
    elif not written:
        with Progress(stream.num_rows, "passage", "split into sentences") as progress:
            write_sentence_queries(work, stream, documents_, sampling_, limit=limit, advance=progress.advance)
    store, sources = QueryStore(work), np.load(work / SOURCES, mmap_mode="r")
    settings |= {"sampled": json.loads((work / COUNTS).read_text())}
    _log_sampled(settings["sampled"])

    # ---- the teachers' rankings

    task = Task(stream, store, query_ids, selection.last_negative, threads or os.cpu_count() or 1, shard_passages)
    rankings = []
    for number, ranker in enumerate(rankers):
        log.info("%s ranks %d passages for %d queries", ranker.name, stream.num_rows, len(store))
        rankings.append(ranker.rank(task, folder / _WORK / f"teacher-{number:02d}"))

    # ---- the set

    def write(place: Path, wanted: np.ndarray) -> LexicalSet:
        return LexicalSet.write(
            place,
            store,
            sources,
            rankings,
            selection=selection,
            corpus_fingerprint=stream.fingerprint,
            corpus_rows=stream.num_rows,
            settings=settings,
            wanted=wanted,
        )

    held_out = np.zeros(len(store), bool)
    if dev is not None:
        held_out[_dev_queries(rankings, selection, dev, seed)] = True
        write(folder / DEV, held_out)
    found = write(folder, ~held_out)
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    return found


# ---- arguments -------------------------------------------------------------------------------------------------------


def _sampling(
    queries: Path_ | None,
    kind: Literal["position", "uniform", "all"] | None,
    base: float | None,
    per_passage: int | None,
    documents: str | None,
    seed: int,
) -> tuple[Sampling, Documents]:
    given = {"sampling": kind, "base": base, "per_passage": per_passage, "documents": documents}
    given = {name: value for name, value in given.items() if value is not None}
    if queries is not None and given:
        raise UsageError(
            f"{next(iter(given))}= is for sentences, but queries= gives the queries; leave one of them out"
        )
    kind = kind or "position"
    for name, needed in (("base", "position"), ("per_passage", "uniform"), ("documents", "position")):
        if name in given and kind != needed:
            raise UsageError(f"{name}= is for sampling={needed}, not for {kind}; leave it out")
    return Sampling(kind, 1.2 if base is None else base, per_passage or 1, seed), Documents(documents or "title")


def _settings_of_queries(queries: Path_ | None, sampling: Sampling, documents: Documents) -> dict[str, Any]:
    if queries is not None:
        return {"queries": {"files": [str(queries)], "sha256": file_digest(queries, "queries.jsonl")}}
    if sampling.kind == "position":
        return {"sampling": sampling.kind, "base": sampling.base, "documents": documents.rule}
    if sampling.kind == "uniform":
        return {"sampling": sampling.kind, "per_passage": sampling.per_passage}
    return {"sampling": sampling.kind}


# ---- the folder ------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    """Refuse a folder with other content before anything is read."""
    work = folder / _WORK

    def known(names: list[str]) -> bool:
        # A call that was killed before it noted its settings leaves the folder of its work empty, or with part of a file.
        begun = (work / _COMMAND).is_file() or (names == [_WORK] and not [*work.glob("[!.]*")])
        return begun or is_lexical_set(folder)

    check_replaceable(folder, "a lexical set", known)


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Note the settings, or compare them with those of an interrupted call."""
    place = folder / _WORK / _COMMAND
    for each in (folder, folder / DEV, folder / _WORK, folder / _WORK / "queries"):
        # Unfinished files of a killed call; finished ones have other names.
        for leftover in each.glob(".*.part"):
            leftover.unlink(missing_ok=True)
    if note_settings(place, folder, settings):
        log.info("%s: continuing an interrupted run", folder)


# ---- queries ---------------------------------------------------------------------------------------------------------


def _write_questions(folder: Path, questions: Sequence[Question]) -> None:
    with write_texts(folder) as store:
        for question in questions:
            store.append(question.text)
    write_array(folder / SOURCES, (len(questions),), np.int32, [np.full(len(questions), -1)])
    write_json(folder / COUNTS, {"queries": len(questions)})


def _dev_queries(rankings: Sequence[Ranking], selection: Selection, count: int, seed: int) -> np.ndarray:
    """Return the numbers of the held-out queries, ascending, int64 [count]."""
    usable = np.flatnonzero(np.logical_and.reduce([usable_queries(ranking, selection) for ranking in rankings]))
    if count >= len(usable):
        raise UserError(
            f"dev={count} leaves nothing to train on: {len(usable)} of {len(rankings[0].rows)} queries have positives "
            "and negatives; hold out fewer, in a new folder"
        )
    return usable[drawn(len(usable), count, seed, "dev")]


def _log_sampled(sampled: dict[str, int]) -> None:
    if "passages_without" in sampled:
        log.info(
            "%d of %d sentences of %d passages in %d documents were drawn; %d passages have none",
            sampled["sampled"],
            sampled["sentences"],
            sampled["passages"],
            sampled["documents"],
            sampled["passages_without"],
        )
