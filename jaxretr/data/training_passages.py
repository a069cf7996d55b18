"""The passages that a training file brings, as a corpus."""

from pathlib import Path

from jaxretr.data.corpus import Corpus, read_corpus
from jaxretr.data.formats.kinds import file_kind
from jaxretr.data.training_set import load_training_set
from jaxretr.errors import UserError

WITH_PASSAGES = ("dpr", "dpr-scale", "tevatron", "sentence-transformers", "flag")
"""Training formats with the passages' texts in named fields. A table without a header may be a corpus."""


def is_training_file(path: str | Path) -> bool:
    """Whether a file (no folder) is in one of the formats `WITH_PASSAGES`."""
    path = Path(path).expanduser()
    if path.is_dir():
        return False
    try:
        return file_kind(path) in WITH_PASSAGES
    except UserError:  # Not a known format: the reader's own error is more helpful.
        return False


def read_passages(path: str | Path) -> Corpus:
    """Reads a corpus, also that of a training file: its positives and negatives, each once.

    Raises:
      UserError: as `read_corpus` and `load_training_set`.
    """
    return load_training_set(path).passages if is_training_file(path) else read_corpus(path)
