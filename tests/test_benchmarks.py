"""Every program in benchmarks/ runs to its end at a toy size: an option or a function that it calls cannot go unnoticed.

They run in this process. The commands that they start run in it too; of `jaxretr train` that means: the config is read
with the benchmark's settings, and the model that the run would begin with is its result. How training goes is other
tests' subject. benchmarks/plan_table.py is run by tests/training/plan/test_plan_tpu.py.
"""

import contextlib
import dataclasses
import functools
import gzip
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from test_sparse_encoder import write_masked_lm
from tiny import DATA

from jaxretr import cli, config
from jaxretr.assets import ENCODER_SMALL, QUICKSTART
from jaxretr.data.readers import read_beir
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.question_generator import QuestionGenerator
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.models.sparse_encoder import SparseEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training import experiment
from jaxretr.training.checkpoint import Checkpoints
from jaxretr.training.loop import build
from jaxretr.training.loop import train as run_training
from jaxretr.training.plan.compiled_facts import CollectivePlan
from jaxretr.training.plan.requirements import Plan, ProgramPlan
from jaxretr.training.runs.encoder_start import load_encoder

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
start_process = subprocess.run
SHORT = ["--encoder.max-passage-length", "48"]

Main = Callable[..., str]


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Benchmarks import one another as programs in one folder do; what they set in the process is undone.

    They see one device, and LLVM does not optimise: they compile several times as fast.
    """
    sys.path.insert(0, str(BENCHMARKS))
    patch = pytest.MonkeyPatch()
    for name in ("devices", "local_devices"):
        patch.setattr(jax, name, functools.partial(first_device, getattr(jax, name)))
    optimised = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    environment = dict(os.environ)
    yield
    jax.config.update("jax_disable_most_optimizations", optimised)
    patch.undo()
    sys.path.remove(str(BENCHMARKS))
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(environment)


def first_device(all_devices: Callable[..., list[Any]], *words: Any, **named: Any) -> list[Any]:
    return all_devices(*words, **named)[:1]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """main(module, *words) runs a benchmark as its command line does, and returns what it prints."""
    monkeypatch.setattr(subprocess, "run", in_this_process)

    def run(module: ModuleType, *words: object) -> str:
        monkeypatch.setattr(sys, "argv", [module.__file__, *map(str, words)])
        capsys.readouterr()
        module.main()
        return capsys.readouterr().out

    return run


def in_this_process(command: Any, **options: Any) -> Any:
    """subprocess.run, except for the package's commands and for benchmarks, which need no new process.

    One whose output is read is asked about the process itself, for instance what memory it takes.
    """
    if isinstance(command, str) or str(command[0]) != sys.executable or options.get("capture_output"):
        return start_process(command, **options)
    words = [str(word) for word in command[1:]]
    if words[:3] == ["-m", "jaxretr", "train"]:
        train(words[2:])
    elif words[:2] == ["-m", "jaxretr"]:
        with contextlib.redirect_stdout(sys.stderr):
            assert cli.main(words[2:]) == 0, words
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            importlib.import_module(Path(words[0]).stem).main()


def train(words: list[str]) -> None:
    """What a run of no steps leaves; where it keeps all checkpoints, for a curve, with one of them."""
    args = cli.parse(words)
    settings = experiment.load(args.config, args.overrides, args.data, args.data_folder)
    workdir = Path(args.workdir)
    assert settings.train.steps > 0
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(config.to_json(settings)))
    line = {"step": settings.train.steps, "mrr": 0.5, "perplexity": 2.0, "seconds/steps": settings.train.steps - 1}
    before = [
        {"step": step, "teacher@5": value, f"{Path(each).name}:mrr@10": value}
        for each in settings.train.suites
        for step, value in enumerate((0.2, 0.4, 0.3))
    ]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (*before, line)))
    if isinstance(settings, config.MlmConfig):
        shutil.copytree(settings.start or os.environ["TINY_ENCODER"], workdir / "model")
        if settings.train.keep == 100:
            state = build(settings, make_mesh(), workdir).init()
            with Checkpoints(workdir / "checkpoints", settings) as checkpoints:
                checkpoints.save(settings.train.save_every, state)
                checkpoints.wait()
    else:
        assert isinstance(settings, config.ContrastiveConfig | config.ArtConfig)
        load_encoder(settings.encoder, settings.train.seed).save(workdir / "model")


# ---- data ------------------------------------------------------------------------------------------------------------


def write_gz(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def miniature(folder: Path, splits: Sequence[str], *, each: int = 6, passages: int = 40) -> Path:
    """A BEIR folder of the embedded questions, `each` of them a split, and of their passages and others.

    No other folder has passages of the same ids.
    """
    beir = read_beir(QUICKSTART, "train")
    (folder / "qrels").mkdir(parents=True)
    questions = beir.questions[: each * len(splits)]
    judged = {question.id: next(iter(beir.qrels[question.id])) for question in questions}
    kept = [*dict.fromkeys([*judged.values(), *beir.corpus.ids])][:passages]
    found = [beir.corpus[beir.corpus.row(id)] for id in kept]
    write_gz(
        folder / "corpus.jsonl.gz", [{"_id": f"{folder.name}:{p.id}", "title": p.title, "text": p.text} for p in found]
    )
    asked = [{"_id": q.id, "text": q.text, "metadata": {"answers": list(q.answers)}} for q in questions]
    write_gz(folder / "queries.jsonl.gz", asked)
    for number, split in enumerate(splits):
        part = [question.id for question in questions[each * number : each * (number + 1)]]
        rows = "".join(f"{id}\t{folder.name}:{judged[id]}\t1\n" for id in part)
        (folder / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


@pytest.fixture(scope="module")
def encoder(tiny_models: Path) -> Path:
    os.environ["TINY_ENCODER"] = str(tiny_models / "encoder")
    return tiny_models / "encoder"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that JAXRETR_DATA names, in small."""
    folder = tmp_path_factory.mktemp("data")
    for name, splits in {
        "wiki_qa": ("train", "dev", "squad", "tydi"),
        "wiki_passages": ("train",),
        "arxiv": [f"{field}-{split}" for field in ("cv", "cl") for split in ("train", "dev", "test")],
        "medquad": ("test",),
        "scifact": ("train", "test"),
        "cmrc2018_zh": ("trial", "dev"),
    }.items():
        # SPAR's negatives are BM25's ranks 46 to 50.
        miniature(folder / name, splits, passages=90 if name == "scifact" else 40)
    (folder / "noiseqa").mkdir()
    squad = read_beir(folder / "wiki_qa", "squad").questions
    noisy = [{"_id": q.id.split(":")[-1], "keyboard_synthetic": q.text.replace("e", "r")} for q in squad]
    write_gz(folder / "noiseqa/queries-noisy.jsonl.gz", noisy)
    return folder


@pytest.fixture(scope="module")
def minilm(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder, as benchmarks of all-MiniLM read one."""
    from jaxretr.exports import sentence_transformers

    model = DualEncoder.from_pretrained(encoder, pooling="mean", passage_template="joined")
    settings = dataclasses.replace(
        model.config, normalise=True, shared=True, max_question_length=48, max_passage_length=48
    )
    folder = tmp_path_factory.mktemp("minilm") / "model"
    folder.mkdir()
    sentence_transformers.write(folder, DualEncoder(settings, model.params, model.tokenizer), {})
    return folder


# ---- the machine -----------------------------------------------------------------------------------------------------


def test_a_benchmark_says_which_units_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = importlib.import_module("machine")
    monkeypatch.setattr(machine, "cpu_name", lambda: "Example 7")
    told = machine.describe(3, frozenset(("sse", "avx2", "avx512f")))
    assert told.startswith("Example 7 (AVX2, AVX-512, no bfloat16 in AVX-512, no AMX), 3 threads, load ")
    assert "not known" in machine.describe(1, frozenset())


# ---- speed -----------------------------------------------------------------------------------------------------------


def test_encode(main: Main, minilm: Path, tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="it is what encode.py compares with")
    text = json.dumps({"text": "Who has painted the ceiling of the chapel , and when ?"})
    (tmp_path / "texts.jsonl").write_text(8 * f"{text}\n")
    module = importlib.import_module("encode")
    printed = main(
        module, "--model", minilm, "--texts", tmp_path / "texts.jsonl", "--count", 8, "--rounds", 2, "--threads", 1
    )
    assert "jaxretr bfloat16" in printed and "ratio  1.00 (1.00 to 1.00)" in printed


def test_generation(main: Main, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="it is what generation.py compares with")
    from pair_models import make_model

    words = ["--model", make_model("qwen3_lm", tmp_path), "--passages", 4, "--batch", 2, "--rounds", 2]
    printed = main(importlib.import_module("generation"), *words, "--max-length", 96, "--new-tokens", 6)
    assert "transformers / jaxretr: " in printed
    assert "100% of 4 questions are equal" in printed


def test_serve(main: Main, minilm: Path, tmp_path: Path) -> None:
    import serve

    words = ["--model", minilm, "--corpus", DATA / "corpus.jsonl", "--rows", 20, "--work", tmp_path, "--peer"]
    out = main(serve, *words, "--seconds", 3, "--clients", 2, "--rounds", 2, "--compute", "float32")
    assert out.count("failed: 0") == 10 and float(re.findall(r"main thread ([\d.]+) ms", out)[0]) > 0
    assert out.count(" of offline") == out.count("ours / peer") == 4
    assert re.search(r"announced \d+ MiB", out) and "announced 0 MiB" not in out
    assert "ended with 0" in out


def test_search(main: Main) -> None:
    words = ["--rows", 3000, "--dim", 16, "--queries", 8, "-k", 5, "--repeats", 1, "--also", "bfloat16", "first-int8"]
    printed = main(importlib.import_module("search"), *words)
    assert "| questions | 8 |" in printed and "| numpy | " in printed


def test_plans(main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run writes what the second compares with; devices without a compiler are left out."""
    module = importlib.import_module("plans")
    peak = 3 << 30

    def planned(system: str, config: Any, place: str, programs: Sequence[str], known: Any) -> Plan:
        if place == "h100:8":
            raise UserError("no plugin")
        facts = {field.name: None for field in dataclasses.fields(ProgramPlan)}
        reduced = CollectivePlan("all-reduce", 1, 5 << 20, False)
        facts |= {
            "name": "step",
            "peak": peak,
            "fits": True,
            "flops": 2 * 10**12,
            "seconds": 0.5,
            "collectives": (reduced,),
        }
        plan = {field.name: None for field in dataclasses.fields(Plan)}
        return Plan(**{**plan, "capacity": 4 << 30, "programs": (ProgramPlan(**facts),)})

    monkeypatch.setattr(module, "plan_system", planned)
    words = ["--systems", "dpr", "--topologies", "v5e:4x4,h100:8", "--before", tmp_path / "before.json"]
    first = main(module, *words, "--write", tmp_path / "before.json")
    expected = "| DPR, in-batch negatives, 1M passages | v5e:4x4 | step | 2 | 0.500 | {}3.00 of 4.00 | 5 | 0 | 0 |"
    assert first.splitlines()[2:] == [expected.format("")]
    peak //= 2
    assert main(module, *words).splitlines()[2:] == [expected.format("3.00 -> ").replace("-> 3.00", "-> 1.50")]


def test_live_index(main: Main) -> None:
    words = ["--rows", 300, "--dim", 8, "--seconds", 0.2, "--questions", 3]
    printed = main(importlib.import_module("live_index"), *words)
    assert "| 64 | " in printed and "opening 330 passages" in printed


def test_train(main: Main, minilm: Path) -> None:
    """The step that `make bench` times; it lacked its batch once, and no test ran it."""
    pytest.importorskip("datasets", reason="sentence-transformers' trainer reads them")
    module = importlib.import_module("train")
    words = ["--batch-size", 8, "--chunk", 4, "--max-length", 16, "--steps", 1, "--rounds", 1, "--threads", 1]
    assert "ratio by CPU time" in main(module, "--model", minilm, *words)


def test_art_step(main: Main, minilm: Path, tiny_models: Path, data: Path) -> None:
    pytest.importorskip("torch", reason="it is what art_step.py compares with")
    pytest.importorskip("transformers", reason="its models are the peer's")
    words = ["--model", minilm, "--scorer", tiny_models / "scorer", "--data", data / "wiki_qa", "--questions", 4]
    words += ["--batch-size", 2, "--top-k", 2, "--epochs", 2, "--threads", 1, "--dtype", "float32"]
    settings = ["--encoder.max-passage-length", 32, "--encoder.max-question-length", 16, "--scorer.max-length", 80]
    printed = main(importlib.import_module("art_step"), *words, "--settings", *settings)
    # The program itself compares the numbers of both.
    assert printed.count("gradient_norm") == 3 and printed.count("PyTorch / ours by CPU time") == 2


def test_typos_step(main: Main, data: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("typos_step")
    arms = module.arms(2)
    for words in arms.values():
        config.load(BENCHMARKS.parent / "configs/typos_small.py", words)
    # The one that has most in it.
    monkeypatch.setattr(module, "arms", lambda variants: dict([arms.popitem()]))
    words = ["--batch-size", 8, "--rounds", 1, "--steps", 1, "--passages", 2, "--variants", 2]
    settings = ["--data.train", data / "wiki_qa", "--encoder.path", encoder, "--encoder.max-passage-length", "16"]
    settings += ["--encoder.max-question-length", "16", "--index.refresh-every", "100"]
    assert "2 forms, pre-drawn" in main(module, *words, "--settings", *settings)


def test_typos(main: Main) -> None:
    printed = main(importlib.import_module("typos"), "--queries", DATA, "--draws", 1)
    assert "dictionary    unchanged" in printed


def test_named_data(main: Main, tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets", reason="it is one of the sources")
    printed = main(importlib.import_module("named_data"), "--corpus", DATA / "corpus.jsonl", "--rounds", 1)
    ir_datasets.registry._registered.pop("jaxretr-benchmark/beir")
    assert printed.count("of the plain file's time") == 5


def test_bm25(main: Main) -> None:
    pytest.importorskip("bm25s", reason="it is what bm25.py compares with")
    words = ["--corpus", QUICKSTART, "--queries", 100, "--rounds", 1, "--shards", 4000, "--threads", 1]
    printed = main(importlib.import_module("bm25"), *words)
    assert "processor time: ours" in printed and "shards of 4000: peak" in printed


def test_approximate_search(main: Main, tmp_path: Path) -> None:
    from jaxretr.indexes.certified import process as scann_process

    if problem := scann_process.scann_problem():
        pytest.skip(f"ScaNN: {problem}")
    pytest.importorskip("faiss", reason="it is what approximate_search.py compares with")
    from test_scann import vectors

    for name, rows in (("passages", vectors(3000, 1)), ("questions", vectors(400, 2))):
        write_store(tmp_path / name, rows)
    module = importlib.import_module("approximate_search")
    words = ["--targets", 0.9, "--rounds", 1, "--filters", "--update"]
    printed = main(module, tmp_path / "passages", tmp_path / "questions", *words)
    assert "IVF-PQ refined" in printed and printed.count("rebalanced: target 0.9") == 2
    assert "ours, FAISS 1." in printed or "ours, FAISS 0." in printed, "a ratio"
    assert "ours, ScaNN, target 0.9, 10.0% allowed: recall@10" in printed


def write_store(folder: Path, rows: np.ndarray) -> None:
    from given_vectors import store_vectors

    ids = [f"p{row}" for row in range(len(rows))]
    store_vectors(folder, rows, ids, model="m", model_fingerprint="0", texts_fingerprint="0", shard_rows=len(rows))


# ---- quality ---------------------------------------------------------------------------------------------------------


def test_scorer_reranking(main: Main, data: Path, tiny_models: Path) -> None:
    module = importlib.import_module("scorer_reranking")
    words = [tiny_models / "scorer", data / "wiki_qa", "--questions", 3, "--depth", 3, "--max-length", 48]
    printed = main(module, *words, "--rounds", 1)
    assert "3 questions; scorer - BM25" in printed and "questions a second of 3 hits each" in printed
    assert "reading a passage once is" in printed and "scores differ by at most 0" in printed


def test_parts_of_a_data_set(data: Path, tmp_path: Path) -> None:
    parts = importlib.import_module("parts")
    part = parts.part_of(data / "wiki_qa", tmp_path / "part", ["squad", "tydi"], 15)
    whole = read_beir(data / "wiki_qa", "squad")
    for split in ("squad", "tydi"):
        beir = read_beir(part, split)
        assert len(beir.corpus) == 15 and set(beir.corpus.ids) < set(whole.corpus.ids)
        assert beir.qrels == read_beir(data / "wiki_qa", split).qrels
    assert parts.part_of(data / "wiki_qa", tmp_path / "all", ["squad"], 0) == data / "wiki_qa"

    folder = parts.divided(data / "wiki_qa", tmp_path / "divided", 30, {"test": 2, "dev": 1}, "rest", "train")
    splits = {name: read_beir(folder, name) for name in ("test", "dev", "rest")}
    assert [len(beir.questions) >= size for beir, size in zip(splits.values(), (2, 1, 1), strict=True)] == [True] * 3
    judged = [{id for grades in beir.qrels.values() for id in grades} for beir in splits.values()]
    assert len(set.union(*judged)) == sum(map(len, judged)), "a passage is asked for in one split only"
    ids = set(splits["test"].corpus.ids)
    assert len(ids) == 30 and set.union(*judged) <= ids


@pytest.mark.slow
def test_dpr_negatives(main: Main, data: Path, encoder: Path, tmp_path: Path) -> None:
    words = ["--data", data / "wiki_qa", "--runs", tmp_path / "runs", "--passages", 30, "--seeds"]
    settings = ["--settings", "--encoder.path", encoder, *SHORT]
    printed = main(importlib.import_module("dpr_negatives"), *words, 0, "--also", f"initial={encoder}", *settings)
    for row in ("BM25", "the encoder as it comes", "initial", "in-batch", "BM25-mined", "retrieved in the step"):
        assert f"\n| {row} | " in printed
    assert "retrieved in the step - BM25-mined, dev mrr@10" in printed


@pytest.mark.slow
def test_mine(data: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers", reason="it is what mine.py compares with")
    module = importlib.import_module("mine")
    monkeypatch.setattr(module, "MARGIN", 0.0)  # A tiny encoder's scores are close together.
    (ours_took, ours), (theirs_took, theirs) = (side(data / "wiki_qa", minilm) for side in (module.ours, module.theirs))
    assert (ours_took > 0).all() and (theirs_took > 0).all()
    shared = {question: ours[question] & found for question, found in theirs.items()}
    assert sum(map(len, shared.values())) > 0.9 * sum(map(len, theirs.values())) > 0


@pytest.mark.slow
def test_sparse_encoders(main: Main, data: Path, encoder: Path, tiny_models: Path, tmp_path: Path) -> None:
    masked = write_masked_lm(tmp_path / "masked", tiny_models)
    words = ["--data", data / "wiki_qa", "--runs", tmp_path, "--passages", 30, "--seeds", 0, "--model", encoder]
    printed = main(importlib.import_module("sparse_encoders"), *words, "--masked-lm", masked, "--settings", *SHORT)
    for row in ("BM25", "the encoder as it comes", "dense", "UniCOIL", "SPLADE"):
        assert f"\n| {row} | " in printed
    assert "UniCOIL - dense, ndcg@10" in printed


@pytest.mark.slow
def test_index_aware(main: Main, data: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def trained(settings: Any, workdir: Path) -> None:
        asked.append((workdir.name, settings.index_aware.kind, settings.encoder.fresh))
        tiny = {"path": str(encoder), "fresh": None, "fresh_start": "random", "max_passage_length": 48}
        start = dataclasses.replace(settings.encoder, **tiny)
        load_encoder(start, 0).save(workdir / "model")

    monkeypatch.setattr("jaxretr.train", trained)
    words = ["--data", data / "wiki_qa", "--runs", tmp_path / "runs", "--passages", 30, "--splits", "dev", "--seeds", 0]
    words += ["--start", "words", "--arms", "exact", "int8", "--stored", "float32", "int8", "8 dimensions a code"]
    printed = main(importlib.import_module("index_aware"), *words)
    assert [each[:2] for each in asked] == [("exact_0", "none"), ("int8_0", "int8")]
    assert asked[0][2] == config.BertShape(hidden_size=512, layers=0, heads=8, intermediate_size=2048)
    for metric in ("ndcg@10", "recall@20", "candidates"):
        assert f"| {metric}, trained on | float32 | int8 | 8 dimensions a code |" in printed
    assert "\ntrained on int8 - on exact, stored as 8 dimensions a code, recall@20: +0.0 points" in printed
    row = re.search(r"candidates.*\n.*\n\| exact \| (\S+) \| \S+ \| (\S+) \|", printed)
    assert row and 19 <= float(row[1]) < float(row[2]) <= 30, "codes spread the first 20 over more candidates"


def test_art_encoders(
    main: Main, data: Path, encoder: Path, minilm: Path, tiny_models: Path, tmp_path: Path, monkeypatch
) -> None:
    module = importlib.import_module("art_encoders")
    monkeypatch.setattr(module, "PASSAGES", 30)
    monkeypatch.setattr(module, "SIZES", {"test": 2})
    monkeypatch.setattr(module, "HELD_OUT", 2)
    words = ["--data", data, "--runs", tmp_path, "--seeds", 0]
    printed = main(module, "domains", *words, "--model", minilm, "--settings", *SHORT)
    assert printed.count("\n| ART as published | ") == 2 and "- the encoder as it comes, mrr@10" in printed
    known, dropped = list(read_beir(tmp_path / "scifact", "train").corpus.ids[:3]), "not in the part"
    asked = read_beir(tmp_path / "scifact", "train").questions[0].id
    line = {"query_id": asked, "document_ids": [dropped, *known], "scores": [0.0, -1.0, -2.0, -3.0]}
    table = tmp_path / "table.jsonl.gz"
    table.write_bytes(gzip.compress(json.dumps(line).encode()))
    teacher = ["--scorer", tiny_models / "scorer", "--table", table, "--arms", "scorer, posterior target"]
    printed = main(module, "teacher", *words, "--model", minilm, *teacher, "--settings", *SHORT)
    assert "\n| scorer, posterior target | " in printed
    [scores] = tmp_path.glob("*_scorer_scores.jsonl")
    assert json.loads(scores.read_text())["document_ids"] == known
    teacher = ["--scorer", tiny_models / "scorer", "--arms", "scorer, ART as published"]
    beds = ["--beds", "medquad", "arxiv"]
    printed = main(module, "whole-teacher", *words, "--model", minilm, *beds, *teacher, "--settings", *SHORT)
    assert printed.count("\n| scorer, ART as published | ") == 2
    asked = [read_beir(tmp_path / "medquad_whole", split).qrels.values() for split in ("train", "test")]
    seen, held_out = ({passage for judged in of_split for passage in judged} for of_split in asked)
    assert seen and held_out and not seen & held_out
    both = ["--beds", "medquad", "scifact", "--scorer", tiny_models / "scorer"]
    printed = main(module, "weights", *words, "--model", minilm, *both, "--settings", *SHORT)
    assert (
        "first.trec alone" in printed
        and printed.count("| scifact_whole | ") == printed.count("| medquad_whole | ") == 1
    )
    printed = main(module, "checkpoints", *words, "--model", minilm, "--arms", "ART as published", "--settings", *SHORT)
    assert "\n| medquad, ART as published | 20.0 | 30.0 | 40.0 | 40.0 | 3 of 3 |" in printed
    printed = main(module, "curve", *words, "--settings", "--encoder.path", encoder, *SHORT)
    assert "\n| long | " in printed and "dev recall@20 and nDCG@10 by steps, seed 0" in printed
    for arm in module.ABLATIONS.values():
        config.load(BENCHMARKS.parent / "configs/art_small.py", arm)


def test_rolling_refresh(main: Main, data: Path, encoder: Path, tiny_models: Path, tmp_path: Path) -> None:
    """Both refreshes encode as much, the rolling one equally much at every step; and the picture is drawn."""
    words = ["--data", data, "--runs", tmp_path, "--seeds", 0, "--every", 2, "--rounds", 2]
    settings = ["--encoder.path", encoder, "--scorer.path", tiny_models / "scorer", "--train.batch-size", 2, *SHORT]
    printed = main(importlib.import_module("rolling_refresh"), *words, "--settings", *settings)
    for row in ("the encoder as it comes", "full", "rolling", "never"):
        assert f"\n| {row} | " in printed
    assert "rolling - full, recall@20" in printed
    steps = {arm: json.loads((tmp_path / f"wiki_qa_{arm}_0/steps.json").read_text()) for arm in ("full", "rolling")}
    assert {arm: [step["encoded"] for step in run] for arm, run in steps.items()} == {
        "full": [0, 0, 1, 0, 1],
        "rolling": [0, 0.5, 0.5, 0.5, 0.5],
    }
    assert [step["staleness_max"] for step in steps["rolling"]] == [0, 1, 1, 1, 1]
    assert (tmp_path / "refresh.png").read_bytes().startswith(b"\x89PNG")


def test_art_teachers(main: Main, data: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, trained = importlib.import_module("art_teachers"), []
    monkeypatch.setattr(
        "art_encoders.trained", lambda path, run, words: trained.append(words) or once(path, run, words)
    )
    once = importlib.import_module("once").trained
    words = ["--cross-encoder", tmp_path / "reranker", "--data", data, "--runs", tmp_path, "--seeds", 0, "--steps", 3]
    printed = main(module, *words, "--settings", "--encoder.path", encoder, *SHORT)
    for row in ("BM25", "the encoder as it comes", "T5", "cross-encoder"):
        assert f"\n| {row} | " in printed
    assert "cross-encoder - the encoder as it comes, recall@20" in printed
    assert "T5: 1.00 s a step" in printed and "cross-encoder: 1.00 s a step" in printed
    of_t5, of_cross_encoder = (config.load(BENCHMARKS.parent / "configs/art_small.py", [*map(str, w)]) for w in trained)
    assert of_t5.train == of_cross_encoder.train and of_t5.train.steps == 3
    assert of_cross_encoder.scorer.path == str(tmp_path / "reranker") != of_t5.scorer.path


@pytest.mark.slow
def test_spar_minilm(main: Main, data: Path, encoder: Path, minilm: Path, tmp_path: Path) -> None:
    words = ["--data", data, "--runs", tmp_path, "--seeds", 0, "--dev", 10, "--tokenizer", encoder, "--model", minilm]
    printed = main(importlib.import_module("spar_minilm"), *words, "--corpora", "scifact")
    for row in ("BM25", "MiniLM", "Lambda, untrained", "MiniLM + Lambda", "MiniLM + BM25, hybrid"):
        assert f"\n| {row} | " in printed
    assert "Lambda - Lambda, untrained, test ndcg@10" in printed
    learned = SparseEncoder.from_pretrained(encoder, pooling="unicoil", shared=True, max_passage_length=48)
    learned.save(tmp_path / "unicoil")
    taught = [
        "--untrained",
        "--teacher",
        tmp_path / "unicoil",
        "--passages",
        60,
        "--queries",
        60,
        "--runs",
        tmp_path / "taught",
    ]
    printed = main(importlib.import_module("spar_minilm"), *words, "--corpora", "scifact", *taught)
    assert "MiniLM + untrained Lambda - MiniLM, test ndcg@10" in printed and "\n| Lambda | " not in printed
    assert "Rank-biased overlap with the teacher" in printed and "MiniLM + Lambda of the teacher - BM25" in printed


def test_lexical_overlap(main: Main, data: Path, encoder: Path, tmp_path: Path) -> None:
    words = [data / "wiki_qa", "--split", "squad", "--passages", 30, "--runs", tmp_path, "--tokenizer", encoder]
    small = ["--sizes", 16, "--starts", "16x0", "16x1"]
    printed = main(importlib.import_module("lexical_overlap"), *words, *small)
    assert "| BM25 of word pieces | " in printed and "| untrained, width 16, layers 1 | " in printed


@pytest.mark.slow
def test_spar_wiki_qa(main: Main, data: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("spar_wiki_qa")
    monkeypatch.setattr(module, "POSITIVES", (10,))
    words = ["--data", data, "--runs", tmp_path, "--seeds", 0, 1, "--queries", 60, "--dev", 10, "--tokenizer", encoder]
    base = f"--base-settings=--encoder.path {encoder} --encoder.max-passage-length 48 --train.eval-every 50"
    printed = main(module, *words, base)
    for row in ("BM25", "two bases", "Lambda", "concat", "concat + BM25", "10"):
        assert f"\n| {row} | " in printed
    assert "SciFact, zero-shot" in printed and (tmp_path / "positives.png").exists()


@pytest.mark.slow
def test_from_documents(main: Main, data: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="it makes the generator")
    from pair_models import Quoting, make_model

    module = importlib.import_module("from_documents")
    monkeypatch.setattr(module, "PASSAGES", 40)
    monkeypatch.setattr(QuestionGenerator, "generate_tokens", Quoting.generate_tokens)
    words = [
        "--data",
        data,
        "--runs",
        tmp_path / "runs",
        "--model",
        encoder,
        "--sets",
        "scifact",
        "--asked",
        30,
        "--seeds",
        0,
        1,
    ]
    words += ["--generator", make_model("qwen3_lm", tmp_path)]
    settings = ["--steps", 2, "--batch-size", 4, "--prompt-length", 96, "--max-length", 32]
    asked = ["--settings", *settings, "--template", "upr", "--per-passage", 1]
    printed = main(module, *words, *asked)
    assert "seed 1: " in printed and " of 2, minutes {'generating': " in printed
    for row in ("BM25", "before", "after"):
        assert f"\n| {row} | " in printed
    assert "after - before, mrr@10: " in printed


@pytest.mark.slow
@pytest.mark.usefixtures("encoder")
def test_ddr_domains(main: Main, data: Path, tmp_path: Path) -> None:
    module = importlib.import_module("ddr_domains")
    sizes = ["--length", 48, "--source-steps", 4, "--dam-steps", 4, "--steps", 4, "--passages", 30]
    ablations = ["--ablations", "DF", "SI", "lora", "D", "source", "parallel", "--curve-steps", 6]
    few = "--data.held-out 8 --train.batch-size 8"
    tiny = "--data.vocab-size 300 --bert.hidden-size 16 --bert.layers 2 --bert.heads 2 --bert.intermediate-size 32"
    new = ["--start", "new", "--new-steps", 4, f"--new-settings={few} {tiny}"]
    printed = main(
        module,
        "--data",
        data,
        "--runs",
        tmp_path,
        "--seeds",
        0,
        *new,
        *sizes,
        *ablations,
        f"--dam-settings={few} --train.steps 3",
    )
    for row in ("BM25", "DR ", "DDR ", "DDR\\SI", "DDR\\D ", "DDR, parallel adapter alone"):
        assert f"\n{row}" in printed
    assert "held-out perplexity" in printed and (tmp_path / "curve.png").exists()


@pytest.mark.slow
def test_ddr_chinese(main: Main, data: Path, encoder: Path, tmp_path: Path) -> None:
    module = importlib.import_module("ddr_chinese")
    short = "--rem-settings=--encoder.max-passage-length 48 --train.seed 5"
    printed = main(module, "--data", data, "--runs", tmp_path, "--seeds", 0, short)
    assert json.loads((tmp_path / "rem_0/config.json").read_text())["train"]["seed"] == 5
    assert "\n| DAM + REM | " in printed and "BM25 - DAM + REM, ndcg@10" in printed


@pytest.mark.parametrize("start", ["small", "minilm"])
@pytest.mark.slow
def test_typos_wiki_qa(
    start: str, main: Main, data: Path, encoder: Path, minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("typos_wiki_qa")
    monkeypatch.setattr(module, "minilm", lambda: minilm)
    monkeypatch.setattr(module, "DRAWS", 1)
    words = ["--data", data, "--runs", tmp_path, "--seeds", 0, "--start", start, "--variants", 2, "--passages", 30]
    few = ["--profiles", "dictionary"] if start == "small" else ["--arms", "base", "augmentation"]
    path = ["--encoder.path", encoder] if start == "small" else []
    printed = main(module, *words, *few, "--settings", *path, *SHORT)
    assert "\n| augmentation, dictionary | " in printed and "squad noiseqa" in printed
    assert "augmentation - base, tydi clean" in printed


def test_settings_of_a_plan_override_those_of_its_system() -> None:
    planned = importlib.import_module("plan_table").config_of("art_128", ["--art.top-k", "64"])
    assert planned.art.top_k == 64


# ---- data that ships with the package ------------------------------------------------------------------------------


def test_make_quickstart_data(main: Main, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("make_quickstart_data")
    for name, value in {"OUT": tmp_path, "PASSAGES": 5, "DEV_PASSAGES": 1, "TEST_PASSAGES": 1}.items():
        monkeypatch.setattr(module, name, value)
    (tmp_path / "qrels").mkdir()
    main(module, data / "wiki_qa")
    assert [len(read_beir(tmp_path, split).questions) for split in ("train", "dev", "test")] == [3, 1, 1]


def test_make_arxiv_data(main: Main, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("make_arxiv_data")
    monkeypatch.setattr(module, "OUT", tmp_path)
    monkeypatch.setattr(module, "SPLITS", {field: {"train": 3, "dev": 2, "test": 2} for field in ("cv", "cl")})
    assert "cl 7 abstracts" in main(module, data / "arxiv")


def test_quickstart_seeds(main: Main, tmp_path: Path) -> None:
    """On what quickstarts left: tests/test_quickstart.py runs one."""
    for seed, value in ((0, 0.5), (1, 0.7)):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        of_system = dict.fromkeys(("recall@5", "recall@20", "recall@100", "mrr@10", "ndcg@10"), value)
        harder = {"with typos": {"after": of_system, "BM25": of_system, "questions": 9}}
        results = {"test": {"after": of_system}, "harder": harder, "lexical_weight": 0.4}
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "seconds.json").write_text("12.3")
    printed = main(importlib.import_module("quickstart_seeds"), "--seeds", 0, 1, "--runs", tmp_path)
    assert "| after | " + " | ".join(["60.0 ± 14.1"] * 5) + " |" in printed
    assert "| 9 with typos | " + " | ".join(["60.0 ± 14.1"] * 4) + " |" in printed
    assert "lexical weight: 0.4, 0.4" in printed and "seconds: 12, 12" in printed


def test_make_small_models(main: Main, tiny_models: Path, tmp_path: Path) -> None:
    """The package's folders of a run of each kind: the same vectors and scores up to rounding, and a head."""
    teacher = {"path": str(tiny_models / "encoder"), "pooling": "mean", "normalise": True, "shared": True}
    limits = {"max_question_length": 16, "max_passage_length": 24}
    load_encoder(config.Encoder(**teacher, **limits)).save(tmp_path / "teacher")
    text = config.PretrainData(corpora=(str(DATA),), vocab_size=400, vocabulary_every=1, max_length=24, held_out=8)
    steps = config.Train(steps=1, batch_size=8, log_every=1, best_metric="loss")
    bert = config.BertShape(hidden_size=16, layers=1, heads=2, intermediate_size=16)
    t5 = config.T5Shape(d_model=32, d_kv=8, d_ff=48, heads=4, encoder_layers=1, decoder_layers=1)
    distilled = config.EmbeddingDistillationConfig(
        name="encoder", data=text, teacher=str(tmp_path / "teacher"), teacher_sentences=10, bert=bert, train=steps
    )
    run_training(distilled, tmp_path / "encoder")
    run_training(config.PassageLmConfig(name="scorer", data=text, t5=t5, train=steps), tmp_path / "scorer")
    runs = ["--encoder", tmp_path / "encoder", "--scorer", tmp_path / "scorer"]
    main(importlib.import_module("make_small_models"), *runs, "--head-steps", 2, "--out", tmp_path / "assets")

    questions = ["who wrote the book", "where is the lake"]
    packed = DualEncoder.from_pretrained(tmp_path / "assets/encoder_small")
    assert packed.mlm_head is not None and packed.config.normalise
    theirs = DualEncoder.from_pretrained(tmp_path / "encoder").encode_queries(questions)
    np.testing.assert_allclose(packed.encode_queries(questions), theirs, atol=3e-2)
    scores = [
        QuestionScorer.from_pretrained(tmp_path / name, max_length=48).score(
            questions, [{"title": "", "text": "a book"}] * 2
        )
        for name in ("assets/scorer_small", "scorer/model")
    ]
    np.testing.assert_allclose(scores[0], scores[1], atol=5e-2)
    for name, bits in (("encoder_small", 6), ("scorer_small", 5)):
        for folder in (ENCODER_SMALL.parent, tmp_path / "assets"):
            tensors = load_file(folder / name / "model.safetensors")
            left = {
                key: int(np.bitwise_or.reduce(array.view(np.uint16), axis=None)) & 1023
                for key, array in tensors.items()
            }
            assert all(low % (1 << 10 - bits) == 0 for low in left.values()), f"{folder / name}: bits that take room"


def test_engines(main: Main, postgres: Any) -> None:
    pytest.importorskip("lancedb")
    sizes = ["--rows", "200", "--dim", "8", "--questions", "20", "--rounds", "1"]
    printed = main(
        importlib.import_module("engines"), *sizes, "--engines", "exact", "pgvector", "lance", "--address", postgres.uri
    )
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:] for line in printed.splitlines() if "|" in line}
    exact = ("exact, in memory", "pgvector exact", "LanceDB exact")
    assert {name: rows[name][0] for name in exact} == dict.fromkeys(exact, "1.0000")
    assert float(rows["pgvector indexed"][0]) > 0.8 and float(rows["LanceDB indexed"][0]) > 0.8


@pytest.mark.slow
def test_mixture(main: Main, data: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("mixture")
    monkeypatch.setattr(module, "SETS", {"wiki_qa": ("squad", "q: ", "p: "), "scifact": ("test", "claim: ", "")})
    words = ["--data", data, "--sets", "wiki_qa", "scifact", "--runs", tmp_path / "runs", "--passages", 0, "--seeds"]
    printed = main(module, *words, 0, "--steps", 2, "--settings", "--encoder.path", encoder, *SHORT)
    for row in ("BM25", "the start", "alone", "mixture", "mixed batches"):
        assert f"\n| {row} | " in printed
    assert "mixture - alone, scifact ndcg@10: +0.0 points" in printed
    assert "mixture: 4 batches, 2 of 32 wiki_qa, 2 of 32 scifact\n" in printed
    assert "mixed batches: 4 batches, 4 of 16 wiki_qa + 16 scifact" in printed
