"""Sphinx's settings. Pages that repeat the code (settings, commands, public names) are generated at every build."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import generate  # noqa: E402

import jaxretr  # noqa: E402

project = "jaxretr"
author = "the jaxretr authors"
release = jaxretr.__version__
html_title = f"jaxretr {release}"
html_theme = "furo"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # Shown with the outputs in the files, which `make notebooks` writes.
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
add_module_names = False
napoleon_include_init_with_doc = True
napoleon_use_ivar = True

GITHUB = "https://github.com/jaxretr/jaxretr/blob/main"

# Files that live elsewhere and are pages here: page -> file.
COPIES = {
    "tpu.md": "tpu/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{f"notebooks/{path.name}": f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")},
}
for _page, _file in COPIES.items():
    (HERE / _page).parent.mkdir(exist_ok=True)
    shutil.copyfile(ROOT / _file, HERE / _page)
generate.write(HERE / "_generated")

_LINK = re.compile(r"\]\(((?!#|[a-z]+:)[^)\s#]+)(#[^)\s]*)?\)")
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
_TESTS = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}


def _links(app: Any, docname: str, source: list[str]) -> None:
    """Lets links be relative to the file, as GitHub shows them: to a page here, or else to the repository."""
    page = next((page for page in COPIES if page.rsplit(".", 1)[0] == docname), None)
    folder = (ROOT / COPIES[page]).parent if page else (HERE / docname).parent

    def link(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        name = target.relative_to(ROOT).as_posix()
        known = next((page for page, file in COPIES.items() if file == name), None)
        if known is None and not name.startswith("docs/"):
            return f"]({GITHUB}/{name}{found[2] or ''})"
        target = HERE / known if known else target
        return f"]({Path('/', target.relative_to(HERE)).as_posix()}{found[2] or ''})"

    def test(found: re.Match[str]) -> str:
        path = _TESTS[found[1]]
        line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if f"def {found[2]}(" in text)
        return f"[`{found[1]}::{found[2]}`]({GITHUB}/{path.relative_to(ROOT).as_posix()}#L{line})"

    if not docname.startswith("notebooks/"):
        source[0] = _TEST.sub(test, _LINK.sub(link, source[0]))


def setup(app: Any) -> None:
    app.connect("source-read", _links)
