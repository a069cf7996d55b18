"""`jaxretr mine lexical`: the training set of ids for a dense model that imitates a ranking (SPAR)."""

import argparse
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxretr.commands.lexical_teachers import Bm25Teacher, Ranker, RunTeacher, Task, file_digest, parse_teacher
from jaxretr.data.arrays import write_array
from jaxretr.data.corpus import Passage
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.lexical_set import LexicalSet, Ranking, Selection, is_lexical_set, usable_queries
from jaxretr.data.query_store import QueryStore, write_queries
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.sentence_queries import COUNTS, SOURCES, Documents, Sampling, drawn, write_sentence_queries
from jaxretr.errors import UsageError, UserError
from jaxretr.progress import Progress, counted
from jaxretr.search.bm25.words import Bm25Settings
from jaxretr.storage.files import atomic_write

log = logging.getLogger(__name__)

_WORK = "work"
_COMMAND = "command.json"
_DEV = "dev"


def run(args: argparse.Namespace) -> None:
    """Makes the set, or goes on with it, and says what it holds."""
    began = time.monotonic()
    selection = Selection(args.positives, *args.negative_ranks)
    sampling, documents = _sampling(args)
    teachers = _teachers(args)
    folder = Path(args.out).expanduser()
    _check_folder(folder)

    log.info("reading the corpus")
    corpus = CorpusStream(args.corpus, skip_bad=args.skip_bad, watch=_watch)
    settings = _settings(args, corpus, sampling, documents, teachers)
    if is_lexical_set(folder):
        found = LexicalSet.open(folder)
        _check_same(folder, found.settings, settings)
        log.info("%s is finished already", folder)
    else:
        _begin(folder, settings)
        found = _make(args, folder, corpus, sampling, documents, teachers, selection, settings)
    shutil.rmtree(folder / _WORK, ignore_errors=True)
    _report(args.out, found, settings, time.monotonic() - began)


def _make(
    args: argparse.Namespace,
    folder: Path,
    corpus: CorpusStream,
    sampling: Sampling,
    documents: Documents,
    teachers: list[Ranker],
    selection: Selection,
    settings: dict[str, Any],
) -> LexicalSet:
    """Makes the queries, lets every teacher rank for them, and writes the set; skips what is finished."""
    work = folder / _WORK / "queries"
    written = (work / COUNTS).is_file()
    questions = None
    if args.queries is not None and not (written and not any(isinstance(each, RunTeacher) for each in teachers)):
        questions = _given_questions(args, sampling.seed)
    if not written:
        if questions is not None:
            _write_questions(work, questions)
        else:
            with Progress(corpus.num_rows, "passage", "split into sentences") as progress:
                write_sentence_queries(work, corpus, documents, sampling, limit=args.limit, advance=progress.advance)
    settings = {**settings, "sampled": json.loads((work / COUNTS).read_text())}
    queries = QueryStore(work)
    sources = np.load(work / SOURCES, mmap_mode="r")
    task = Task(
        corpus,
        queries,
        None if questions is None else [question.id for question in questions],
        selection.last_negative,
        args.threads or os.cpu_count() or 1,
        args.shard_passages,
    )
    rankings = []
    for number, teacher in enumerate(teachers):
        log.info("%s ranks %d passages for %d queries", teacher.name, corpus.num_rows, len(queries))
        rankings.append(teacher.rank(task, folder / _WORK / f"teacher-{number:02d}"))

    held_out = _held_out(args, rankings, selection)

    def write(place: Path, wanted: np.ndarray) -> LexicalSet:
        return LexicalSet.write(
            place,
            queries,
            sources,
            rankings,
            selection=selection,
            corpus_fingerprint=corpus.fingerprint,
            corpus_rows=corpus.num_rows,
            settings=settings,
            wanted=wanted,
        )

    if args.dev is not None:
        write(folder / _DEV, held_out)
    return write(folder, ~held_out)


# ---- what was asked for ----------------------------------------------------------------------------------------------


def _sampling(args: argparse.Namespace) -> tuple[Sampling, Documents]:
    of_sentences = {
        "--sampling": args.sampling,
        "--base": args.base,
        "--per-passage": args.per_passage,
        "--documents": args.documents,
    }
    superfluous = next((name for name, value in of_sentences.items() if value is not None), None)
    if args.queries is not None and superfluous:
        raise UsageError(f"{superfluous} is for sentences, but --queries gives the queries; leave one of them out")
    kind = args.sampling or "position"
    for name, of_kind in (("--base", ("position",)), ("--per-passage", ("uniform",)), ("--documents", ("position",))):
        if of_sentences[name] is not None and kind not in of_kind:
            raise UsageError(f"{name} is of --sampling {of_kind[0]}, not of {kind}; leave it out")
    base, per_passage = (1.2 if args.base is None else args.base), args.per_passage or 1
    return Sampling(kind, base, per_passage, args.seed), Documents(args.documents or "title")


def _teachers(args: argparse.Namespace) -> list[Ranker]:
    of_bm25 = {
        "--k1": args.k1,
        "--b": args.b,
        "--stemmer": args.stemmer,
        "--quantise-lengths": args.quantise_lengths or None,
    }
    given = {name: value for name, value in of_bm25.items() if value is not None}
    if args.k1 is not None and not args.k1 >= 0:
        raise UsageError(f"BM25's k1 must be at least 0, not {args.k1}")
    if args.b is not None and not 0 <= args.b <= 1:
        raise UsageError(f"BM25's b must be between 0 and 1, not {args.b}")
    settings = Bm25Settings(
        k1=given.get("--k1", 0.9),
        b=given.get("--b", 0.4),
        stemmer=None if args.stemmer == "none" else "english",
        quantise_lengths=args.quantise_lengths,
    )
    names = args.teacher or ["bm25"]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UsageError(f"--teacher {twice} stands there twice; name each teacher once")
    teachers = [parse_teacher(name, settings) for name in names]
    if given and not any(isinstance(teacher, Bm25Teacher) for teacher in teachers):
        raise UsageError(f"{next(iter(given))} is BM25's, and no --teacher is bm25; leave it out")
    for teacher in teachers:
        if isinstance(teacher, RunTeacher) and args.queries is None:
            raise UsageError(f"--teacher {teacher.name} ranks for the ids of questions: give them with --queries FILE")
    return teachers


def _settings(
    args: argparse.Namespace,
    corpus: CorpusStream,
    sampling: Sampling,
    documents: Documents,
    teachers: list[Ranker],
) -> dict[str, Any]:
    """Returns all that decides the set; kept in it, and compared where a run goes on."""
    of_queries: dict[str, Any]
    if args.queries is not None:
        of_queries = {"queries": {"files": [args.queries], "sha256": file_digest(args.queries, "queries.jsonl")}}
    else:
        of_queries = {"sampling": sampling.kind}
        if sampling.kind == "position":
            of_queries |= {"base": sampling.base, "documents": documents.rule}
        elif sampling.kind == "uniform":
            of_queries |= {"per_passage": sampling.per_passage}
    return {
        "corpus": {"files": [str(path) for path in corpus.paths], "sha256": corpus.fingerprint},
        **of_queries,
        "limit": args.limit,
        "dev": args.dev,
        "seed": args.seed,
        "positives": args.positives,
        "negative_ranks": list(args.negative_ranks),
        "teachers": {teacher.name: teacher.identity() for teacher in teachers},
    }


# ---- the folder ------------------------------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    """Refuses a folder that holds something else, before anything is read."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; name a folder for --out")
    names = sorted(entry.name for entry in folder.iterdir())
    work = folder / _WORK
    # A run that was killed before it noted anything leaves that folder with nothing in it, or half a file.
    begun = (work / _COMMAND).is_file() or (names == [_WORK] and not [*work.glob("[!.]*")])
    if names and not begun and not is_lexical_set(folder):
        raise UserError(f"{folder}: holds something else ({names[0]}); give a new or empty --out folder")


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    """Notes what is made here, or compares with what an interrupted run noted."""
    place = folder / _WORK / _COMMAND
    for each in (folder, folder / _DEV, folder / _WORK, folder / _WORK / "queries"):
        # What a killed run left of a file; whole ones have no such name.
        for leftover in each.glob(".*.part"):
            leftover.unlink(missing_ok=True)
    if not place.is_file():
        with atomic_write(place) as file:
            json.dump(settings, file, indent=1, ensure_ascii=False)
        return
    try:
        noted = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{place}: cannot be read ({error}); remove {folder} and run the command again") from error
    _check_same(folder, noted, settings)
    log.info("%s: going on with an interrupted run", folder)


def _check_same(folder: Path, noted: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in json.loads(json.dumps(wanted)).items():
        there = noted.get(name)
        # Where a file lies does not matter.
        if _without_files(there) != _without_files(value):
            option = "--teacher" if name == "teachers" else f"--{name.replace('_', '-')}"
            raise UserError(
                f"{folder}: was begun with another {option} ({_shown(there)}) than {_shown(value)}; use that again, or "
                "give another --out folder"
            )


def _without_files(value: Any) -> Any:
    return {name: each for name, each in value.items() if name != "files"} if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return " and ".join(value["files"]) if isinstance(value, dict) and "files" in value else json.dumps(value)


# ---- queries ---------------------------------------------------------------------------------------------------------


def _given_questions(args: argparse.Namespace, seed: int) -> list[Question]:
    questions = read_questions(args.queries, skip_bad=args.skip_bad)
    if args.limit is not None and args.limit < len(questions):
        questions = [questions[number] for number in drawn(len(questions), args.limit, seed, "limit").tolist()]
    return questions


def _write_questions(folder: Path, questions: list[Question]) -> None:
    with write_queries(folder) as store:
        for question in questions:
            store.append(question.text)
    write_array(folder / SOURCES, (len(questions),), np.int32, [np.full(len(questions), -1)])
    with atomic_write(folder / COUNTS) as file:
        json.dump({"queries": len(questions)}, file)


def _held_out(args: argparse.Namespace, rankings: list[Ranking], selection: Selection) -> np.ndarray:
    """Returns which queries go into the dev set, bool [Q]."""
    held_out = np.zeros(len(rankings[0].rows), bool)
    if args.dev is None:
        return held_out
    usable = np.flatnonzero(np.logical_and.reduce([usable_queries(ranking, selection) for ranking in rankings]))
    if args.dev >= len(usable):
        raise UserError(
            f"--dev {args.dev} leaves nothing to train on: {len(usable)} of {len(held_out)} queries have positives and "
            "negatives; hold out fewer"
        )
    held_out[usable[drawn(len(usable), args.dev, args.seed, "dev")]] = True
    return held_out


def _watch(passages: Iterable[Passage]) -> Iterator[Passage]:
    return counted(passages, "passage")


def _report(out: str, found: LexicalSet, settings: dict[str, Any], seconds: float) -> None:
    sampled = found.settings["sampled"]
    if "passages_without" in sampled:
        log.info(
            "%d of %d sentences of %d passages in %d documents were drawn; %d passages have none",
            *(sampled["sampled"], sampled["sentences"], sampled["passages"], sampled["documents"]),
            sampled["passages_without"],
        )
    dropped = found.counts["dropped"]
    held_out = "" if settings["dev"] is None else f", {settings['dev']} more in {_DEV}"
    share = 100 * dropped / (dropped + len(found))
    print(
        f"{out}: {len(found)} queries{held_out}, {share:.2f} % dropped for want of positives or negatives, "
        f"{seconds:.0f} s"
    )
