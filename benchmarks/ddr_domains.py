"""DDR across domains: relevance learnt on computer-vision abstracts, searched in other fields, and the paper's ablations.

    python benchmarks/ddr_domains.py --data DATA --runs runs/ddr --seeds 0 1 2
    python benchmarks/ddr_domains.py --embedded --runs runs/ddr_embedded --seeds 0      # the data in the repository

DATA holds the BEIR folders arxiv (titles ask for abstracts; splits cv-train, cv-dev, cv-test, cl-dev, cl-test), medquad
and scifact (split test). The source is arXiv's cs.CV, whose 22,000 training titles are the only judgements that anything
is trained on; the targets are cs.CL, medical answers, and SciFact. All encoders begin from `--start`: by default the small
one of the package, which retrieves already, or a new one that has only filled in words of the source. What is finished is
not repeated.

Rows (Zhan et al. 2023, their names in brackets): BM25; the whole encoder fine-tuned (DR), from the start and after the
source's masked language modelling; the relevance module in its own source; the same with the target's domain module
(DDR); without disentangled fine-tuning (DDR\\DF); without sequential initialisation (DDR\\SI); with another target's domain
module; LoRA and the parallel adapter alone; and the whole encoder fine-tuned anew after each target's masked language
modelling (DDR\\D). Prints means and standard deviations over the seeds, with paired randomisation tests on the questions'
means; then what a further domain costs; and draws recall against the steps of the domain module.
"""

import argparse
import csv
import dataclasses
import gzip
import json
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from once import kept, last_of
from tables import cell, mean_over_seeds

from jaxretr.assets import ARXIV_LANGUAGE, ARXIV_VISION, ENCODER_SMALL
from jaxretr.config import ContrastiveConfig, load
from jaxretr.data.corpus import Corpus
from jaxretr.data.readers import read_beir
from jaxretr.evaluate import metrics
from jaxretr.evaluate.significance import compare
from jaxretr.indexes.bm25 import Bm25Index
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.adapter import Adapter
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.training.metrics_log import read_metrics
from jaxretr.training.runs.encoder_start import load_encoder

ROOT = Path(__file__).parents[1]
METRICS = ("recall@100", "ndcg@10")
QUESTIONS = 1000
DEPTH = 100

# {metric: {question: value}}
Values = dict[str, dict[str, float]]


# ---- data ------------------------------------------------------------------------------------------------------------


def cut_arxiv(data: Path, out: Path) -> None:
    """Cuts the arxiv folder into one BEIR folder a field, each with its own corpus."""
    judged = {
        field: {
            split: list(csv.reader((data / f"qrels/{field}-{split}.tsv").open(), delimiter="\t"))[1:]
            for split in ("train", "dev", "test")
        }
        for field in ("cv", "cl")
    }
    for field, splits in judged.items():
        folder = out / field
        if (folder / "qrels/test.tsv").exists():
            continue
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        rows = [row for split in splits.values() for row in split]
        for name, ids in (("corpus", {row[1] for row in rows}), ("queries", {row[0] for row in rows})):
            with (
                gzip.open(data / f"{name}.jsonl.gz", "rt") as lines,
                gzip.open(folder / f"{name}.jsonl.gz", "wt") as file,
            ):
                file.writelines(line for line in lines if json.loads(line)["_id"] in ids)
        for split, pairs in splits.items():
            lines = ["query-id\tcorpus-id\tscore\n", *("\t".join(pair) + "\n" for pair in pairs)]
            (folder / f"qrels/{split}.tsv").write_text("".join(lines))


class Target:
    """A domain: all of its passages for masked language modelling, a sample of questions and passages to measure on."""

    def __init__(self, name: str, folder: Path, passages: int):
        self.name, self.folder = name, folder
        beir = read_beir(folder, "test")
        questions = beir.questions
        self.questions = questions if len(questions) <= QUESTIONS else random.Random(0).sample(questions, QUESTIONS)
        self.qrels = {question.id: beir.qrels[question.id] for question in self.questions}
        judged = {passage for grades in self.qrels.values() for passage in grades}
        others = [id for id in beir.corpus.ids if id not in judged]
        spare = max(0, passages - len(judged))
        kept = judged | set(others if len(others) <= spare else random.Random(1).sample(others, spare))
        self.corpus = Corpus.from_passages(passage for passage in beir.corpus if passage.id in kept)

    def values(self, search) -> Values:
        """The metrics of each question; `search` maps texts and k to scores and ids."""
        scores, ids = search([question.text for question in self.questions], DEPTH)
        run = {
            question.id: dict(zip(names, map(float, row[: len(names)]), strict=True))
            for question, names, row in zip(self.questions, ids, scores, strict=True)
        }
        return metrics.evaluate(self.qrels, run, METRICS, per_query=True)[1]


# ---- training --------------------------------------------------------------------------------------------------------


class Lab:
    """The runs of one seed after the other, by the library's commands."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.runs = args, args.runs
        self.seconds_file = args.runs / "seconds.json"
        self.seconds: dict[str, float] = json.loads(self.seconds_file.read_text()) if self.seconds_file.exists() else {}

    def model(self, name: str) -> Path:
        return self.runs / name / "model"

    def train(self, config: str, name: str, seed: int, *words: object) -> None:
        if name in self.seconds:  # A run that was interrupted has a model, too.
            return
        settings = last_of(("--train.seed", seed, "--data.token-cache", self.runs / "tokens", *words))
        command = [sys.executable, "-m", "jaxretr", "train", ROOT / config, "--workdir", self.runs / name, *settings]
        print("$ jaxretr", *command[3:], file=sys.stderr)
        started = time.monotonic()
        subprocess.run([str(word) for word in command], check=True)
        self.seconds[name] = time.monotonic() - started
        self.seconds_file.write_text(json.dumps(self.seconds, indent=1))

    def dam(self, name: str, seed: int, corpus: Path, start: Path, steps: int, *words: object) -> None:
        sizes = ("--data.max-length", self.args.length, "--train.steps", steps, "--train.eval-every", steps // 2)
        begin = ("--data", corpus, "--start", start)
        self.train("configs/ddr_small_dam.py", name, seed, *begin, *sizes, *words, *self.args.dam_settings)

    def supervised(self, kind: str, name: str, seed: int, start: Path, *words: object) -> None:
        sizes = ("--encoder.max-passage-length", self.args.length, "--train.steps", self.args.steps)
        # The last step's model: no target's questions, and none of the source's, choose a checkpoint.
        last = ("--data.dev-questions", "None", "--data.dev-qrels", "None", "--train.best-metric", "loss")
        often = ("--train.eval-every", self.args.steps, "--train.save-every", self.args.steps)
        settings = self.args.dr_settings if kind == "dr" else self.args.rem_settings
        words = ("--data", self.args.source, "--encoder.path", start, *sizes, *last, *often, *words, *settings)
        self.train(f"configs/ddr_small_{kind}.py", name, seed, *words)


def train_main(lab: Lab, seed: int, targets: Sequence[Target]) -> None:
    """The runs of DR and DDR."""
    args, start, source = lab.args, Path(lab.args.start), lab.model("dam_source")
    lab.dam("dam_source", 0, args.source, start, args.source_steps)
    lab.supervised("dr", f"dr_{seed}", seed, start)
    lab.supervised("rem", f"rem_{seed}", seed, source)
    for target in targets:
        lab.dam(f"dam_{target.name}_{seed}", seed, target.folder, source, args.dam_steps)


def train_curve(lab: Lab, target: Target) -> None:
    """A longer run of one target's domain module, of which six checkpoints stay."""
    steps = lab.args.curve_steps
    kept = ("--train.keep", 100, "--train.save-every", steps // 6)
    lab.dam(f"dam_{target.name}_long", 0, target.folder, lab.model("dam_source"), steps, *kept)


def train_ablations(lab: Lab, seed: int, targets: Sequence[Target]) -> None:
    """The runs of the other rows, as far as they are asked for."""
    args, start, source = lab.args, Path(lab.args.start), lab.model("dam_source")
    if "DF" in args.ablations:
        lab.supervised("rem", f"rem_raw_{seed}", seed, start)
    if "SI" in args.ablations:
        for target in targets[: args.ablated]:
            lab.dam(f"dam_raw_{target.name}_{seed}", seed, target.folder, start, args.dam_steps)
    if "lora" in args.ablations:
        lab.supervised("rem", f"lora_{seed}", seed, source, "--encoder.adapter.bottleneck", 0)
    if "D" in args.ablations:
        for target in targets[: args.refined]:
            lab.supervised("dr", f"redone_{target.name}_{seed}", seed, lab.model(f"dam_{target.name}_{seed}"))
    if "source" in args.ablations:
        lab.supervised("dr", f"dr_source_{seed}", seed, source)
    if "parallel" in args.ablations:
        lab.supervised("rem", f"parallel_{seed}", seed, source, "--encoder.adapter.lora-rank", 0)


# ---- measuring -------------------------------------------------------------------------------------------------------


def rows_of(target: str, others: Sequence[str]) -> dict[str, tuple[str, str | None]]:
    """For each row of the table the run of the relevance module or whole model, and of the domain module."""
    rows: dict[str, tuple[str, str | None]] = {
        "DR": ("dr_{}", None),
        "REM in its source": ("rem_{}", None),
        "DDR": ("rem_{}", f"dam_{target}_{{}}"),
    }
    if others:
        rows["DDR, wrong domain"] = ("rem_{}", f"dam_{others[0]}_{{}}")
    return rows | {
        "DR after the source's MLM": ("dr_source_{}", None),
        "DDR\\DF (no disentangled fine-tuning)": ("rem_raw_{}", f"dam_{target}_{{}}"),
        "DDR\\SI (no sequential initialisation)": ("rem_{}", f"dam_raw_{target}_{{}}"),
        "DDR, LoRA alone": ("lora_{}", f"dam_{target}_{{}}"),
        "DDR, parallel adapter alone": ("parallel_{}", f"dam_{target}_{{}}"),
        "DDR\\D (fine-tuned anew for the domain)": (f"redone_{target}_{{}}", None),
    }


def measure(lab: Lab, target: Target, run: str | None, domain: Path | None, name: str) -> Values:
    """The values of one model on one target, from a file where they are there already; no run: the encoder that all start
    from."""

    def search() -> Values:
        if run is None:
            settings = load(ROOT / "configs/ddr_small_dr.py", ["--encoder.max-passage-length", str(lab.args.length)])
            assert isinstance(settings, ContrastiveConfig)
            model = load_encoder(dataclasses.replace(settings.encoder, path=str(lab.args.start)))
        else:
            model = DualEncoder.from_pretrained(lab.model(run))
        if domain is not None:
            model = Adapter.of(model).put_into(DualEncoder.from_pretrained(domain))
        corpus = target.corpus
        index = ExactIndex(model.encode_passages([corpus[row] for row in range(len(corpus))]), corpus.ids)
        return target.values(lambda texts, k: index.search(model.encode_queries(texts), k))

    return kept(lab.runs / f"values/{name}.json", search)


def table(lab: Lab, target: Target, targets: Sequence[Target]) -> None:
    """Prints one target's table, with tests against DDR."""
    seeds = lab.args.seeds
    names = [other.name for other in targets]
    place = names.index(target.name) if target in targets else -1
    others = [names[(place + 1) % len(names)]] if len(names) > 1 and place >= 0 else []
    rows = rows_of(target.name, others)
    if place < 0:  # the source itself
        rows = {
            "DR": ("dr_{}", None),
            "REM in its source": ("rem_{}", None),
            "DDR, wrong domain": ("rem_{}", f"dam_{names[0]}_{{}}"),
        }
    bm25 = Bm25Index.build(target.corpus)

    def lexical(texts: Sequence[str], k: int):
        scores, places = bm25.search(texts, k)
        return scores, [[target.corpus.ids[place] for place in row if place >= 0] for row in places.tolist()]

    # {row: {seed: values}}; one run of BM25, and of the encoder as it comes, is every seed's.
    found = {"BM25": dict.fromkeys(seeds, target.values(lexical))}
    found["the encoder as it comes"] = dict.fromkeys(seeds, measure(lab, target, None, None, f"{target.name}_start"))
    for row, (run, domain) in rows.items():
        found[row] = {}
        for seed in seeds:
            names = [run.format(seed), *([] if domain is None else [domain.format(seed)])]
            if all(name in lab.seconds for name in names):
                folder = None if domain is None else lab.model(names[1])
                found[row][seed] = measure(lab, target, names[0], folder, "_".join([target.name, *names]))
    print(f"\n{target.name}: {len(target.questions)} questions, {len(target.corpus)} passages")
    print(f"{'':<52}" + "".join(f"{metric:>16}{'p (to DDR)':>12}" for metric in METRICS))
    reference = found.get("DDR")
    for row, runs in found.items():
        if not runs:
            continue
        which = "" if len(runs) == len(seeds) else f" [seed {' '.join(map(str, runs))}]"
        line = f"{row + which:<52}"
        for metric in METRICS:
            means = [100 * statistics.fmean(values[metric].values()) for values in runs.values()]
            line += f"{cell(means):>16}"
            if not reference or runs is reference:
                line += f"{'':>12}"
            else:  # A row of fewer seeds is compared with DDR's of these.
                both = (mean_over_seeds([of[seed][metric] for seed in runs]) for of in (reference, runs))
                line += f"{compare(*both).p_value:>12.4f}"
        print(line)


def costs(lab: Lab, target: Target) -> None:
    """Prints what a further domain costs, against fine-tuning anew for it: seconds of each seed, and megabytes."""
    seconds = {
        kind: [round(lab.seconds[name]) for seed in lab.args.seeds if (name := pattern.format(seed)) in lab.seconds]
        for kind, pattern in (("domain module", f"dam_{target.name}_{{}}"), ("fine-tuning", "dr_{}"), ("REM", "rem_{}"))
    }
    seed = lab.args.seeds[0]
    domain, adapter = lab.model(f"dam_{target.name}_{seed}"), lab.model(f"rem_{seed}") / "adapter"
    sizes = {
        name: sum(path.stat().st_size for path in folder.rglob("*.safetensors")) / 1e6
        for name, folder in (("domain module", domain), ("REM", adapter))
    }
    print(f"\na further domain ({target.name}), seconds of wall clock with starting and compiling, a seed each:")
    print(f"  DDR:   {seconds['domain module']}, {sizes['domain module']:.1f} MB")
    print(f"  DDR\\D: the same and {seconds['fine-tuning']} of fine-tuning anew, with the source's judgements")
    print(f"  once for all domains: the relevance module, {seconds['REM']}, {sizes['REM']:.2f} MB")


def curve(lab: Lab, target: Target) -> None:
    """Draws recall@100 and nDCG@10 against the steps of the target's domain module, with DR and DDR's module of one seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    name, seed = f"dam_{target.name}_long", lab.args.seeds[0]
    points = {
        step: measure(lab, target, f"rem_{seed}", folder, f"{target.name}_rem_{seed}_{name}_{step}")
        for step, folder in dam_models(lab, name).items()
    }
    baseline = measure(lab, target, f"dr_{seed}", None, f"{target.name}_dr_{seed}")
    figure, axes = plt.subplots(1, len(METRICS), figsize=(9, 3.5))
    for metric, axis in zip(METRICS, axes, strict=True):
        heights = {step: 100 * statistics.fmean(values[metric].values()) for step, values in points.items()}
        line = 100 * statistics.fmean(baseline[metric].values())
        axis.plot([*heights], [*heights.values()], marker="o", label="DDR")
        axis.axhline(line, linestyle="--", color="grey", label="DR")
        axis.set_xlabel(f"steps of the domain module of {target.name}")
        axis.set_ylabel(metric)
        axis.legend()
        shown = ", ".join(f"{step}: {height:.1f}" for step, height in heights.items())
        print(f"{target.name}, {metric} by steps (seed {seed}): {shown}; DR {line:.1f}")
    figure.tight_layout()
    figure.savefig(lab.runs / "curve.png", dpi=120)
    print(f"curve: {lab.runs / 'curve.png'}")


def dam_models(lab: Lab, name: str) -> dict[int, Path]:
    """The models of all kept checkpoints of a run of masked language modelling, written beside it."""
    from jaxretr.config import from_json
    from jaxretr.runtime.parallel.mesh import make_mesh
    from jaxretr.training.checkpoint import Checkpoints
    from jaxretr.training.loop import build

    config = from_json(json.loads((lab.runs / name / "config.json").read_text()))
    with Checkpoints(lab.runs / name / "checkpoints", config) as checkpoints:
        folders = {step: lab.runs / f"steps/{name}_{step}" for step in checkpoints.steps}
        if not all(folder.exists() for folder in folders.values()):
            run = build(config, make_mesh(), lab.runs / name)
            for step, folder in folders.items():
                run.save_model(checkpoints.restore(run.abstract_state(), step), folder)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--data", type=Path, help="holds the folders arxiv, medquad and scifact")
    place.add_argument("--embedded", action="store_true", help="2,500 abstracts a field, cs.CL the only target")
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    start = "the encoder that everything begins from; new: a small one that has read the source alone"
    parser.add_argument("--start", default=str(ENCODER_SMALL), help=start)
    parser.add_argument("--new-steps", type=int, default=1500, help="of the new one's masked language modelling")
    parser.add_argument("--targets", nargs="+", default=["scifact", "cl", "medquad"])
    parser.add_argument("--source-steps", type=int, default=3000, help="of the source's domain module")
    parser.add_argument("--dam-steps", type=int, default=600, help="of each target's")
    parser.add_argument("--steps", type=int, default=200, help="of every supervised run")
    parser.add_argument("--length", type=int, default=64, help="tokens of a passage, and of a window")
    parser.add_argument("--passages", type=int, default=6000, help="of each target to search among")
    parser.add_argument("--ablations", nargs="*", default=["DF", "SI", "lora", "D"], help="also: source, parallel")
    parser.add_argument(
        "--curve-steps", type=int, default=1800, help="of a longer run for the first target's curve; 0: none"
    )
    parser.add_argument("--ablated", type=int, default=1, help="targets, from the first, that DDR\\SI is trained for")
    parser.add_argument("--refined", type=int, default=1, help="targets, from the first, that DDR\\D is trained for")
    for kind in ("dam", "rem", "dr", "new"):
        settings = f"overrides, in one word: --{kind}-settings='--optimizer.learning-rate 2e-4'"
        parser.add_argument(f"--{kind}-settings", type=shlex.split, default=[], help=settings)
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    if args.embedded:
        args.source, places = ARXIV_VISION, {"cl": ARXIV_LANGUAGE}
        args.targets = ["cl"]
    else:
        cut_arxiv(args.data / "arxiv", args.runs / "data")
        args.source, places = args.runs / "data/cv", {"cl": args.runs / "data/cl"}
    targets = [Target(name, places.get(name, args.data and args.data / name), args.passages) for name in args.targets]
    lab = Lab(args)
    if args.start == "new":
        words = ("--data.max-length", args.length, "--train.steps", args.new_steps)
        lab.train("configs/ddr_small_new_dam.py", "new", 0, *words, *args.new_settings, "--data", args.source)
        args.start = str(lab.model("new"))
    for stage in (train_main, train_ablations):
        for seed in args.seeds:
            stage(lab, seed, targets)
    if args.curve_steps:
        train_curve(lab, targets[0])
    for target in (*targets, Target("cv", args.source, args.passages)):
        table(lab, target, targets)
    costs(lab, targets[0])
    perplexities = {
        name: [line["perplexity"] for line in read_metrics(lab.runs / name) if "perplexity" in line]
        for name in ("dam_source", *(f"dam_{target.name}_{args.seeds[0]}" for target in targets))
    }
    print(
        "held-out perplexity, before and after: "
        + "; ".join(f"{n} {v[0]:.0f} to {v[-1]:.0f}" for n, v in perplexities.items())
    )
    if args.curve_steps:
        curve(lab, targets[0])


if __name__ == "__main__":
    main()
