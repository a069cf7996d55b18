"""Encoding of whole corpora: into an embedding store that an interrupted run resumes with, or into memory."""

import inspect
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_questions
from jaxretr.embeddings.embedding_store import EmbeddingStore, StoreMeta, default_shard_rows, one_ahead
from jaxretr.embeddings.fingerprints import model_fingerprint, texts_fingerprint
from jaxretr.embeddings.vector_files import StoredDtype, VectorDtype
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder, parts_of
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import Side
from jaxretr.models.encode import note_cut
from jaxretr.models.text_encoder import TextEncoder
from jaxretr.runtime.errors import UsageError, UserError, at_least, check_choice, check_list, check_rows, path_text
from jaxretr.runtime.parallel.hosts import agree, wait_for_all
from jaxretr.runtime.parallel.memory import announce
from jaxretr.runtime.progress import Progress, counted

log = logging.getLogger(__name__)

Encoder = DualEncoder | CombinedEncoder
Path_ = str | Path
Content = Corpus | CorpusStream | Sequence[Question]

# A text of 100 words as Python holds it, and its tokens.
_BYTES_A_TEXT = 3_000

# Bytes of the encoder's own arrays while it runs: programs and activations of a batch that suits a CPU.
_BYTES_OF_THE_ENGINE = 200 * 2**20

# Shards in memory at a time: one is read, one tokenised, one encoded and one written.
_SHARDS_AT_A_TIME = 4


def encode(
    encoder: Encoder | Path_,
    *,
    corpus: Corpus | CorpusStream | Path_ | Sequence[Path_] | None = None,
    queries: Path_ | Sequence[Question] | None = None,
    out: Path_,
    dtype: VectorDtype = "float32",
    shard_rows: int | None = None,
    shards: Sequence[int] | None = None,
    batch_size: int | None = None,
    model: str | None = None,
    option: str = "out",
) -> EmbeddingStore:
    """Encode a corpus or questions into an embedding store; resume where an earlier call was interrupted.

    A call with the same model, texts and settings encodes the shards that are missing, and none where the store is
    complete. With several processes, each encodes its share of the shards on its own devices; all must call this,
    and all must see the folder. Processes that do not know of each other encode some `shards` each; a call without
    `shards` then encodes what is still missing.

    Args:
      encoder: the model, or what `load_encoder` takes.
      corpus: the passages: BEIR jsonl or folder, DPR tsv, MS MARCO tsv; also .gz. Several files are one corpus. Or a
        corpus that was read. Files are read along the way: the texts of a few shards are in memory at a time.
      queries: the questions, in place of a corpus, for the model's question side: a file or questions.
      out: a new or empty folder, or that of an interrupted call; also gs:// or s3://.
      dtype: type of the stored numbers; int8 has one scale per row. Sparse vectors are stored as float32 or int8.
      shard_rows: rows per shard, which an interruption loses; by default those of a store that was begun, otherwise a
        thousandth of the corpus, but at least 256 on CPUs and 16384 per accelerator, and at most 50000 or 128 MiB.
      shards: the numbers of the shards to look at and to encode where they are missing; with none the store is begun.
      batch_size: texts per batch; by default chosen for the device.
      model: the model's name in messages; by default the place it was loaded from.
      option: the name of `out` in messages.

    Returns:
      The complete store; with `shards` the begun one.

    Raises:
      UsageError: not exactly one of corpus and queries, a number below 1, or `shards` that the store does not have.
      UserError: bad input; or the folder holds something else, or another model's or other texts' embeddings.
    """
    if (corpus is None) == (queries is None):
        raise UsageError("encode needs either corpus or queries; give one of them")
    at_least(1, shard_rows=shard_rows, batch_size=batch_size)
    if shards is not None:
        check_list("shards", shards)
        shards = list(shards)
    check_choice(get_args(VectorDtype), dtype=dtype)
    if not isinstance(model, str | None):
        raise UsageError(f"model={model!r:.60}: give a name")
    encoder = loaded(encoder)
    content = _questions(queries) if corpus is None else _passages(corpus)
    side: Side = "question" if corpus is None else "passage"
    rows, dim = (content.num_rows if isinstance(content, CorpusStream) else len(content)), encoder.config.embedding_size
    shard_rows = int(shard_rows or EmbeddingStore.begun_shard_rows(out) or default_shard_rows(rows, dim))
    meta = StoreMeta(
        side=side,
        model=model or name_of(encoder),
        model_fingerprint=model_fingerprint(encoder, side),
        texts_fingerprint=texts_fingerprint(content),
        rows=rows,
        dim=dim,
        dtype=_stored_dtype(encoder, dtype),
        compute=",".join(sorted({part.dtype for part in parts_of(encoder)})),
        shard_rows=shard_rows,
    )
    agree(
        "the first shard",
        {"model": meta.model_fingerprint, "corpus": meta.texts_fingerprint, "size of shards": str(shard_rows)},
    )
    store = EmbeddingStore.begin(out, meta, ids_of(content), option=option, shards=shards)
    missing = store.missing(shards)
    if missing:
        _write(store, missing, meta.share if shards is None else set(shards), encoder, content, batch_size)
    wait_for_all("the end of encoding")
    return EmbeddingStore.open(out) if shards is None else store


def _stored_dtype(encoder: Encoder, dtype: VectorDtype) -> StoredDtype:
    if not is_sparse_encoder(encoder):
        return dtype
    if dtype not in ("float32", "int8"):
        raise UserError(f"dtype={dtype}: sparse vectors are stored as float32 or int8; give one of them")
    return "sparse-int8" if dtype == "int8" else "sparse-float32"


def is_sparse_encoder(encoder: TextEncoder) -> bool:
    """Whether an encoder's vectors have weights for the vocabulary's entries, most of them 0."""
    return isinstance(encoder, DualEncoder) and encoder.config.sparse


def _write(
    store: EmbeddingStore,
    missing: Sequence[int],
    share: Iterable[int],
    encoder: Encoder,
    content: Content,
    batch_size: int | None,
) -> None:
    """Encode the missing shards of a share: one is read, one tokenised and one written while another is encoded."""
    meta, side = store.meta, store.meta.side
    spans = list(map(meta.span, missing))
    left = sum(stop - start for start, stop in spans)
    of_share = sum(stop - start for start, stop in map(meta.span, share))
    announce(
        f"{left} {side}s of {meta.dim} dimensions",
        _SHARDS_AT_A_TIME * min(meta.shard_rows, meta.rows) * (meta.dim * 4 + _BYTES_A_TEXT) + _BYTES_OF_THE_ENGINE,
        disk=meta.bytes * left // meta.rows,
        folder=store.folder if store.local else None,
    )
    began = time.monotonic()
    with (
        Progress(of_share, side, "encoded") as progress,
        ThreadPoolExecutor(1, "read") as reading,
        ThreadPoolExecutor(1, "write") as writing,
    ):
        progress.skip(of_share - left)
        pieces = one_ahead(reading, _pieces(content, spans))
        # The shapes of the batches, and so the numbers, follow the size of the store, not that of its missing part.
        found = encoder.encode_pieces(side, pieces, batch_size=batch_size, total=meta.rows, advance=progress.advance)
        written: Future[None] | None = None
        for shard, (embeddings, cut) in zip(missing, found, strict=True):
            if written is not None:
                written.result()
            written = writing.submit(store.write, shard, embeddings, cut)
        if written is not None:
            written.result()
    seconds = time.monotonic() - began
    log.info("encoded %d %ss in %.0f s, %.0f/s", left, side, seconds, left / seconds)


def encode_texts(encoder: TextEncoder, content: Corpus | Sequence[Question], batch_size: int | None) -> np.ndarray:
    """Encode a whole corpus or list of questions into memory, showing progress; float32 [n, D]."""
    what = "passage" if isinstance(content, Corpus) else "question"
    with Progress(len(content), what, "encoded") as progress:
        embeddings, cut = encode_rows(encoder, content, batch_size=batch_size, advance=progress.advance)
    note_cut(cut, len(content), what, getattr(encoder.config, f"max_{what}_length"))
    return embeddings


def encode_rows(
    encoder: TextEncoder,
    content: Corpus | Sequence[Question],
    *,
    batch_size: int | None = None,
    advance: Callable[[int], object] = lambda rows: None,
) -> tuple[np.ndarray, int]:
    """Encode passages or questions, and report progress.

    Args:
      encoder: the model; its passage side encodes a corpus, its question side questions.
      content: n passages or questions.
      batch_size: rows per batch; None: chosen for the device.
      advance: called with the number of rows that were encoded since the last call.

    Returns:
      The embeddings, float32 [n, D], and the number of texts that were cut at the model's maximum length.
    """
    side: Side = "passage" if isinstance(content, Corpus) else "question"
    [found] = encoder.encode_pieces(side, [_as_texts(content)], batch_size=batch_size, advance=advance)
    return found


def ids_of(content: Content) -> Iterable[str]:
    """The ids of passages or questions, in their order."""
    if isinstance(content, CorpusStream):
        return (passage.id for _, passage in content.passages())
    return content.ids if isinstance(content, Corpus) else (question.id for question in content)


# ---- models and texts that may have to be loaded ---------------------------------------------------------------------


def loaded(encoder: Encoder | Path_ | Callable[[], Encoder]) -> Encoder:
    """The encoder, the one loaded from a path or hub name, or what a function returns that loads it late.

    Raises:
      UsageError: it is none of these.
    """
    if isinstance(encoder, str | Path):
        return load_encoder(os.fspath(encoder))
    found: Any = encoder
    if callable(found) and not hasattr(found, "encode_passages") and not inspect.signature(found).parameters:
        found = found()
    if not hasattr(found, "encode_passages"):
        raise UsageError(
            f"a {type(found).__name__} is not an encoder; give a DualEncoder or CombinedEncoder, or a path or hub name"
        )
    return found  # pyright: ignore[reportReturnType]


def name_of(encoder: Encoder) -> str:
    """The name of a model in messages: the place it was loaded from."""
    return getattr(encoder, "source", None) or f"a {type(encoder).__name__} that was not loaded from a folder"


def _passages(corpus: Corpus | CorpusStream | Path_ | Sequence[Path_]) -> Corpus | CorpusStream:
    if isinstance(corpus, Corpus | CorpusStream):
        return corpus
    paths = [corpus] if isinstance(corpus, str | Path) else corpus
    check_list("corpus", paths)
    return CorpusStream([path_text(path) for path in paths], watch=lambda passages: counted(passages, "passage"))


def _questions(queries: Path_ | Sequence[Question] | None) -> Sequence[Question]:
    assert queries is not None
    if isinstance(queries, str | Path):
        return read_questions(Path(queries))
    check_rows("queries", queries)
    questions = list(queries)
    if wrong := next((each for each in questions if not isinstance(each, Question)), None):
        raise UsageError(f"queries: a {type(wrong).__name__} is no Question; give Question(id, text), or a file")
    return questions


# ---- pieces ----------------------------------------------------------------------------------------------------------


def _pieces(content: Content, spans: Sequence[tuple[int, int]]) -> Iterator[Sequence[Passage | str]]:
    """Yield the texts of spans [start, stop), which ascend."""
    if not isinstance(content, CorpusStream):
        for start, stop in spans:
            yield _as_texts(content, start, stop)
        return
    passages, row = content.passages(), 0
    for start, stop in spans:
        next(islice(passages, start - row, start - row), None)
        piece = [passage for _, passage in islice(passages, stop - start)]
        if len(piece) < stop - start:
            raise UserError("the corpus has become shorter while it was read; leave it as it is, and start again")
        yield piece
        row = stop


def _as_texts(content: Corpus | Sequence[Question], start: int = 0, stop: int | None = None) -> Sequence[Passage | str]:
    """Rows [start, stop) as encoders take them."""
    if isinstance(content, Corpus):
        return [content[row] for row in range(start, len(content) if stop is None else stop)]
    return [question.text for question in content[start:stop]]
