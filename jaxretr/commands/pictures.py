"""What the pictures of the commands share: no screen, and no dates."""

from pathlib import Path
from typing import Any

from jaxretr.errors import UsageError
from jaxretr.storage.files import atomic_write

ENDINGS = (".png", ".pdf", ".svg")

# What a file would say about when it was made: the same figures give the same file.
_UNDATED = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def check_ending(option: str, path: str) -> None:
    """Raises UsageError for a picture of another format."""
    if not path.lower().endswith(ENDINGS):
        raise UsageError(f"{option} {path}: give a name that ends in {', '.join(ENDINGS)}")


def pyplot() -> Any:
    """matplotlib.pyplot, which draws into files alone."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    return matplotlib.pyplot


def save(figure: Any, path: Path) -> None:
    """Writes the figure, in the format that the name ends in, and closes it."""
    import matplotlib

    form = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context({"svg.hashsalt": "jaxretr"}), atomic_write(path, "wb") as file:
        figure.savefig(file, dpi=120, format=form, metadata=_UNDATED[form])
    pyplot().close(figure)


def plain(name: str) -> str:
    """A name as it is, in lines of a path's parts: between dollars matplotlib would read formulas."""
    return name.replace("$", r"\$").replace("/", "/\n" if len(name) > 16 else "/")
