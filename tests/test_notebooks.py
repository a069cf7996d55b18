"""The notebooks run from top to bottom, with tiny models on a few of the embedded passages."""

import base64
import gzip
import json
import os
from pathlib import Path

import nbclient
import nbformat
import pytest
import tiny

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


def texts(notebook: nbformat.NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output["text"] for output in outputs if output.get("name") == "stdout")


def test_art_quickstart_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workdir = folder / "work"
    for name, value in {
        "JAXRETR_NOTEBOOK_STEPS": str(STEPS),
        "JAXRETR_NOTEBOOK_DATA": str(folder / "data"),
        "JAXRETR_NOTEBOOK_ENCODER": str(folder / "encoder"),
        "JAXRETR_NOTEBOOK_SCORER": str(folder / "scorer"),
        "JAXRETR_NOTEBOOK_WORKDIR": str(workdir),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "notebooks/art_quickstart.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()

    printed = texts(notebook)
    assert "48 passages, 16 test questions" in printed
    assert printed.count("<- answers it") == 1
    assert "recall@20 before training: " in printed and "acc@20" in printed
    steps = [line["step"] for line in read_metrics(workdir / "art") if "recall@20" in line]
    assert steps == list(range(STEPS + 1)), "the learning curve has a point for each evaluation"
    images = [
        output["data"]["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(images) == 1 and base64.b64decode(images[0]).startswith(b"\x89PNG")
    searches = notebook.cells[-2]["outputs"][-1]["text"]
    assert searches.count("...") == 9, "three passages for each of three questions"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert cells
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert f"github/jaxretr/jaxretr/blob/main/notebooks/{path.name}" in notebook.cells[0].source
