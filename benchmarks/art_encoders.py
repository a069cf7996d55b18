"""ART from questions alone: from all-MiniLM-L6-v2 in two domains, its ablations, and a long run, on encoders that can read.

    python benchmarks/art_encoders.py domains --data DATA --runs runs/art --seeds 0 1 2
    python benchmarks/art_encoders.py teacher --data DATA --runs runs/art --scorer FOLDER
    python benchmarks/art_encoders.py whole-teacher --data DATA --runs runs/art --scorer FOLDER --beds scifact medquad
    python benchmarks/art_encoders.py weights --data DATA --runs runs/art --scorer FOLDER
    python benchmarks/art_encoders.py embedded-teacher --runs runs/art --scorer FOLDER
    python benchmarks/art_encoders.py checkpoints --data DATA --runs runs/art
    python benchmarks/art_encoders.py ablations --runs runs/art --seeds 0 1 2
    python benchmarks/art_encoders.py curve --data DATA --runs runs/art

domains: 2,500 passages of SciFact (809 claims of its train split) and of MedQuAD, with all-MiniLM-L6-v2. teacher:
SciFact's again, in 24 steps of 16 claims, with a teacher that can read: SmolLM2-135M-Instruct, whose scores of other
runs lie in scores/, so that a step asks it for few. whole-teacher: the same from all of SciFact's 5,183 passages, read to 256
tokens, and that teacher, asked for every score, on all of MedQuAD, wiki_qa or arXiv (--beds). weights: nothing is trained, but
300 judged training questions of each of these, and of the embedded data, say how far to follow a teacher, the small T5 without
--scorer. embedded-teacher: SmolLM2 for the small encoder that ships with the package, on the embedded data, in 64 steps of 16
questions. checkpoints: what the small T5 thinks of a run's checkpoints (teacher@5) next to what judgements say, on the data of
ablations and domains. ablations and curve: that encoder on the embedded data and on the whole of wiki_qa. All are runs of
configs/art_small.py, with a few settings changed. None but the long one reads a judgement: the last step's model is measured,
whatever it is; the long run's best checkpoint is chosen on wiki_qa's dev questions. What is finished is not repeated. Prints
the test questions' metrics, mean and standard deviation over the seeds, and paired tests against the encoder as it was.
"""

import argparse
import gzip
import hashlib
import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from once import encoded, kept, last_of, trained, values_of
from parts import divided, minilm, part_of, without_leaks, write_lines
from tables import cell, difference, markdown

from jaxretr.assets import QUICKSTART
from jaxretr.config import ArtConfig, load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_beir, read_corpus
from jaxretr.data.runs import write_trec
from jaxretr.evaluate.measuring import Search, run_of
from jaxretr.evaluate.run_fusion import fuse
from jaxretr.evaluate.scoring import score
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.agreement import METRIC
from jaxretr.training.runs.encoder_start import load_encoder

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/art_small.py"
METRICS = ("recall@5", "recall@20", "mrr@10", "ndcg@10")
# No judgements choose a checkpoint.
BLIND = ("--data.dev-questions", "None", "--data.dev-qrels", "None", "--train.best-metric", "loss")
PASSAGES = 2500  # of each domain
SIZES = {"test": 1000}  # of MedQuAD's questions
ASKED = 300  # training questions of a domain that choose a weight
HELD_OUT = 5  # one of so many passages is asked for in the test of the whole of it
BM25, START = "BM25", "the encoder as it comes"

# {metric: {question: value}}
OfQuestions = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Bed:
    """What is trained and tested on: a BEIR folder, the split of its training questions, and those of its test questions."""

    name: str
    folder: Path
    questions: str
    tests: tuple[str, ...]
    settings: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # A teacher's lengths.
    table: Path | None = None  # SmolLM2's scores.


EMBEDDED = Bed("embedded", QUICKSTART, "train", ("test",))
# The splits of training and test questions.
SPLITS = {"wiki_qa": ("train", ("squad", "tydi")), "arxiv": ("cl-train", ("cl-test",))}
BEDS = ("embedded", "scifact", "medquad", *SPLITS)
MINILM = (
    *("--encoder.max-passage-length", "128", "--encoder.max-question-length", "48", "--train.batch-size", "8"),
    *("--scorer.max-length", "128", "--scorer.max-question-length", "48", "--optimizer.learning-rate", "2e-5"),
    *("--train.steps", "16", "--index.refresh-every", "1000", "--encoder.dtype", "bfloat16"),
)
TARGETS = {
    "posterior target": (),
    "posterior under the start": ("--art.prior", "start"),
    "ART as published": ("--art.prior-weight", "0"),
}
SHUFFLED = "shuffled teacher"
CHECKPOINTS = {**TARGETS, "learning rate 1e-3": ("--optimizer.learning-rate", "1e-3")}
LONGER = ("--train.steps", "24", "--train.batch-size", "16", "--encoder.dtype", "float32")
WHOLE = (
    *("--encoder.max-passage-length", "256", "--encoder.max-question-length", "64", "--encoder.dtype", "float32"),
    *("--train.batch-size", "16", "--train.steps", "32", "--optimizer.learning-rate", "2e-5"),
    *("--scorer.max-length", "256", "--scorer.max-question-length", "64", "--index.refresh-every", "1000"),
)
LANGUAGE_MODEL = (
    *("--scorer.max-length", "384", "--scorer.max-question-length", "64"),  # As the table was made.
    *("--scorer.chunk", "2"),  # Few pairs of a step are new.
)
SCORES = Path(__file__).parent / "scores"
SCIFACT_TABLE, EMBEDDED_TABLE = SCORES / "scifact_smollm2.jsonl.gz", SCORES / "embedded_smollm2.jsonl.gz"
READS_EMBEDDED = ("--scorer.max-length", "192", "--scorer.max-question-length", "64", "--scorer.chunk", "2")
TWICE_AS_LONG = ("--train.steps", "64", "--index.refresh-every", "32")
OF_TABLE = ("K = 2", "teacher temperature 1", "student temperature 1", "no refresh", SHUFFLED)
CURVE_STEPS = 200
ABLATIONS = {
    "as configured": (),
    "published target": ("--art.prior-weight", "0"),
    "published target, teacher temperature 1": ("--art.prior-weight", "0", "--art.teacher-temperature", "1"),
    "K = 2": ("--art.top-k", "2"),
    "K = 32": ("--art.top-k", "32"),
    "teacher temperature 1": ("--art.teacher-temperature", "1"),
    "student temperature 1": ("--art.temperature", "1"),
    "no refresh": ("--index.refresh-every", "1000"),
    "refresh every 4 steps": ("--index.refresh-every", "4"),
    "write-back": ("--index.write-back",),
    "learning rate 1e-3": ("--optimizer.learning-rate", "1e-3"),
    "learning rate 1e-3, write-back": ("--optimizer.learning-rate", "1e-3", "--index.write-back"),
    SHUFFLED: ("--art.shuffle-teacher",),
}


def train(bed: Bed, name: str, words: Sequence[str], seed: int, eval_every: int, args: argparse.Namespace) -> Path:
    """Runs an arm to its end, unless that has been done; returns its folder."""
    data = ("--data.corpus", bed.folder, "--data.questions", bed.folder, "--data.questions-split", bed.questions)
    settings = (*data, *BLIND, "--data.token-cache", args.runs / "tokens", *bed.settings, *words)
    often = ("--train.eval-every", eval_every, "--train.save-every", eval_every, "--train.seed", seed)
    return trained(CONFIG, run_folder(bed, name, seed, args), (*settings, *often, *args.settings))


def run_folder(bed: Bed, name: str, seed: int, args: argparse.Namespace) -> Path:
    """Where an arm's run of a seed is."""
    return args.runs / f"{bed.name}_{name.replace(' ', '_').replace(',', '')}_{seed}"


def measure(bed: Bed, name: str, search_in: Callable[[Corpus], Search], args: argparse.Namespace) -> OfQuestions:
    """A system's values of all test questions; from a file where they are there."""
    path = args.runs / "measured" / f"{bed.name}_{name}.json"
    of_splits = kept(path, lambda: values_of(search_in, bed.folder, bed.tests, METRICS))
    return {
        metric: {question: value for of_split in of_splits.values() for question, value in of_split[metric].items()}
        for metric in METRICS
    }


def compare_arms(
    bed: Bed, arms: Mapping[str, Sequence[str]], args: argparse.Namespace, eval_every: int = 10_000
) -> None:
    """Trains and measures every arm with every seed, and prints them next to BM25 and the encoder as it comes."""
    found: dict[str, list[OfQuestions]] = {}
    config = load(CONFIG, last_of([*bed.settings, *args.settings]))
    assert isinstance(config, ArtConfig)
    found[BM25] = [measure(bed, BM25, bm25_search, args)]
    found[START] = [measure(bed, "start", encoded(lambda: load_encoder(config.encoder)), args)]
    for seed in args.seeds:
        for name, words in arms.items():
            run = train(bed, name, words, seed, eval_every, args)
            model = encoded(partial(DualEncoder.from_pretrained, run))
            found.setdefault(name, []).append(measure(bed, run.name, model, args))
    rows = {
        name: [cell([100 * statistics.fmean(values[metric].values()) for values in of_seeds]) for metric in METRICS]
        for name, of_seeds in found.items()
    }
    asked = len(found[BM25][0][METRICS[0]])
    print(f"\n{bed.name}: {asked} test questions, {len(read_corpus(bed.folder))} passages, {len(args.seeds)} seeds\n")
    print(markdown(METRICS, rows) + "\n")
    for name in arms:
        for metric in METRICS:
            first, second = ([values[metric] for values in found[system]] for system in (name, START))
            print(f"{name} - {START}, {metric}: {difference(first, second)}")


def parts(args: argparse.Namespace) -> list[Bed]:
    start = (*MINILM, "--encoder.path", str(args.model or minilm()))
    medquad = divided(args.data / "medquad", args.runs / "medquad", PASSAGES, SIZES, "train")
    return [
        Bed(name, folder, "train", ("test",), start)
        for name, folder in (("medquad", medquad), ("scifact", scifact_part(args)))
    ]


def domains(args: argparse.Namespace) -> None:
    for bed in parts(args):
        compare_arms(bed, {name: TARGETS[name] for name in args.arms or TARGETS}, args)


def checkpoints(args: argparse.Namespace) -> None:
    """What the teacher thinks of a run's checkpoints, and what the judgements of its corpus say."""
    rows = {}
    for bed in (bed for bed in (EMBEDDED, *parts(args)) if bed.name in (args.beds or BEDS)):
        judged = f"{bed.folder.name}:mrr@10"
        for name in args.arms or CHECKPOINTS:
            words = ("--data.held-out", "64", "--train.best-metric", METRIC, "--train.suites", str(bed.folder))
            steps = load(CONFIG, last_of((*bed.settings, *args.settings))).train.steps
            found = []
            for seed in args.seeds:
                run = train(bed, f"checkpoints {name}", (*words, *CHECKPOINTS[name]), seed, steps // 4, args)
                found.append([(line[METRIC], 100 * line[judged]) for line in read_metrics(run) if METRIC in line])
            pairs = [pair for of_run in found for pair in combinations(of_run, 2) if pair[0][1] != pair[1][1]]
            alike = sum((one[0] < other[0]) == (one[1] < other[1]) for one, other in pairs)
            values = ([of_run[0][1] for of_run in found], [of_run[-1][1] for of_run in found])
            chosen = ([max(of_run)[1] for of_run in found], [max(value for _, value in of_run) for of_run in found])
            rows[f"{bed.name}, {name}"] = [*map(cell, (*values, *chosen)), f"{alike} of {len(pairs)}"]
    columns = ("start", "last", f"best by {METRIC}", "best by judgements", "pairs of checkpoints in the same order")
    print("\nMRR@10 on judged questions of the corpus\n\n" + markdown(columns, rows))


def scifact_part(args: argparse.Namespace) -> Path:
    return part_of(args.data / "scifact", args.runs / "scifact", ["train", "test"], PASSAGES)


def scores_in(corpus: Corpus, table: Path) -> Iterator[dict[str, Any]]:
    """The lines of a table of scores, without the passages that a part of the corpus lacks."""
    with gzip.open(table, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            pairs = [pair for pair in zip(line["document_ids"], line["scores"], strict=True) if pair[0] in corpus]
            yield {**line, "document_ids": [id for id, _ in pairs], "scores": [score for _, score in pairs]}


def teacher(args: argparse.Namespace) -> None:
    start = (*MINILM, *LONGER, "--encoder.path", str(args.model or minilm()))
    bed = Bed("scifact_longer", scifact_part(args), "train", ("test",), start, LANGUAGE_MODEL, SCIFACT_TABLE)
    compare_teachers(bed, (*TARGETS, SHUFFLED), args)


def whole(name: str, args: argparse.Namespace) -> Bed:
    """All passages of a data set, or the embedded ones."""
    if name == "embedded":
        return EMBEDDED
    encoder = ("--encoder.path", str(args.model or minilm()))
    if name == "scifact":
        reads = (LANGUAGE_MODEL, SCIFACT_TABLE)
        return Bed("scifact_whole", args.data / name, "train", ("test",), (*WHOLE, *encoder), *reads)
    start = (*MINILM, *LONGER, *encoder)
    if name == "medquad":
        folder = without_leaks(args.data / name, args.runs / "medquad_whole", HELD_OUT)
        return Bed("medquad_whole", folder, "train", ("test",), start)
    questions, tests = SPLITS[name]
    label = f"{name}_{args.passages or 'whole'}"
    folder = part_of(args.data / name, args.runs / label, (questions, *tests), args.passages)
    return Bed(label, folder, questions, tests, start)


def whole_teacher(args: argparse.Namespace) -> None:
    for name in args.beds or ("scifact",):
        compare_teachers(whole(name, args), (*TARGETS, SHUFFLED), args)


def weights(args: argparse.Namespace) -> None:
    """Judged training questions of each domain choose the weight of a teacher's scores: how far it is to be followed."""
    rows = {}
    for bed in (whole(name, args) for name in args.beds or BEDS):
        config = load(CONFIG, last_of((*bed.settings, *args.settings)))
        assert isinstance(config, ArtConfig)
        beir = read_beir(bed.folder, bed.questions)
        asked = sorted(beir.questions, key=lambda each: hashlib.md5(f"x{each.id}".encode()).hexdigest())[:ASKED]
        teacher = args.scorer or Path(config.scorer.path)
        first, scored = (args.runs / f"{bed.name}_{name}.trec" for name in ("first", teacher.name))
        if not first.exists():
            search = encoder_search(load_encoder(config.encoder), beir.corpus, None)
            write_trec(first, run_of(search, asked, config.art.top_k))
        if not scored.exists():
            lengths = {"max_length": config.scorer.max_length, "dtype": config.scorer.dtype}
            score(teacher, first, scored, queries=bed.folder, corpus=bed.folder, **lengths)
        judged = {question.id: beir.qrels[question.id] for question in asked}
        curve = fuse([first, scored], tune=judged, metric="mrr@10").curve
        assert curve is not None
        print(curve.as_table(), flush=True)
        weight = curve.choice.weight
        figures = (f"{100 * value:.1f}" for value in (*curve.alone, curve.choice.value))
        rows[bed.name] = [*figures, f"{weight:.3g}", f"{config.art.temperature / weight:.2g}" if weight else ""]
    print("\nMRR@10 of the first passages, and the weight of the teacher that is best\n")
    print(markdown(("encoder", "teacher", "both", "weight", "art.teacher_temperature"), rows))


def embedded_teacher(args: argparse.Namespace) -> None:
    lengths = {"settings": TWICE_AS_LONG, "reads": READS_EMBEDDED}
    bed = replace(EMBEDDED, name="embedded_longer", table=EMBEDDED_TABLE, **lengths)
    compare_teachers(bed, (*TARGETS, *OF_TABLE), args)


def compare_teachers(bed: Bed, of_it: Sequence[str], args: argparse.Namespace) -> None:
    """Compares arms of a language model, some of whose scores a table may have, with the small T5's."""
    if not args.scorer:
        raise SystemExit(
            f"the part `{args.part}` needs --scorer FOLDER, of SmolLM2-135M-Instruct or with a --table of its own"
        )
    name = args.scorer.name
    reads = ("--scorer.path", str(args.scorer), *bed.reads)
    if table := args.table or bed.table:
        known = args.runs / f"{bed.name}_{name}_scores.jsonl"
        write_lines(known, scores_in(read_corpus(bed.folder), table))
        reads += ("--table.path", str(known))
    words = {**ABLATIONS, **TARGETS}
    arms = {f"{name}, {arm}": (*reads, *words[arm]) for arm in of_it}
    arms |= {f"small T5, {target}": words for target, words in TARGETS.items()}
    compare_arms(bed, {name: arms[name] for name in args.arms or arms}, args)


def ablations(args: argparse.Namespace) -> None:
    compare_arms(EMBEDDED, {name: ABLATIONS[name] for name in args.arms or ABLATIONS}, args)


def curve(args: argparse.Namespace) -> None:
    """A long run on the whole of wiki_qa; prints what the dev questions say along it."""
    folder = args.data / "wiki_qa"
    judged = ("--data.dev-questions", folder, "--data.dev-qrels", folder / "qrels/dev.tsv")
    dev = (*judged, "--train.best-metric", "ndcg@10")
    words = (*dev, "--train.steps", CURVE_STEPS, "--index.refresh-every", CURVE_STEPS // 4)
    bed = Bed("wiki_qa", folder, "train", ("squad", "tydi"))
    compare_arms(bed, {"long": [str(word) for word in words]}, args, eval_every=CURVE_STEPS // 4)
    for seed in args.seeds:
        lines = [line for line in read_metrics(args.runs / f"wiki_qa_long_{seed}") if "ndcg@10" in line]
        points = (f"{line['step']}: {100 * line['recall@20']:.1f} {100 * line['ndcg@10']:.1f}" for line in lines)
        print(f"dev recall@20 and nDCG@10 by steps, seed {seed}: " + "; ".join(points))


PARTS = {
    "domains": domains,
    "teacher": teacher,
    "whole-teacher": whole_teacher,
    "weights": weights,
    "embedded-teacher": embedded_teacher,
    "checkpoints": checkpoints,
    "ablations": ablations,
    "curve": curve,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=tuple(PARTS))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--runs", type=Path, default=Path("runs/art"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", help="only these")
    parser.add_argument("--beds", nargs="+", choices=BEDS, help="the data of whole-teacher, weights and checkpoints")
    parser.add_argument("--passages", type=int, default=0, help="of wiki_qa and arXiv (0: all)")
    parser.add_argument("--model", type=Path, help="another encoder in MiniLM's place")
    parser.add_argument("--scorer", type=Path, help="a causal language model's folder, for the parts with a teacher")
    parser.add_argument(
        "--table", type=Path, help="its scores, as `jaxretr mine scores` writes them, gzipped; by default SmolLM2's"
    )
    parser.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further settings of every run, last")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    PARTS[args.part](args)


if __name__ == "__main__":
    main()
