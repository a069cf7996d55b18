"""`jaxretr evaluate --typos`: what typos in the questions cost a model, beside BM25 and further models."""

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxretr.commands.altered_questions import (
    Draws,
    Measured,
    Split,
    check_metrics,
    measure,
    read_splits,
    share_changed,
)
from jaxretr.commands.model import load_model
from jaxretr.commands.typo_report import CLEAN, Figures, Kind, Report, figures_of
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.typos import PROFILES, TypoGenerator
from jaxretr.errors import UsageError, UserError
from jaxretr.evaluate.measuring import OF_QRELS, Search
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.models.formats.dual_encoder_folder import check_finished
from jaxretr.storage.files import check_output

log = logging.getLogger(__name__)

_DRAWS = 10


def run(args: argparse.Namespace) -> None:
    """Prints the figures without and with typos, and writes and draws them if asked to."""
    # Everything that can be wrong is found before a model is loaded.
    names = args.metrics or OF_QRELS
    check_metrics(names)
    for path in (args.per_query, args.plot):
        if path is not None:
            check_output(path)
    models = [args.model, *(args.and_model or ())]
    for model in models:
        check_finished(model)
    generators = typo_generators(args)
    questions, splits = read_splits(args.beir, args.split)
    typed = read_typed(args.typo_queries or (), questions, splits)
    if clash := typed.keys() & {*generators, CLEAN}:
        raise UsageError(f"--typo-queries {min(clash)}=...: the name is taken; choose another one")
    draws = range(args.draws or _DRAWS)
    typos = {
        name: {
            **{profile: made(generator, split, draws) for profile, generator in generators.items()},
            **{kind: [[texts[q.id] for q in split.questions] for texts in files] for kind, files in typed.items()},
        }
        for name, split in splits.items()
    }
    corpus = read_corpus(Path(args.beir).expanduser())
    measured: dict[str, dict[str, Measured]] = {name: {} for name in splits}
    for system, search_of in systems(args, models).items():
        log.info("measuring %s", system)
        search = search_of(corpus)
        for name, split in splits.items():
            measured[name][system] = measure(search, split, typos[name], names, f"{args.beir}, {name}")
        del search  # Before the next system's embeddings are made.
    report = Report(
        settings(args, generators),
        {name: summary(split, typos[name], measured[name], names, len(models)) for name, split in splits.items()},
    )
    if args.per_query is not None:
        report.write_per_query(Path(args.per_query).expanduser(), measured)
    if args.plot is not None:
        from jaxretr.commands.typo_plot import draw

        draw(report, Path(args.plot).expanduser())
    print(report.as_json() if args.format == "json" else report.as_table())


# ---- questions with typos --------------------------------------------------------------------------------------------


def typo_generators(args: argparse.Namespace) -> dict[str, TypoGenerator]:
    """A generator for each profile that --typos asks for."""
    if args.typos is None:
        return {}
    profiles = args.typos or PROFILES
    for option, users in (("misspellings", ("dictionary",)), ("keyboard", ("dictionary", "single_word"))):
        if getattr(args, option) is not None and not set(users) & set(profiles):
            raise UsageError(f"--{option} is for the typos of {' and '.join(users)}: leave it out, or name these")
    given = {name: getattr(args, name) for name in ("keyboard", "misspellings", "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    return {profile: TypoGenerator(profile, **given) for profile in profiles}


def made(generator: TypoGenerator, split: Split, draws: Sequence[int]) -> Draws:
    """The questions of a split with typos; the same ones as in a file that `jaxretr typos` makes of the queries."""
    return [generator.texts(split.texts, draw, split.rows) for draw in draws]


def read_typed(
    files: Sequence[tuple[str, str]], questions: Sequence[Question], splits: Mapping[str, Split]
) -> dict[str, list[dict[str, str]]]:
    """Reads questions with typos from elsewhere.

    Args:
      files: (name, path); those of one name are draws of one kind of typos.
      questions: all of the folder.
      splits: those that are measured.

    Returns:
      {name: of each file {question id: text}}.

    Raises:
      UserError: a file lacks a question of a split or has one that the folder lacks, or it cannot be read.
    """
    known = {question.id for question in questions}
    found: dict[str, list[dict[str, str]]] = {}
    for kind, path in files:
        texts = {question.id: question.text for question in read_questions(path)}
        unknown = [id for id in texts if id not in known]
        if unknown:
            raise UserError(
                f"{path}: {len(unknown)} of {len(texts)} questions are unknown (the first: '{unknown[0]}'); "
                "give them the ids of the --beir folder's queries"
            )
        for name, split in splits.items():
            missing = [question.id for question in split.questions if question.id not in texts]
            if missing:
                raise UserError(
                    f"{path}: lacks {len(missing)} of {len(split.questions)} questions of split {name} (the first: "
                    f"'{missing[0]}'); add them, or name a split that the file covers"
                )
        found.setdefault(kind, []).append(texts)
    return found


# ---- systems ---------------------------------------------------------------------------------------------------------


def systems(args: argparse.Namespace, models: Sequence[str]) -> dict[str, Callable[[Corpus], Search]]:
    """What is measured, by a name of its own: the models and BM25; each indexes the corpus when it is called."""
    found: dict[str, Callable[[Corpus], Search]] = {}

    def add(name: str, search_of: Callable[[Corpus], Search]) -> None:
        label, number = name, 1
        while label in found:
            number += 1
            label = f"{name} ({number})"
        found[label] = search_of

    def dense(settings: argparse.Namespace) -> Callable[[Corpus], Search]:
        return lambda corpus: encoder_search(load_model(settings), corpus, settings.batch_size)

    of_first = dict.fromkeys(("passage_model", "tokenizer", "pooling", "truncate_dim"))
    for number, model in enumerate(models):
        add(model, dense(argparse.Namespace(**{**vars(args), **(of_first if number else {}), "model": model})))
    if not args.no_bm25:
        add("BM25", bm25_search)
    return found


# ---- figures ---------------------------------------------------------------------------------------------------------


def summary(
    split: Split, typos: Mapping[str, Draws], measured: Mapping[str, Measured], names: Sequence[str], models: int
) -> Figures:
    """All figures of one split; the first `models` systems are compared with each other."""
    kinds = {
        kind: Kind(len(draws), share_changed(split.texts, draws, lambda text: text.lower().split()))
        for kind, draws in typos.items()
    }
    return Figures(len(split.qrels), kinds, {name: figures_of(measured, kinds, name, models) for name in names})


def settings(args: argparse.Namespace, generators: Mapping[str, TypoGenerator]) -> dict[str, object] | None:
    """How typos were made; None where none were."""
    if not generators:
        return None
    first = next(iter(generators.values()))
    return {
        "profiles": list(generators),
        "draws": args.draws or _DRAWS,
        "seed": first.seed,
        "keyboard": first.keyboard,
        "misspellings": args.misspellings,
    }
