"""Executes notebooks at the settings in them and saves them with their outputs: `python docs/execute.py FILE.ipynb ...`."""

import os
import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

ROOT = Path(__file__).parents[1]
LARGEST = 1_000_000


def execute(path: Path) -> None:
    """Executes one notebook in a folder of its own, and saves it if it ran to its end."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=3600, kernel_name="python3", resources={"metadata": {"path": folder}}
        )
        client.execute()
    for cell in notebook.cells:
        cell.get("metadata", {}).pop("execution", None)  # Times, which differ in every run.
        # Progress and logs on stderr are not for a page; nor is where this checkout is.
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = re.sub(re.escape(str(ROOT)), "jaxretr", output["text"])
    text = nbformat.writes(notebook)
    if len(text) > LARGEST:
        raise SystemExit(f"{path}: {len(text):,} bytes with outputs; make its pictures or printed text smaller")
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for name in sys.argv[1:]:
        execute(Path(name))
        print(f"{name}: {Path(name).stat().st_size:,} bytes")
