"""Verifying any export: which module looks at which kind."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from jaxretr.errors import UsageError, UserError, did_you_mean
from jaxretr.export.verify_model import Library, Report
from jaxretr.export.verify_model import verify as verify_model
from jaxretr.stores import manifest

# By the kind that manifest.json names: the module whose verify(folder) -> str recomputes what the folder promises.
_MODULES = {
    "scann": "jaxretr.search.scann.upkeep",
    "vertex": "jaxretr.export.vertex",
    "pyserini": "jaxretr.export.pyserini",
    "faiss": "jaxretr.export.faiss_index",
    "onnx": "jaxretr.export.onnx_encoder",
    "stablehlo": "jaxretr.export.stablehlo",
}


def verify(folder: str | Path, library: Library | None = None) -> Report | str:
    """Recomputes what an export promises from what is in the folder.

    Args:
      folder: what `jaxretr export` wrote, of any target.
      library: one that shall compute an exported model's vectors too.

    Returns:
      What agrees: of a model a `Report`, of other exports a sentence; both print as one line.

    Raises:
      UserError: something differs (one line that names all of it), or the folder is no export.
      UsageError: a library is asked to read what is no model.
    """
    folder = Path(folder).expanduser()
    if manifest.is_export(folder):
        kind = manifest.read(folder).kind
        if library is not None:
            raise UsageError(f"{folder}: is an export --to {kind}, which {library} does not read; leave --with out")
        if kind not in _MODULES:
            hint = did_you_mean(kind, _MODULES) or "; install a newer jaxretr"
            raise UserError(f"{folder / manifest.MANIFEST}: of an unknown kind '{kind}'{hint}")
        check: Callable[[Path], str] = import_module(_MODULES[kind]).verify
        try:
            return check(folder)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
            # No byte differs from the hashes, so the manifest was written over, with a hash of its own.
            raise UserError(
                f"{folder / manifest.MANIFEST}: its facts are not those of an export --to {kind} "
                f"({type(error).__name__}: {error}); export again"
            ) from error
    return verify_model(folder, library)
