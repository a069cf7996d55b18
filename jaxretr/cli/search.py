"""`jaxretr search`: finds the passages of questions in an index of any kind."""

import argparse
import re
from pathlib import Path
from typing import Any

from jaxretr.cli.parsing import Commands, add_model, add_processes, add_rerank, add_run, check_documents, given
from jaxretr.runtime.errors import UsageError

SEARCH = "jaxretr.indexes.searching:search"

_CONDITIONS = {"=": "in", "!=": "not_in", ">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "search",
        "Exact search of an embedding store or a saved exact index; other indexes are searched as they were built for.\n"
        "With several processes, each searches its share of the store.",
        "jaxretr search runs/art --index runs/art/embeddings --queries queries.jsonl -k 100 --out run.trec\n"
        "  jaxretr search runs/art --index emb --queries q.jsonl --out run.trec --corpus c.jsonl --where language=en\n"
        "  jaxretr search runs/art --index emb --queries q.jsonl --out run.trec --where 'year>=2015' --where 'year<2020'\n"
        "  jaxretr search runs/art --index emb --queries q.jsonl --out run.trec --corpus c.jsonl --rerank reranker",
    )
    add_model(parser)
    options = parser.options_of(SEARCH)
    options.add("index", metavar="DIR")
    options.add("corpus")
    group = parser.add_argument_group("filters", "a passage must pass every filter")
    options = parser.options_of(SEARCH, to=group)
    options.add("allow", "deny", type=Path, action="store", metavar="FILE")
    options.add("where", metavar="CONDITION", action="append", type=_comparison)
    add_run(parser, parser.options_of(SEARCH))
    parser.options_of(SEARCH).add("batch_size")
    add_rerank(parser, SEARCH)
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Search and write the run; with several processes, the first one writes it."""
    import jax

    from jaxretr.cli.model import load_model, scorer_loader
    from jaxretr.cli.outputs import say_written
    from jaxretr.cli.process import typed
    from jaxretr.data.readers import read_corpus, read_questions
    from jaxretr.indexes.filters import BOUNDS
    from jaxretr.indexes.opening import has_texts
    from jaxretr.indexes.searching import search
    from jaxretr.runtime.parallel.hosts import agree, program_facts, stops_when_asked, together
    from jaxretr.runtime.storage.files import check_output

    with together(), stops_when_asked():
        agree("the beginning", {**program_facts(), "command line": typed(args)})
        check_documents(args)
        trec = args.format == "trec"
        rerank = scorer_loader(args, "rerank", "depth")
        lacking = args.corpus is None and (not trec or rerank is not None) and not has_texts(args.index)
        if not trec and lacking:
            raise UsageError(f"--format {args.format} writes the passages' titles: give --corpus FILE as well")
        if lacking:
            raise UsageError("--rerank reads the passages' texts: give --corpus FILE as well")
        check_output(args.out, args.corpus, args.queries, args.allow, args.deny)
        # Find every error of the input before the model is loaded.
        questions = read_questions(args.queries, trec_ids=trec)
        corpus = None if args.corpus is None or (trec and rerank is None) else read_corpus(args.corpus)
        where: dict[str, dict[str, Any]] = {}
        for field, name, value in args.where or ():
            parts = where.setdefault(field, {})
            if name in BOUNDS and name in parts:
                raise UsageError(f"--where: two bounds {name} of {field}; give the narrower one")
            parts[name] = value if name in BOUNDS else [*parts.get(name, ()), value]
        found = search(
            lambda: load_model(args),
            **given(args, "search") | {"queries": questions, "where": where},
            rerank=rerank,
            trec_ids=trec,
            passages=corpus,
            with_texts=not trec,
        )
        if not jax.process_index():
            found = found.of_documents() if args.documents else found
            found.save(args.out, format=args.format, corpus=corpus)
            say_written(args.out, f"{found.num_hits} hits of {len(found)} questions")


def _comparison(text: str) -> tuple[str, str, str]:
    """A field, the name of a condition, and the value."""
    found = re.fullmatch(r"([^=!<>]+)(=|!=|<=|<|>=|>)(.*)", text, re.DOTALL)
    if not found:
        raise argparse.ArgumentTypeError(f"'{text}' is not FIELD=VALUE; give, for example, language=en or 'year>=2020'")
    field, sign, value = found.groups()
    return field, _CONDITIONS[sign], value
