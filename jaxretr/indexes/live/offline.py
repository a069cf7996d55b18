"""Reindexing a live folder that no service has open."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from jaxretr.embeddings.encoding import Encoder
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.live import database
from jaxretr.indexes.live import reindex as moving
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.reindex import Model, PassageSide, Reindexing
from jaxretr.models.combined_encoder import load_encoder
from jaxretr.models.dual_encoder import EncodeDtype
from jaxretr.models.encode import note_cut
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.progress import Progress

WITH_OPTIONS = "if it was given a prompt or fewer dimensions: as jaxretr export --to jaxretr writes it with these"
"""The model to name where an index was encoded by one with such options."""


@contextlib.contextmanager
def encoding_model(encoder: Encoder, name: str, batch_size: int | None) -> Iterator[Model]:
    """Yield an encoder as a live index needs it; say at the end how many of all texts it cut."""
    encode = PassageSide(encoder, batch_size)
    yield Model(name, model_fingerprint(encoder, "passage"), encoder.config.embedding_size, encode)
    note_cut(encode.cut, encode.count, "passage", encoder.config.max_passage_length)


def reindex(folder: str | Path, to: str | Path, *, dtype: EncodeDtype = "auto", batch_size: int | None = None) -> str:
    """Move a folder to another model, from where an earlier call was interrupted; return a line that says what was done.

    Args:
      to: the new model: a folder or name that `load_encoder` takes.
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.
      batch_size: passages per batch; by default chosen for the device.

    Raises:
      UserError: the folder has this model, or keeps another one's vectors; or another process has it.
    """
    with _opened(folder) as index:
        encoder = load_encoder(to, dtype=dtype)
        before = index.view.space.model
        with (
            encoding_model(encoder, str(to), batch_size) as model,
            Progress(len(index), "passage", "encoded") as progress,
        ):
            move = Reindexing(index, model, advance=progress.advance)
            progress.skip(len(index) - move.state()["lacking"])
            encoded = move.run()
        return (
            f"{folder}: {len(index)} passages, {encoded} of them encoded now, are searched with {model.name}; the vectors of "
            f"{before} stay for a rollback until they are forgotten"
        )


def rollback(folder: str | Path, *, dtype: EncodeDtype = "auto", batch_size: int | None = None) -> str:
    """Switch a folder back to its previous model; encode the documents that were written since.

    Args:
      dtype: precision of the matmuls; auto: bfloat16 where this machine runs it faster.
      batch_size: passages per batch; by default chosen for the device.

    Raises:
      UserError: there is none; or it is needed, and its name now stands for another model.
    """
    with _opened(folder) as index:
        before, space = index.view.space.model, moving.left_space(index)
        with index.database.reading() as connection:
            lacking = database.lacking(connection, space)
        if not lacking:
            moving.rollback(index)
        else:
            with encoding_model(load_encoder(space.model, dtype=dtype), space.model, batch_size) as model:
                if model.fingerprint != space.fingerprint:
                    raise UserError(
                        f"{folder}: {lacking} passages were written since it left {space.model}, which is another model "
                        "now; restore the earlier model there, or move to where it is "
                        f"({WITH_OPTIONS}): jaxretr reindex {folder} --to MODEL"
                    )
                moving.rollback(index, model.encode)
        return (
            f"{folder}: {len(index)} passages, {lacking} of them encoded now, are searched with {space.model} again; the "
            f"vectors of {before} stay until they are forgotten"
        )


def forget(folder: str | Path) -> str:
    """Remove the vectors of the model that is not searched with."""
    with _opened(folder) as index:
        space = moving.forget(index)
        kept = index.view.space.model
        return f"{folder}: has only the vectors of {kept} now" + (
            "" if space is None else f"; those of {space.model} were removed"
        )


def _opened(folder: str | Path) -> contextlib.closing[LiveIndex]:
    return contextlib.closing(LiveIndex.open(folder, name=Path(folder).name, background=False))
