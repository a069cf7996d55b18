"""SPAR beside an encoder that can read: a Lambda of the target corpus next to all-MiniLM-L6-v2, on three corpora.

    python benchmarks/spar_minilm.py --data DATA --runs runs/spar_minilm --seeds 0 1 2
    python benchmarks/spar_minilm.py --data DATA --runs runs/spar_layer --config configs/spar_small_layer.py --untrained
    python benchmarks/spar_minilm.py --data DATA --runs runs/spar_unicoil --corpora wiki_qa --passages 10000 --teacher UNICOIL

DATA holds the BEIR folders wiki_qa, scifact and medquad. For each corpus Lambdas learn BM25's ranking from its own
sentences (configs/spar_small.py); nothing is trained on a question or a judgement. The weight of the lexical score is
tuned for nDCG@10 on questions that are not in the table: half of wiki_qa's dev, of SciFact's train, all of MedQuAD's dev. What is
finished is not repeated. Prints retrieval with MiniLM, Lambda before and after its training, both concatenated, BM25, and
the hybrid of MiniLM and BM25, tests on the questions' means over the seeds, and how much each ranks as BM25 does. With
--teacher, another set of Lambdas learns the ranking of that encoder, learned sparse or dense, from the same sentences,
and all are compared with its ranking, too.
"""

import argparse
import os
import shlex
import statistics
import time
from pathlib import Path

from once import last_of
from parts import divided, minilm, part_of
from spar_wiki_qa import ROOT, Bench, Found, Systems, Values, jaxretr, overlap, table, texts_of
from sparse_encoders import index_of
from tables import cell, difference

METRICS = ("recall@20", "recall@100", "ndcg@10")
TUNED = "ndcg@10"  # recall@100 of MiniLM is at its ceiling on MedQuAD
# {corpus: (its splits, the one that tunes, of which the other half is measured, settings of Lambda)}
CORPORA = {
    "wiki_qa": (("squad", "tydi", "dev"), "dev", ("--train.steps", 300)),
    "scifact": (("test", "train"), "train", ("--train.steps", 150, "--encoder.max-passage-length", 256)),
    "medquad": (("test", "dev"), "dev", ("--train.steps", 150, "--encoder.max-passage-length", 256)),
}
MEDQUAD = {"test": 1000, "dev": 500}
MEDQUAD_PASSAGES = 5000
START, LAMBDA, CONCAT, START_CONCAT = "Lambda, untrained", "Lambda", "MiniLM + Lambda", "MiniLM + untrained Lambda"
TEACHER, TAUGHT, TAUGHT_CONCAT = "the teacher", "Lambda of the teacher", "MiniLM + Lambda of the teacher"
CONCATENATED = {START: START_CONCAT, LAMBDA: CONCAT, TAUGHT: TAUGHT_CONCAT}
HYBRID = "MiniLM + BM25, hybrid"


def folder_of(name: str, args: argparse.Namespace) -> Path:
    if name == "medquad":
        return divided(args.data / name, args.runs / "medquad", MEDQUAD_PASSAGES, MEDQUAD, "train")
    return part_of(args.data / name, args.runs / name, CORPORA[name][0], args.passages)


def train(name: str, folder: Path, args: argparse.Namespace) -> dict[str, list[Path]]:
    """The Lambdas of a corpus, one a seed, {START: untrained, LAMBDA: trained on BM25, TAUGHT: on the teacher}."""
    # A rate of 0 leaves the start as it is.
    untrained = ("--train.steps", 1, "--optimizer.learning-rate", 0)
    kinds = [(START, "start", "bm25", untrained)]
    kinds += [] if args.untrained else [(LAMBDA, "lambda", "bm25", ())]
    kinds += [(TAUGHT, "taught", f"model:{args.teacher}", ())] if args.teacher else []
    runs: dict[str, list[Path]] = {}
    for kind, short, teacher, words in kinds:
        lexical = args.runs / f"{name}_sentences{'_taught' if kind == TAUGHT else ''}"
        if not (lexical / "meta.json").exists():
            limit = ("--limit", args.queries) if args.queries else ()
            chosen = ("--dev", args.dev, "--teacher", teacher, *limit)
            jaxretr("mine", "lexical", "--corpus", folder, *chosen, "--out", lexical)
        for seed in args.seeds:
            run = args.runs / f"{name}_{short}_{seed}"
            settings = ("--data", lexical, "--encoder.path", args.tokenizer, "--data.corpus", folder)
            settings += ("--data.token-cache", args.runs / "tokens")
            # The validation costs as much as many steps: before and after alone.
            settings += ("--train.eval-every", 10_000, "--train.save-every", 10_000, *CORPORA[name][2])
            settings += (*args.lambda_settings, *words, "--train.seed", seed)
            if not (run / "model").exists():
                began = time.monotonic()
                jaxretr("train", args.config, "--workdir", run, *last_of(settings))
                print(f"{run.name}: {time.monotonic() - began:.0f} s", flush=True)
            runs.setdefault(kind, []).append(run)
    return runs


def measure(name: str, args: argparse.Namespace) -> None:
    """Trains and measures one corpus."""
    folder = folder_of(name, args)
    splits, tuned, _ = CORPORA[name]
    runs = train(name, folder, args)
    bench = Bench(folder, splits, args.runs, tuned, args.compute)
    base = args.model or minilm()
    taught_by: dict[str, Found] = {}
    if args.teacher:
        prepare, search, _ = index_of(args.teacher, bench.corpus)
        taught_by = {s: search(prepare(texts_of(b.questions)), 100) for s, b in bench.splits.items()}
    values: dict[str, list[Values]] = {}
    overlaps: dict[str, dict[str, dict[str, list[float]]]] = {"BM25": {}, TEACHER: {}}
    weights: dict[str, list[float]] = {}
    for number in range(len(args.seeds)):
        systems = {kind: Systems(bench, base, of_kind[number], None, TUNED) for kind, of_kind in runs.items()}
        for kind, system in systems.items():
            system.tune()
            weights.setdefault(CONCATENATED[kind], []).append(system.weights["concat"])
        weights.setdefault(HYBRID, []).append(systems[START].weights["base + BM25"])
        of_seed: dict[str, Values] = {}
        for split, beir in bench.splits.items():
            found = {kind: system.search(beir, split) for kind, system in systems.items()}
            named = {"BM25": found[START]["BM25"], "MiniLM": found[START]["base"]}
            named |= {kind: of_kind["Lambda"] for kind, of_kind in found.items()}
            named |= {CONCATENATED[kind]: of_kind["concat"] for kind, of_kind in found.items()}
            named[HYBRID] = found[START]["base + BM25"]
            named |= {TEACHER: taught_by[split]} if taught_by else {}
            for system, hits in named.items():
                of_seed.setdefault(system, {})[split] = bench.values(split, beir, hits, METRICS)
                for ranker in [ranker for ranker in overlaps if ranker in named and ranker != system]:
                    of_system = overlaps[ranker].setdefault(system, {})
                    of_system.setdefault(split, []).append(overlap(hits, named[ranker]))
        for system, of_splits in of_seed.items():
            values.setdefault(system, []).append(of_splits)

    print(
        f"\n{name}: {len(bench.corpus)} passages; "
        + ", ".join(f"{s} {len(b.questions)}" for s, b in bench.splits.items())
    )
    for system, of_seeds in weights.items():
        print(f"weight, {system}: " + ", ".join(f"{weight:.3g}" for weight in of_seeds))
    columns = [(split, metric) for split in bench.splits for metric in METRICS]
    rows = {}
    for system, of_seeds in values.items():
        percents = [
            [100 * statistics.fmean(each[split][metric].values()) for each in of_seeds] for split, metric in columns
        ]
        rows[system] = [cell(of_column) for of_column in percents]
    table("Retrieval", [" ".join(column) for column in columns], rows)
    for ranker, of_systems in overlaps.items():
        cells = {s: [cell(each[split], 3) for split in bench.splits] for s, each in of_systems.items()}
        if cells:
            table(f"Rank-biased overlap with {ranker} (p = .9, depth 100)", list(bench.splits), cells)
    print()
    last = START_CONCAT if args.untrained else CONCAT
    pairs = [(last, "MiniLM"), (last, "BM25"), (last, HYBRID)]
    pairs += [] if args.untrained else [(CONCAT, START_CONCAT), (LAMBDA, START)]
    if args.teacher:
        pairs += [(TAUGHT_CONCAT, other) for other in ("MiniLM", "BM25", TEACHER, last)] + [(TEACHER, "BM25")]
    for one, other in pairs:
        for split, metric in columns:
            first, second = ([each[split][metric] for each in values[system]] for system in (one, other))
            print(f"{one} - {other}, {split} {metric}: {difference(first, second)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("JAXRETR_DATA", "data")))
    parser.add_argument("--runs", type=Path, default=Path("runs/spar_minilm"))
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--passages", type=int, default=0, help="of wiki_qa and SciFact (0: all)")
    parser.add_argument("--queries", type=int, default=0, help="sentences that are ranked (0: all that are drawn)")
    parser.add_argument("--dev", type=int, default=500, help="sentences held out for Lambda's validation")
    parser.add_argument("--teacher", type=Path, help="an encoder that Lambdas imitate, too")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/spar_small.py", help="of Lambda")
    parser.add_argument("--untrained", action="store_true", help="only Lambdas as they start")
    parser.add_argument("--model", type=Path, help="another encoder in MiniLM's place")
    parser.add_argument("--compute", choices=("float32", "bfloat16"), default="float32", help="when embedding")
    parser.add_argument("--tokenizer", type=Path, help="of Lambda (default: DATA/tokenizers/bert-base-uncased)")
    settings = "overrides, in one word: --lambda-settings='--train.steps 9'"
    parser.add_argument("--lambda-settings", type=shlex.split, default=[], help=settings)
    args = parser.parse_args()
    args.tokenizer = args.tokenizer or args.data / "tokenizers/bert-base-uncased"
    for name in args.corpora:
        measure(name, args)


if __name__ == "__main__":
    main()
