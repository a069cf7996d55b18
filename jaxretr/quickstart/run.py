"""The quickstart: a retriever learnt from questions alone, on data that ships with the package.

Two systems of the library take part, and neither trains on which passage answers which question. A lexical model learns
BM25's ranking from sentences of the passages (SPAR). Beside it, and with the score of both, the small encoder is
trained on 3,755 questions by ART, whose teacher is a frozen T5. What comes out is one dense model, the concatenation of
both. 423 dev questions with judgements choose the weight of the lexical score and the best checkpoint. It is measured
on 1,041 other questions, next to BM25 and to a control that must not learn: the same steps with the teacher's scores
dealt out at random.
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxretr.assets import QUICKSTART, REPHRASED
from jaxretr.config import Joint, Train
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.readers import BeirSet, read_beir
from jaxretr.data.typos import TypoGenerator
from jaxretr.evaluate.measuring import Search, TestSet
from jaxretr.evaluate.report import Report
from jaxretr.evaluate.retrieval import retrieval_metrics
from jaxretr.evaluate.searches import bm25_search
from jaxretr.evaluate.significance import printed_p
from jaxretr.indexes.bm25.words import stems_of
from jaxretr.indexes.exact import ExactIndex
from jaxretr.mining.lexical import mine_lexical
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.quickstart.configs import config, lexical_config
from jaxretr.runtime.errors import at_least
from jaxretr.runtime.storage.files import atomic_write
from jaxretr.training.loop import train
from jaxretr.training.metrics_log import read_best, read_metrics
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.report.run_report import write_page
from jaxretr.training.runs.encoder_start import load_encoder
from jaxretr.training.teacher_scores import mine_scores

log = logging.getLogger(__name__)

SHOWN = ("recall@5", "recall@20", "recall@100", "mrr@10", "ndcg@10")
BM25, ENCODER, LEXICAL = "BM25", "the encoder as it ships", "the lexical model (SPAR)"
BEFORE, AFTER, CONTROL = "both, before ART", "both, after ART", "both, after ART with a shuffled teacher"
DEPTH = 100
# Number of held-out sentences, among those that the lexical model learns from; they choose its best checkpoint.
DEV_SENTENCES = 500
EXAMPLES = 3
# Weights of the lexical score to choose from.
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0)
CHOSEN_BY = "ndcg@10"
# A question has "other words" if its passage lacks at least this share of its content words.
LACKING = 0.5


def main(workdir: Path, seed: int = 0, steps: int | None = None) -> dict[str, dict[str, float]]:
    """Run the quickstart and print its tables.

    Args:
      workdir: output folder. It receives the runs lexical/, art/ and shuffled_teacher/, index/, learning_curve.png,
        report.html and results.json. An interrupted quickstart resumes.
      seed: seed of the question order and of the control.
      steps: training steps of each ART run; by default the config's.

    Returns:
      The metrics of each row of the table, on the test questions.
    """
    workdir = workdir.expanduser()
    at_least(1, steps=steps)
    test = read_beir(QUICKSTART, "test")
    log.info("%d passages, %d test questions", len(test.corpus), len(test.questions))
    settings = config(str(workdir))
    settings = dataclasses.replace(settings, train=_with(settings.train, seed, steps))
    bm25 = bm25_search(test.corpus)

    log.info("1. SPAR: a lexical model learns BM25's ranking from sentences of the passages; no question is read")
    plan = lexical_config(str(workdir))
    mine_lexical(corpus=str(QUICKSTART), out=plan.data.train, dev=DEV_SENTENCES)
    train(dataclasses.replace(plan, train=_with(plan.train, seed, None)), workdir / "lexical")
    lexical = DualEncoder.from_pretrained(workdir / "lexical")
    encoder = load_encoder(settings.encoder)
    passages = list(test.corpus)
    lexical_passages, first_passages = lexical.encode_passages(passages), encoder.encode_passages(passages)
    dev = read_beir(QUICKSTART, "dev")
    weight = _weight(encoder, first_passages, lexical, lexical_passages, dev)
    before = CombinedEncoder([encoder, lexical], [1.0, weight])
    log.info("the lexical score's weight, chosen on %d dev questions: %g", len(dev.questions), weight)

    log.info("2. ART: the encoder learns beside it from the training questions alone")
    joint = dataclasses.replace(settings, joint=Joint(str(workdir / "lexical"), weight))
    train(joint, workdir / "art")
    log.info(
        "3. the control, which must not learn: the same with a shuffled teacher; scores that ART's run knows are taken from it"
    )
    mine_scores(workdir / "art", workdir / "scores.jsonl")
    shuffled = dataclasses.replace(joint.art, shuffle_teacher=True)
    known = dataclasses.replace(joint.table, path=str(workdir / "scores.jsonl"))
    control_run = dataclasses.replace(joint, name="art_small_control", art=shuffled, table=known)
    train(control_run, workdir / "shuffled_teacher")

    log.info("4. the test questions")
    model, control = (CombinedEncoder.from_pretrained(workdir / name) for name in ("art", "shuffled_teacher"))

    def index_of(vectors: np.ndarray) -> ExactIndex:
        # The lexical part is frozen, so its vectors do not change.
        return ExactIndex(np.concatenate([vectors, lexical_passages], axis=1), ids=test.corpus.ids)

    def passages_of(combined: CombinedEncoder, run: Path) -> np.ndarray:
        best = read_best(run)
        assert best is not None, "both runs have dev questions"
        # A run whose start was best leaves the encoder as it was.
        return combined.parts[0].encode_passages(passages) if best["step"] else first_passages

    index = index_of(passages_of(model, workdir / "art"))
    index.save(workdir / "index")
    searches: dict[str, Search] = {
        BM25: bm25,
        ENCODER: _search(encoder, ExactIndex(first_passages, ids=test.corpus.ids)),
        LEXICAL: _search(lexical, ExactIndex(lexical_passages, ids=test.corpus.ids)),
        BEFORE: _search(before, index_of(first_passages)),
        AFTER: _search(model, index),
        CONTROL: _search(control, index_of(passages_of(control, workdir / "shuffled_teacher"))),
    }
    report = _measure(searches, test)
    table = {name: report.means[name] for name in searches}
    harder = harder_questions(test)
    on_harder = {name: _measure({BM25: bm25, AFTER: searches[AFTER]}, questions) for name, questions in harder.items()}
    with atomic_write(workdir / "results.json") as file:
        content = {"seed": seed, "steps": settings.train.steps, "lexical_weight": weight, "test": table}
        content["harder"] = {name: {**found.means, "questions": found.questions} for name, found in on_harder.items()}
        json.dump(content, file, indent=2)
    draw_curve(workdir)
    runs = [RunFiles.read(workdir / name) for name in ("art", "shuffled_teacher", "lexical")]
    on = TestSet(test.questions, test.corpus, test.qrels, source="the test questions")
    write_page(runs, report, on, workdir / "report.html", shown=(BM25, BEFORE, AFTER))

    print(f"\n{len(test.questions)} test questions, none of them trained on; {len(test.corpus)} passages. In percent:")
    print_table(table)
    gain = report.against[report.names.index(BM25) - 1].comparisons
    print("\nAfter ART against BM25: " + ", ".join(
        f"{name} {100 * gain[name].difference:+.1f} [{100 * gain[name].low:+.1f}, {100 * gain[name].high:+.1f}], "
        f"{_p(gain[name].p_value)}" for name in ("recall@20", "mrr@10")
    ))  # fmt: skip
    print_harder(on_harder)
    show_examples(model, index, test, test.questions[:: len(test.questions) // EXAMPLES][:EXAMPLES])
    print(f"\nmodel {workdir}/art/model   index {workdir}/index   report {workdir}/report.html")
    return table


def _with(settings: Train, seed: int, steps: int | None) -> Train:
    return dataclasses.replace(settings, seed=seed, steps=steps or settings.steps)


def _p(value: float) -> str:
    printed = printed_p(value)
    return f"p {printed}" if printed.startswith("<") else f"p = {printed}"


def _weight(
    encoder: DualEncoder, passages: np.ndarray, lexical: DualEncoder, lexical_passages: np.ndarray, dev: BeirSet
) -> float:
    """Return the weight of the lexical score that suits the dev questions best, as SPAR chooses it."""
    questions = [question.text for question in dev.questions]
    base, other = encoder.encode_queries(questions) @ passages.T, lexical.encode_queries(questions) @ lexical_passages.T

    def metric(weight: float) -> float:
        scores = base + weight * other
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        found = np.take_along_axis(scores, rows, axis=1)
        return retrieval_metrics(dev.corpus, dev.questions, dev.qrels, found, rows)[CHOSEN_BY]

    return max(WEIGHTS, key=metric)


def _search(encoder: DualEncoder | CombinedEncoder, index: ExactIndex) -> Search:
    return lambda questions, k: index.search(encoder.encode_queries([question.text for question in questions]), k)


def _measure(searches: dict[str, Search], on: BeirSet) -> Report:
    """Search for the questions with each system, and compare the model after ART with the others."""
    test = TestSet(on.questions, on.corpus, on.qrels)
    runs = {name: test.search(search, DEPTH) for name, search in searches.items()}
    return Report.of([(AFTER, runs.pop(AFTER)), *runs.items()], test, SHOWN)


# ---- questions that words alone do not answer ------------------------------------------------------------------------


def harder_questions(test: BeirSet) -> dict[str, BeirSet]:
    """Return the test questions with typos, those whose passages lack their words, and some in other words."""
    texts = [question.text for question in test.questions]
    misspelt = TypoGenerator("dictionary").texts(texts, 0, range(len(texts)))
    typos = [Question(each.id, text) for each, text in zip(test.questions, misspelt, strict=True)]
    lacking = [question for question in test.questions if _lacks_words(question, test)]
    rephrased = read_questions(REPHRASED)
    return {
        "with typos": _of(test, typos),
        "whose passage lacks half of their words": _of(test, lacking),
        "said in other words by hand": _of(test, rephrased),
    }


def _of(test: BeirSet, questions: list[Question]) -> BeirSet:
    return dataclasses.replace(test, questions=questions, qrels={each.id: test.qrels[each.id] for each in questions})


def _lacks_words(question: Question, test: BeirSet) -> bool:
    words = set(stems_of(question.text)) - _QUESTION_WORDS
    rows = [test.corpus.row(id) for id, grade in test.qrels[question.id].items() if grade > 0]
    found = {stem for row in rows for stem in stems_of(f"{test.corpus.titles[row]} {test.corpus.texts[row]}")}
    return bool(words) and len(words - found) >= LACKING * len(words)


# Function words and question words, which say nothing about a question's subject.
_QUESTION_WORDS = set(
    stems_of(
        "a an the of in on at to for from by with and or as is are was were be been do does did has have had can could "
        "will would what which who whom whose when where why how it its this that there s"
    )
)


# ---- what is printed and drawn ---------------------------------------------------------------------------------------


def print_table(table: dict[str, dict[str, float]]) -> None:
    """Print the rows' metrics in percent."""
    width = max(map(len, table))
    print(f"{'':{width}}" + "".join(f"{name:>12}" for name in SHOWN))
    for name, values in table.items():
        print(f"{name:{width}}" + "".join(f"{100 * values[measure]:12.1f}" for measure in SHOWN))


def print_harder(found: dict[str, Report]) -> None:
    """Print the gain of the model over BM25 on questions that words alone do not answer."""
    print("\nWhat dense adds (recall@20 and MRR@10, in percent):")
    width = max(map(len, found)) + 7
    print(f"{'questions':{width}}{'BM25':>14}{'after ART':>16}{'difference in MRR@10':>32}")
    for name, report in found.items():
        means, gain = report.means, report.against[0].comparisons["mrr@10"]
        cells = [
            f"{100 * means[system]['recall@20']:.1f} {100 * means[system]['mrr@10']:5.1f}" for system in (BM25, AFTER)
        ]
        interval = f"{100 * gain.difference:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}], {_p(gain.p_value)}"
        print(f"{f'{report.questions:5} {name}':{width}}{cells[0]:>14}{cells[1]:>16}{interval:>32}")


def show_examples(model: CombinedEncoder, index: ExactIndex, test: BeirSet, questions: Sequence[Question]) -> None:
    """Print the first three passages found for some questions, with title and score; + marks those that answer it."""
    corpus: Corpus = test.corpus
    print("\nThe first passages found for some questions; + marks those that answer them:")
    scores, rows = index.search_rows(model.encode_queries([question.text for question in questions]), 3)
    for question, found in zip(questions, zip(scores, rows, strict=True), strict=True):
        print(f"\n{question.text}?")
        for score, row in zip(*found, strict=True):
            right = "+" if test.qrels[question.id].get(corpus.ids[row], 0) > 0 else " "
            print(f"{right} {score:8.2f}  {corpus.titles[row]}: {corpus.texts[row][:80]}...")


def draw_curve(workdir: Path) -> None:
    """Draw recall@20 of the dev questions over the steps of both ART runs."""
    from jaxretr.evaluate import plots

    plt = plots.pyplot()
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, label in (("art", "ART"), ("shuffled_teacher", "shuffled teacher")):
        points = [(line["step"], line["recall@20"]) for line in read_metrics(workdir / name) if "recall@20" in line]
        steps, values = np.array(points).T
        axes.plot(steps, 100 * values, marker="o", label=label)
    axes.set(xlabel="step", ylabel="recall@20 on dev questions (%)", title="Learning from questions alone")
    axes.grid(alpha=0.3)
    axes.legend()
    plots.save(figure, workdir / "learning_curve.png")
