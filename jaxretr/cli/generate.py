"""`jaxretr generate`: questions about passages, by a language model."""

import argparse

from jaxretr.cli.parsing import Commands, add_processes, from_zero, given

GENERATE = "jaxretr.mining.generated:generate"


def add_commands(commands: Commands) -> None:
    parser = commands.command(
        "generate",
        "Questions about passages, written by a causal language model or a T5, filtered: training data where there are\n"
        "documents alone (InPars, GPL). Resumes automatically if interrupted. With several processes, each writes its\n"
        "share.",
        "jaxretr generate HuggingFaceTB/SmolLM2-135M-Instruct --corpus corpus.jsonl --out questions.jsonl\n"
        "  jaxretr generate flan-t5-base --corpus files:manuals --per-passage 3 --round-trip 20 --out questions.jsonl",
    )
    options = parser.options_of(GENERATE)
    options.argument("generator", "MODEL")
    options.add("corpus")
    options.add("out", metavar="FILE")
    options.add("per_passage", "limit", "format")
    options.add("template", metavar="NAME|FILE")
    options.add("max_length", "max_new_tokens")
    options = parser.options_of(GENERATE, to=parser.add_argument_group("of the draws"))
    options.add("temperature")
    options.add("top_k", type=from_zero)
    options.add("top_p")
    options.add("seed", type=from_zero)
    options = parser.options_of(GENERATE, to=parser.add_argument_group("of the filters"))
    options.add("min_words", type=from_zero)
    options.add("best_share", "round_trip")
    options.add("retriever", metavar="bm25|MODEL")
    options = parser.options_of(GENERATE)
    options.add("dtype", option="--compute")
    options.add("batch_size", "chunk")
    add_processes(parser)


def run(args: argparse.Namespace) -> None:
    """Generate and write; with several processes, the first one writes."""
    import jax

    from jaxretr.cli.outputs import say_written
    from jaxretr.cli.process import typed
    from jaxretr.mining.generated import generate
    from jaxretr.runtime.parallel.hosts import agree, program_facts, stops_when_asked, together

    with together(), stops_when_asked():
        agree("the beginning", {**program_facts(), "command line": typed(args)})
        found = generate(**given(args))
        if not jax.process_index():
            say_written(args.out, f"{len(found.examples)} of {found.generated} generated questions")
