"""`jaxretr score`: the scores of pairs of question and passage, by a cross-encoder or another scorer."""

import argparse

from jaxretr.cli.parsing import Commands, add_compute, add_processes, add_scorer, at_least_one


def add_commands(commands: Commands) -> None:
    """Add the command."""
    parser = commands.command(
        "score",
        "Score pairs of question and passage with a cross-encoder, a causal language model or a T5: a training set, a\n"
        "run, or rows of pairs. Scores are raw: logits without a sigmoid, or mean log-likelihoods. Resumes automatically\n"
        "if interrupted. With several processes, each scores its share.",
        "jaxretr score cross-encoder/ms-marco-MiniLM-L6-v2 --pairs train.json --out scored.json\n"
        "  jaxretr score reranker --pairs run.trec --queries queries.jsonl --corpus corpus.jsonl --out rescored.trec",
    )
    add = parser.add_argument
    add(
        "model",
        metavar="MODEL",
        help="a cross-encoder, causal language model or T5: a folder, run directory or hub name",
    )
    add(
        "--pairs",
        metavar="FILE",
        required=True,
        help="a training set in any format, or a BEIR folder; a run; or JSON lines, .tsv or .csv of {query, passage, title}",
    )
    add(
        "--out",
        metavar="FILE",
        required=True,
        help="the same with scores: a training set's passages, a run in the new order, or rows with a field score",
    )
    add("--queries", metavar="FILE", help="the questions of a run, or of a training set with their ids alone")
    add("--corpus", metavar="FILE", help="the passages of a run, or of a training set with their ids alone")
    add(
        "--format",
        metavar="NAME",
        help="of --out: dpr, dpr-scale, tevatron, tevatron2, sentence-transformers, distillation or flag for training "
        "sets; trec, dpr or jsonl for runs, of which training sets can be made too (default: as --pairs)",
    )
    add("--split", metavar="NAME", help="of a BEIR folder's judgements (default: train)")
    add(
        "--chunk",
        type=at_least_one,
        default=4096,
        metavar="N",
        help="pairs scored at a time, which an interruption loses (default: %(default)s)",
    )
    group = parser.add_argument_group("of MODEL").add_argument
    add_scorer(group)
    add_compute(group)
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Score and write; with several processes, the first one writes."""
    import jax

    from jaxretr.cli.outputs import say_written
    from jaxretr.cli.process import typed
    from jaxretr.evaluate.scoring import score
    from jaxretr.runtime.parallel.hosts import agree, program_facts, stops_when_asked, together

    with together(), stops_when_asked():
        agree("the beginning", {**program_facts(), "command line": typed(args)})
        names = ("pairs", "out", "queries", "corpus", "format", "split", "kind", "max_length", "batch_size", "chunk")
        scored = score(args.model, **{name: vars(args)[name] for name in names}, dtype=args.compute)
        if not jax.process_index():
            say_written(args.out, f"raw scores of {scored.pairs} pairs ({scored.format})")
