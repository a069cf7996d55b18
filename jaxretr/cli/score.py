"""`jaxretr score`: the scores of pairs of question and passage, by a cross-encoder or another scorer."""

import argparse

from jaxretr.cli.parsing import Commands, add_processes, given


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "score",
        "Score pairs of question and passage with a cross-encoder, a causal language model or a T5: a training set, a\n"
        "run, or rows of pairs. Scores are raw: logits without a sigmoid, or mean log-likelihoods. Resumes automatically\n"
        "if interrupted. With several processes, each scores its share.",
        "jaxretr score cross-encoder/ms-marco-MiniLM-L6-v2 --pairs train.json --out scored.json\n"
        "  jaxretr score reranker --pairs run.trec --queries queries.jsonl --corpus corpus.jsonl --out rescored.trec",
    )
    options = parser.options_of("jaxretr.evaluate.scoring:score")
    options.argument("scorer", "MODEL")
    options.add("pairs", "out", "queries", "corpus", "format", "split", "chunk")
    options = parser.options_of("jaxretr.evaluate.scoring:score", to=parser.add_argument_group("of MODEL"))
    options.add("kind", "max_length")
    options.add("dtype", option="--compute", default="auto")
    options.add("batch_size")
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
        scored = score(**given(args))
        if not jax.process_index():
            say_written(args.out, f"raw scores of {scored.pairs} pairs ({scored.format})")
