"""The notebooks run from top to bottom, with tiny models on a few of the embedded passages."""

import base64
import dataclasses
import json
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
import tiny
from nbformat import NotebookNode
from tiny import write_subset

from jaxretr.assets import ARXIV_LANGUAGE, ARXIV_VISION, ENCODER_SMALL
from jaxretr.data.lexical_set import LexicalSet
from jaxretr.data.readers import read_beir
from jaxretr.data.tokens import load_tokenizer
from jaxretr.data.typos import PROFILES
from jaxretr.models.backbones.layers import initialise
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.training.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    # As many positions as the quickstart's passages have tokens.
    tiny.write_models(folder, bert=dataclasses.replace(tiny.BERT, max_position_embeddings=112))
    write_subset(folder / "data")
    return folder


def run_notebook(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **variables: object) -> NotebookNode:
    """Executes a notebook with `JAXRETR_NOTEBOOK_*` set to `variables` and the tiny data and models of `folder`."""
    settings = {"DATA": folder / "data", "ENCODER": folder / "encoder", **variables}
    for key, value in {
        **{f"JAXRETR_NOTEBOOK_{key}": str(value) for key, value in settings.items()},
        "JAX_PLATFORMS": "cpu",
        # On tiny models compiling is nearly all the work: once instead of for each core, and without LLVM's care.
        "JAX_NUM_CPU_DEVICES": "1",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(key, value)
    notebook = nbformat.read(ROOT / f"notebooks/{name}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    return notebook


def texts(notebook: NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


def check_picture(notebook: NotebookNode, count: int = 1) -> None:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == count and all(base64.b64decode(image).startswith(b"\x89PNG") for image in images)


def evaluated_steps(run: Path) -> list[int]:
    return [line["step"] for line in read_metrics(run) if "recall@20" in line]


def test_art_quickstart_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "art_quickstart"
    notebook = run_notebook(
        "art_quickstart", folder, monkeypatch, STEPS=STEPS, SCORER=folder / "scorer", WORKDIR=workdir
    )
    printed = texts(notebook)
    assert "48 passages, 16 test questions" in printed
    assert printed.count("<- answers it") == 1
    assert "before training: recall@20 " in printed and "acc@20" in printed
    assert evaluated_steps(workdir / "art") == list(range(STEPS + 1)), "the curve has a point for each evaluation"
    check_picture(notebook)
    searches = notebook.cells[-2]["outputs"][-1]["text"]
    assert searches.count("...") == 9, "three passages for each of three questions"


@pytest.mark.slow
def test_distil_cross_encoder_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "distil"
    notebook = run_notebook(
        *("distil_cross_encoder", folder, monkeypatch),
        **{"STEPS": 2, "TEACHER_STEPS": 2, "BATCH": 4, "DEPTH": 4, "BUDGETS": "4,8", "LENGTH": 24, "WORKDIR": workdir},
        TEACHER_START=folder / "encoder",
    )
    printed = texts(notebook)
    assert "48 passages; 8 questions of ours, without judgements; 16 test questions" in printed
    scored = [json.loads(line) for line in (workdir / "scored.jsonl").read_text().splitlines()]
    assert len(scored) == 8 and all(len(row["negative_document_ids"]) <= 3 for row in scored)
    for way, pairs in (("Margin-MSE, BM25's candidates", 16), ("KL, BM25's candidates", 32), ("KL, live index", 16)):
        assert re.search(rf"^{re.escape(way)} +{pairs}  +[\d.]+ +[\d.]+$", printed, re.MULTILINE), way
    assert printed.count(" points of MRR@10 over the student before ") == 3
    check_picture(notebook)


def write_generator(folder: Path) -> Path:
    """Writes a random T5 that ends a text after some twenty random pieces; returns it."""
    shape = dataclasses.replace(tiny.T5, tie_word_embeddings=False)
    params = tiny.lively(initialise(lambda rngs: T5Model(shape, rngs=rngs), 0), 2)
    tokenizer = load_tokenizer(folder / "scorer_tokenizer")
    # Alike in all tokens, and larger than the other dimensions: through it each piece has a logit that no state changes.
    params["embedding"]["table"][:, 0] = 10
    params["output"]["kernel"][0] = 0
    params["output"]["kernel"][0, tokenizer.eos_token_id] = 2
    write_folder(folder / "generator", *export_t5(shape, params), tokenizer)
    return folder / "generator"


@pytest.mark.slow
def test_adapt_documents_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own passages and questions, with random words for questions, which lead nowhere: `ROUND_TRIP` 0."""
    workdir = folder / "documents"
    notebook = run_notebook(
        *("adapt_documents", folder, monkeypatch),
        **{"DATA": "", "GENERATOR": write_generator(folder), "WORKDIR": workdir},
        **{"PASSAGES": 40, "PROMPT": 64, "LENGTH": 24, "ROUND_TRIP": 0},
    )
    printed = texts(notebook)
    ours = read_beir(ROOT / "notebooks/medquad", "test")
    assert (len(ours.corpus), len(ours.questions)) == (800, 350)
    assert set().union(*ours.qrels.values()) <= set(ours.corpus.ids)
    assert sum(path.stat().st_size for path in (ROOT / "notebooks/medquad").rglob("*.*")) < 600_000
    assert "800 passages with 270 titles" in printed
    assert re.findall(r" -> (\S+): (\S.*?): ", printed) == [
        ("pump.md", "The pump"),
        ("valve.txt", "valve"),
        ("7", "Filter"),
    ]
    preview = printed.split("Steel mesh for the pump.")[1].split("350 questions")[0]
    assert preview.count("\n    ") == 14, "two questions about each of seven passages"

    report = json.loads((workdir / "adapted/report.json").read_text())
    generated = (workdir / "adapted/generated.jsonl").read_text().splitlines()
    assert report["passages_asked"] == 40 < report["questions"] == len(generated) <= 80
    assert f"{len(generated)} questions about 40 of 800 passages" in printed
    assert "on 350 questions with judgements\n" in printed, "the data's questions, not the generated ones"
    of_model, of_bm25 = report["comparison"]["metrics"], report["comparison"]["baselines"][1]["metrics"]
    for system, means in (
        ("model", of_model),
        ("encoder", {}),
        ("BM25", {name: compared["mean_b"] for name, compared in of_bm25.items()}),
    ):
        row = re.search(rf"^{system}((?: +[\d.]+†?){{3}})", printed, re.MULTILINE)
        assert row and [f"{mean:.4f}" for mean in means.values()] in ([], row[1].replace("†", "").split()), system
    check_picture(notebook, 2)

    moves = re.search(r"further up: (\d+), as before: (\d+), further down: (\d+)", printed)
    assert moves and sum(map(int, moves.groups())) == 350
    parts = re.findall(r"asked about: (\d+) questions, MRR@10 [\d.]+ -> [\d.]+, ", printed)
    assert len(parts) == 2 and sum(map(int, parts)) == 350 > int(parts[1]) > int(parts[0]) > 0
    shown = printed.split(moves[0])[1]
    assert shown.count("  before:\n") == shown.count("  after:\n") == 2 and shown.count("...") == 12


@pytest.mark.slow
def test_dpr_negatives_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "dpr_negatives"
    notebook = run_notebook("dpr_negatives", folder, monkeypatch, STEPS=2, BATCH=8, LENGTH=40, WORKDIR=workdir)
    printed = texts(notebook)

    assert "passages" in printed and "first question: " in printed, "the data are inspected"
    report = json.loads((workdir / "mined_report.json").read_text())
    assert f"{report['dropped']['positive']} passages: positives of the question (positive)" in printed
    assert printed.count("\nright ") == 1 and printed.count("\nwrong ") == 3

    # 8 questions: the other 7 passages of the batch, and with a negative each 8 more; a few are masked.
    negatives = {
        name: [line["negatives"] for line in read_metrics(workdir / name) if "negatives" in line][-1]
        for name in ("in-batch", "BM25-mined", "retrieved")
    }
    assert 6 < negatives["in-batch"] <= 7 < 12 < min(negatives["BM25-mined"], negatives["retrieved"]) <= 15
    for name, mean in negatives.items():
        assert evaluated_steps(workdir / name) == [0, 1, 2]
        assert re.search(rf"^{name} +{mean:.0f} ", printed, re.MULTILINE), "the log's columns are shown"

    table = printed.split("16 test questions, 48 passages")[1].split("MRR@10 of")[0]
    for name in ("BM25", "initial encoder", *negatives):
        assert re.search(rf"^{name} +[\d.]+% +[\d.]+%$", table, re.MULTILINE)
    assert printed.count(", p = ") == 6, "each pair of runs is tested by both measures"
    check_picture(notebook)

    lists = re.findall(r"its passage is on rank \d+;.*\n((?:  .*\n)+)", printed)
    assert [found.count("\n") for found in lists] == [6, 6], "five candidates, and how many hold an answer"
    positive = re.search(r"\nright +[\d.]+ +(.{30})", printed)
    assert positive and not any(positive[1] in found for found in lists), "a judged passage is no negative"

    assert (workdir / "export/modules.json").exists() and "files unchanged" in printed
    difference = re.search(r"between their vectors and ours: (\S+)", printed)
    assert difference and float(difference[1]) < 1e-5


@pytest.mark.slow
def test_spar_lexical_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "spar_lexical"
    notebook = run_notebook(
        *("spar_lexical", folder, monkeypatch),
        **{"QUERIES": 100, "STEPS": 2, "BASE_STEPS": 2, "BATCH": 8, "LENGTH": 16, "WORKDIR": workdir},
    )
    printed = texts(notebook)
    assert "48 passages; questions: 16 train, 16 dev, 16 test" in printed

    lexical_set = LexicalSet.open(workdir / "lexical")
    assert len(LexicalSet.open(workdir / "lexical/dev").queries) == 4
    ranked = re.findall(r"^  rank +(\d+) +([\d.]+)  \S", printed, re.MULTILINE)
    assert [rank for rank, _ in ranked] == ["1", "10", "46"] * 3, "three sentences are shown with what BM25 ranks"
    shown = [lexical_set.teachers[0].scores[number, column] for number in range(3) for column in (0, 9, 10)]
    assert [float(score) for _, score in ranked] == pytest.approx(shown, abs=0.006), "each with the score of its rank"
    assert re.findall(r"^step +(\d): held-out .* MRR of [\d.]+$", printed, re.MULTILINE) == ["0", "1", "2"]
    assert evaluated_steps(workdir / "base") == [0, 2]

    table = printed.split("16 test questions, 48 passages")[1].split("less base")[0]
    row = r"^{} +([\d.]+)% +([\d.]+)% +([\d.]+)$"
    overlap = {
        name: float(re.search(row.format(name), table, re.MULTILINE)[3])  # pyright: ignore[reportOptionalSubscript]
        for name in ("base", "Lambda", "concat")
    }
    assert re.search(r"^BM25 +[\d.]+% +[\d.]+%$", table, re.MULTILINE)
    assert overlap["Lambda"] > overlap["base"], "Lambda begins as a count of shared words, the base is random"
    check_picture(notebook, 2)

    counts = re.search(r"both (\d+), base only (\d+), Lambda only (\d+), neither (\d+)", printed)
    assert counts and sum(map(int, counts.groups())) == 16
    assert ("base: its passage is not among the first 20" in printed) == (counts[3] != "0")

    weight = re.search(r"best weight on 16 dev questions: ([\d.]+)", printed)
    saved = CombinedEncoder.from_pretrained(workdir / "spar")
    assert weight and saved.config.weights == (1.0, pytest.approx(float(weight[1]), abs=0.006))
    assert "16 + 768 = 784 numbers a passage" in printed
    same = re.findall(r"^weight [\d.]+: ([\d.]+)% of the first 20 places", printed, re.MULTILINE)
    assert len(same) == 2 and min(map(float, same)) > 99, "one index gives what each weight gave in the grid"


@pytest.mark.slow
def test_ddr_domains_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "ddr_domains"
    for name, source in (("vision", ARXIV_VISION), ("language", ARXIV_LANGUAGE)):
        write_subset(folder / name, source)
    notebook = run_notebook(
        *("ddr_domains", folder, monkeypatch),
        **{"SOURCE": folder / "vision", "TARGET": folder / "language", "ENCODER": ENCODER_SMALL, "WORKDIR": workdir},
        **{"STEPS": 2, "SOURCE_STEPS": 30, "TARGET_STEPS": 30, "BATCH": 16, "LENGTH": 32},
    )
    printed = texts(notebook)
    for name in ("vision", "language"):
        assert f"{name}: 48 abstracts, 16 test titles" in printed
        perplexity = re.search(rf"{name}: held-out perplexity (\d+) before, (\d+) after", printed)
        assert perplexity and int(perplexity[2]) < int(perplexity[1])

    # LoRA of rank 32 at query and value, and a bottleneck of 32, in 3 layers of 256; in float32.
    size = 3 * (2 * 2 * 256 * 32 + 2 * 256 * 32 + 32 + 256)
    shown = re.search(r"the relevance module: ([\d,]+) parameters, ([\d,]+) kB", printed)
    assert shown and [int(number.replace(",", "")) for number in shown.groups()] == [
        size,
        pytest.approx(4 * size / 1000, rel=0.02),
    ]
    assert f"{size:,} parameters of adapters in the encoder of {workdir / 'language'}" in printed

    table = printed.split("$ jaxretr assemble")[1].split("language, nDCG@10")[0]
    percents = r" +([\d.]+)%" * 6
    rows = {
        name: [float(value) for value in re.search(rf"^{name}{percents}$", table, re.MULTILINE).groups()]  # pyright: ignore[reportOptionalMemberAccess]
        for name in ("BM25", "DR", "REM in vision", "REM in language")
    }
    assert rows["REM in vision"] != rows["REM in language"]
    assert printed.count(", p = ") == 3

    report = json.loads((workdir / "adapted/report.json").read_text())
    assert 100 * report["retrieval"]["ndcg@10"]["mean_b"] == pytest.approx(rows["REM in vision"][5], abs=0.051), (
        "adapt begins with the table's model"
    )
    points = re.findall(r"(\d+): ([\d.]+)%", re.search(r"recall@20 by steps: (.*)", printed)[1])  # pyright: ignore[reportOptionalSubscript]
    assert [int(step) for step, _ in points] == [0, 10, 20, 30]
    assert float(points[0][1]) == rows["REM in vision"][4], "no step: the source's module"
    best = json.loads((workdir / "language/best.json").read_text())["step"]
    assert float(dict(points)[str(best)]) == rows["REM in language"][4]
    check_picture(notebook)


def test_typo_robust_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "typo_robust"
    notebook = run_notebook("typo_robust", folder, monkeypatch, STEPS=2, BATCH=8, LENGTH=16, DRAWS=2, WORKDIR=workdir)
    printed = texts(notebook)
    assert "48 passages, 16 test questions" in printed
    for profile in PROFILES:
        assert len(re.findall(rf"^  {profile} .*\((?:\w+(?:, )?)+\)$", printed, re.MULTILINE)) == 3, "three typos each"
    assert re.search(r"step +2  loss +[\d.]+  typo_contrast +\S+  typo_passages +[\d.]+$", printed, re.MULTILINE)

    for system in (workdir / "plain", workdir / "robust", "BM25"):
        for profile in PROFILES:
            assert re.search(rf"^{system} +{profile} +2 +[\d.]+ % +[\d.]+ +[\d.]+ ", printed, re.MULTILINE)
    assert re.search(rf"^{workdir / 'robust'} +clean +[+-][\d.]+ ", printed, re.MULTILINE), "the models are compared"
    check_picture(notebook)

    worst = re.search(r"\nplain +cosine ([\d.]+), rank of its passage (\d+) -> (\d+)", printed)
    assert worst and 1 <= int(worst[2]) <= int(worst[3]) <= 48, "the question was chosen for what it loses"
    means = re.findall(r"mean cosine of all test questions with their misspelt form (-?[\d.]+)", printed)
    assert len(means) == 2 and all(0 < float(mean) <= 1 for mean in means)


@pytest.mark.slow
def test_verified_index_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "verified_index"
    notebook = run_notebook("verified_index", folder, monkeypatch, SHARD=5, WORKDIR=workdir)
    printed = texts(notebook)
    killed = re.search(r"killed with (\d+) shards finished", printed)
    assert killed and 1 <= int(killed[1]) <= 10
    assert "48 passages, 16 dimensions, float32" in printed and "embedding store" in printed
    assert "embeddings-00000-of-00010.npy was changed; run the same `jaxretr encode` command" in printed
    assert f"{workdir / 'store'}: intact; 48 passages in 10 shards" in printed
    assert "BM25" in printed or "bm25" in printed

    assert "# Recall certificate" in printed and "0.99 @10" in printed
    assert f"{workdir / 'scann'}: intact; " in printed
    same = re.search(r"([\d.]+)% of the exact ten best, over 16 questions", printed)
    assert "every passage is scored" in printed, "so few are"
    # Of 160 places one may hold the other of two passages whose scores are equal up to float32's last bit.
    assert same and float(same[1]) >= 100 * 159 / 160 - 0.05
    assert "43 passages; certificate stale: True" in printed
    assert re.findall(r"^target ([\d.]+): recall@10 ([\d.]+)$", printed, re.MULTILINE) == [
        (target, "1.0000") for target in ("0.9", "0.95", "0.99")
    ]
    for name in ("onnx", "vertex"):
        assert f"{workdir / name}: intact; " in printed
    check_picture(notebook, 2)


def test_main_flow_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "main_flow"
    notebook = run_notebook("main_flow", folder, monkeypatch, STEPS=2, BATCH=8, LENGTH=16, WORKDIR=workdir)
    printed = texts(notebook)
    assert "did you mean" in printed, "a misspelt setting"
    assert evaluated_steps(workdir / "run") == [0, 1, 2]
    assert re.search(r"^best step: [012]$", printed, re.MULTILINE)
    check_picture(notebook)
    assert "recall@20" in printed and "BM25" in printed.upper()
    assert "SearchRun(16 questions, 160 hits)" in printed
    assert len((workdir / "run.trec").read_text().splitlines()) == 160
    assert "golden vectors recomputed" in printed and re.search(
        r"^100\.0% of the exact ten best", printed, re.MULTILINE
    )
    assert printed.count(": intact; ") == 4
    assert "differs" in printed or "changed" in printed, "a flipped bit is found"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_whole_and_small(path: Path) -> None:
    """Without outputs, or with those of one run from top to bottom, as `make notebooks` writes them."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert [cell.execution_count for cell in cells] in ([None] * len(cells), [*range(1, len(cells) + 1)])
    outputs = [output for cell in cells for output in cell.outputs]
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    assert not any(str(ROOT) in json.dumps(output) for output in outputs), "a path of the machine that ran it"
    assert path.stat().st_size < 1_000_000
    assert f"github/jaxretr/jaxretr/blob/main/notebooks/{path.name}" in notebook.cells[0].source
