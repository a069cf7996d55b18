"""The quickstart: a retriever learnt from questions alone, on data that ships with the package.

It trains the small encoder with ART on 3,755 real questions, without looking at which passage answers which, and
measures on 1,041 others. It also runs the control: the same steps with the teacher's scores dealt out at random.
"""

import dataclasses
import json
import logging
from pathlib import Path

import numpy as np

from jaxretr.assets import QUICKSTART
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.data.readers import BeirSet, read_beir
from jaxretr.errors import UsageError
from jaxretr.evaluate.retrieval import Retriever, dense_retriever, retrieval_metrics
from jaxretr.metrics_log import read_metrics
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.quickstart_config import config
from jaxretr.recipes.encoder_start import load_encoder
from jaxretr.search.bm25 import Bm25Index
from jaxretr.search.exact import ExactIndex
from jaxretr.storage.files import atomic_write
from jaxretr.train import train

log = logging.getLogger(__name__)

SHOWN = ("recall@5", "recall@20", "recall@100", "mrr@10", "acc@20")
EXAMPLES = 3


def main(workdir: Path, seed: int = 0, steps: int | None = None) -> dict[str, dict[str, float]]:
    """Runs the quickstart and prints its table.

    Args:
      workdir: receives the runs art/ and shuffled_teacher/, index/, learning_curve.png and results.json. An
        interrupted quickstart resumes.
      seed: of the order of the questions and of the control's shuffling.
      steps: training steps of both runs; None is the config's number.

    Returns:
      The metrics of each row of the table, on the test questions.
    """
    if steps is not None and steps < 1:
        raise UsageError(f"--steps {steps}: at least one step")
    settings = config(str(workdir))
    settings = dataclasses.replace(
        settings, train=dataclasses.replace(settings.train, seed=seed, steps=steps or settings.train.steps)
    )
    control = dataclasses.replace(
        settings, name="art_small_control", art=dataclasses.replace(settings.art, shuffle_teacher=True)
    )

    test = read_beir(QUICKSTART, "test")
    log.info("%d passages, %d test questions", len(test.corpus), len(test.questions))
    bm25 = Bm25Index.build(test.corpus)
    table = {"BM25": figures(bm25.search, test)}
    table["initial encoder"] = figures(dense_retriever(load_encoder(settings.encoder), test.corpus), test)

    log.info("ART from the training questions alone")
    train(settings, workdir / "art")
    model = DualEncoder.from_pretrained(workdir / "art")
    embeddings = model.encode_passages(list(test.corpus))
    index = ExactIndex(embeddings, ids=test.corpus.ids)
    index.save(workdir / "index")
    table["after ART"] = figures(lambda questions, k: index.search_rows(model.encode_queries(questions), k), test)

    log.info("the control: the same with a shuffled teacher")
    train(control, workdir / "shuffled_teacher")
    control_model = DualEncoder.from_pretrained(workdir / "shuffled_teacher")
    table["after ART, shuffled teacher"] = figures(dense_retriever(control_model, test.corpus), test)

    with atomic_write(workdir / "results.json") as file:
        json.dump({"seed": seed, "steps": settings.train.steps, "test": table}, file, indent=2)
    draw_curve(workdir)
    print(f"\n{len(test.questions)} test questions, none of them trained on; {len(test.corpus)} passages")
    print_table(table)
    show_examples(model, index, test.corpus, test.questions[:: len(test.questions) // EXAMPLES][:EXAMPLES])
    print(f"\nmodel {workdir}/art/model   index {workdir}/index   learning curve {workdir}/learning_curve.png")
    return table


def figures(retriever: Retriever, test: BeirSet) -> dict[str, float]:
    """The metrics of one row of the table."""
    scores, rows = retriever([question.text for question in test.questions], 100)
    return retrieval_metrics(test.corpus, test.questions, test.qrels, scores, rows)


def print_table(table: dict[str, dict[str, float]]) -> None:
    """Prints the rows' metrics in percent."""
    width = max(map(len, table))
    print(f"{'':{width}}" + "".join(f"{name:>12}" for name in SHOWN))
    for name, values in table.items():
        print(f"{name:{width}}" + "".join(f"{100 * values[measure]:12.1f}" for measure in SHOWN))


def show_examples(model: DualEncoder, index: ExactIndex, corpus: Corpus, questions: list[Question]) -> None:
    """Prints the first three passages found for some questions, with title and score."""
    scores, rows = index.search_rows(model.encode_queries([question.text for question in questions]), 3)
    for question, found in zip(questions, zip(scores, rows, strict=True), strict=True):
        print(f"\n{question.text}?")
        for score, row in zip(*found, strict=True):
            print(f"  {score:8.2f}  {corpus.titles[row]}: {corpus.texts[row][:80]}...")


def draw_curve(workdir: Path) -> None:
    """Draws recall@20 of the dev questions over the steps of both runs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for name, label in (("art", "ART"), ("shuffled_teacher", "shuffled teacher")):
        points = [(line["step"], line["recall@20"]) for line in read_metrics(workdir / name) if "recall@20" in line]
        steps, values = np.array(points).T
        axes.plot(steps, 100 * values, marker="o", label=label)
    axes.set(xlabel="step", ylabel="recall@20 on dev questions (%)", title="Learning from questions alone")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(workdir / "learning_curve.png", dpi=120)
    plt.close(figure)
