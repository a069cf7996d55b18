"""The notebooks run from top to bottom, with tiny models on a few of the embedded passages."""

import base64
import gzip
import json
import os
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
import tiny
from nbformat import NotebookNode

from jaxretr.assets import QUICKSTART
from jaxretr.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
STEPS = 4


def write_subset(folder: Path, questions_a_split: int = 16) -> None:
    """Writes a BEIR folder of a few embedded questions of each split, and of their passages."""
    (folder / "qrels").mkdir(parents=True)
    questions, passages = set(), set()
    for split in ("train", "dev", "test"):
        lines = (QUICKSTART / f"qrels/{split}.tsv").read_text().splitlines()[: questions_a_split + 1]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n")
        for line in lines[1:]:
            question, passage, _ = line.split("\t")
            questions.add(question)
            passages.add(passage)
    for name, kept in (("corpus", passages), ("queries", questions)):
        with gzip.open(QUICKSTART / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [line for line in lines if json.loads(line)["_id"] in kept]
        (folder / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notebooks")
    with pytest.MonkeyPatch.context() as patch:
        # As many positions as the quickstart's passages have tokens.
        patch.setattr(tiny, "BERT", tiny.dataclasses.replace(tiny.BERT, max_position_embeddings=112))
        tiny.write_models(folder)
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


def check_picture(notebook: NotebookNode) -> None:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    images = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(images) == 1 and base64.b64decode(images[0]).startswith(b"\x89PNG")


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
    assert "recall@20 before training: " in printed and "acc@20" in printed
    assert evaluated_steps(workdir / "art") == list(range(STEPS + 1)), "the curve has a point for each evaluation"
    check_picture(notebook)
    searches = notebook.cells[-2]["outputs"][-1]["text"]
    assert searches.count("...") == 9, "three passages for each of three questions"


def test_dpr_negatives_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "dpr_negatives"
    notebook = run_notebook("dpr_negatives", folder, monkeypatch, STEPS=2, BATCH=8, LENGTH=16, WORKDIR=workdir)
    printed = texts(notebook)

    assert "passages" in printed and "first question: " in printed, "the data are inspected"
    report = json.loads((workdir / "mined_report.json").read_text())
    assert f"{report['dropped']['positive']} passages positives of the question (positive)" in printed
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

    assert (workdir / "export/question/modules.json").exists() and "files intact" in printed
    difference = re.search(r"between their vectors and ours: (\S+)", printed)
    assert difference and float(difference[1]) < 1e-5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert f"github/jaxretr/jaxretr/blob/main/notebooks/{path.name}" in notebook.cells[0].source
