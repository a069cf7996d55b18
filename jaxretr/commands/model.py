"""The MODEL argument of the commands, and encoding with it."""

import argparse
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from jaxretr.commands.progress import Progress
from jaxretr.data.corpus import Corpus
from jaxretr.data.questions import Question
from jaxretr.errors import UserError
from jaxretr.files import restore
from jaxretr.models.combined_encoder import CombinedEncoder, TextEncoder
from jaxretr.models.combined_folder import load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.encode import without_truncation_warnings

log = logging.getLogger(__name__)

# Rows between two signs of life on a CPU. Elsewhere a whole shard is encoded at once: the devices wait while the first
# texts of a piece are tokenised, which only a CPU is slow enough not to notice.
_PIECE_ROWS_ON_CPU = 2048


def load_model(args: argparse.Namespace) -> DualEncoder | CombinedEncoder:
    """Loads MODEL with the options that cli.py adds for it."""
    check_finished(args.model)
    return load_encoder(
        args.model,
        passage_path=args.passage_model,
        tokenizer=args.tokenizer,
        pooling=args.pooling,
        dtype=getattr(args, "compute", "float32"),  # `export` has no --compute: it writes what is stored.
        truncate_dim=args.truncate_dim,
    )


def check_finished(model: str) -> None:
    """Raises UserError for the folder of a run that has no model yet."""
    folder = Path(model).expanduser()
    restore(folder / "model")
    if (folder / "checkpoints").is_dir() and not (folder / "model").is_dir():
        raise UserError(f"{folder}: this run has written no model yet; finish it with `jaxretr train`")


def encode(encoder: TextEncoder, content: Corpus | Sequence[Question], batch_size: int | None) -> np.ndarray:
    """Encodes a whole corpus or list of questions, showing progress; float32 [n, D]."""
    what = "passage" if isinstance(content, Corpus) else "question"
    with Progress(len(content), what, "encoded") as progress:
        embeddings, cut = encode_rows(
            encoder, content, 0, len(content), batch_size=batch_size, advance=progress.advance
        )
    if cut:
        longest = getattr(encoder.config, f"max_{what}_length")
        log.warning("%d of %d %ss were cut at %d tokens", cut, len(content), what, longest)
    return embeddings


def encode_rows(
    encoder: TextEncoder,
    content: Corpus | Sequence[Question],
    start: int,
    stop: int,
    *,
    batch_size: int | None = None,
    advance: Callable[[int], None] = lambda rows: None,
) -> tuple[np.ndarray, int]:
    """Encodes passages or questions [start, stop), with signs of life.

    Args:
      encoder: whose passage side encodes a corpus and whose question side encodes questions.
      content: at least `stop` passages or questions.
      start, stop: the rows.
      batch_size: rows a batch; None: what suits the device.
      advance: called with the number of rows that were encoded since the last call.

    Returns:
      float32 [stop - start, D], and how many texts were cut at the model's maximum length.
    """
    step = min(_PIECE_ROWS_ON_CPU, stop - start) if jax.default_backend() == "cpu" else stop - start
    pieces, cut = [], 0
    for first in range(start, stop, step):
        last = min(first + step, stop)
        with without_truncation_warnings():  # One a piece would bury the progress; the callers say it once.
            if isinstance(content, Corpus):
                passages = [content[row] for row in range(first, last)]
                pieces.append(encoder.encode_passages(passages, batch_size=batch_size, progress=False))
            else:
                texts = [question.text for question in content[first:last]]
                pieces.append(encoder.encode_queries(texts, batch_size=batch_size, progress=False))
        cut += encoder.truncated
        advance(last - first)
    return np.concatenate(pieces), cut
