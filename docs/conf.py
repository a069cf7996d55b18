"""Sphinx settings. Before Sphinx reads a page, the references of commands and settings are written from the code."""

import shutil
import sys
from pathlib import Path

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(ROOT), str(DOCS)]

import references  # noqa: E402

from jaxretr.version import __version__  # noqa: E402

project = "jaxretr"
author = "the jaxretr authors"
release = version = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"jaxretr {__version__}"
exclude_patterns = ["_build", "README.md"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Notebooks are shown with the outputs that are committed; `make notebooks` executes them.
nb_execution_mode = "off"

autodoc_typehints = "description"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False

# Copied or written below, and not in git.
NOTEBOOKS = DOCS / "notebooks"
GENERATED = DOCS / "reference/generated"

shutil.rmtree(NOTEBOOKS, ignore_errors=True)
shutil.copytree(ROOT / "notebooks", NOTEBOOKS)
shutil.rmtree(GENERATED, ignore_errors=True)
references.write(GENERATED)
