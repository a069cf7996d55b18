"""Executes notebooks from top to bottom and stores their outputs: `python docs/execute_notebooks.py [NAME ...]`.

Each runs in a folder of its own, with the defaults that it states. JAXRETR_NOTEBOOK_* variables change these, as in the
tests.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parent.parent
MOST_BYTES = 1_000_000


def execute(path: Path) -> None:
    """Executes one notebook in place.

    Raises:
      SystemExit: with its outputs it would be larger than MOST_BYTES.
      nbclient.exceptions.CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=3600, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # When each cell ran.
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _shown(output["text"], folder)
    notebook.metadata.pop("widgets", None)
    text = nbformat.writes(notebook) + "\n"
    if len(text.encode()) > MOST_BYTES:
        sys.exit(f"{path}: {len(text.encode()):,} bytes with its outputs; print less, or draw smaller pictures")
    path.write_text(text, encoding="utf-8")
    print(f"{path.name}: {time.perf_counter() - started:.0f} s, {len(text.encode()):,} bytes")


def _shown(text: str, folder: str) -> str:
    """What a reader sees: progress bars at their end only, and paths without this machine's folders."""
    text = re.sub(r"[^\n]*\r(?!\n)", "", text)
    return text.replace(folder, ".").replace(f"{ROOT}{os.sep}", "")


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for name in names:
        execute(ROOT / f"notebooks/{name}.ipynb")
