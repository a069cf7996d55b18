"""Scores of many pairs: in chunks that an interrupted call resumes after, and that several processes share."""

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxretr.data.pairs import Pair
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.models.any_scorer import Scorer
from jaxretr.models.encode import note_cut, without_truncation_warnings
from jaxretr.models.pair_scorer import PairScorer
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.progress import Progress

log = logging.getLogger(__name__)

CHUNK = 4096
"""Pairs that are scored, and kept, at a time."""

# A version that changes when the same pairs of the same model would get other scores.
_VERSION = 2


class Pairs(NamedTuple):
    """The number of pairs, and a sha256 (hexadecimal) over all of them in their order."""

    count: int
    fingerprint: str

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> "Pairs":
        """Count and hash pairs, which are read once."""
        digest, count = hashlib.sha256(), 0
        for count, pair in enumerate(pairs, start=1):  # noqa: B007
            digest.update(json.dumps(pair).encode() + b"\n")
        return cls(count, digest.hexdigest())


def kept_scores(out: Path, scorer: Scorer, pairs: Pairs, chunk: int, batch_size: int | None) -> KeptChunks:
    """The folder in which a call that will write `out` keeps the scores of finished chunks; all processes must call this.

    Raises:
      UserError: processes have other models, pairs or settings.
    """
    facts = {
        "version": _VERSION,
        "model": scorer.fingerprint(),
        "pairs": pairs.fingerprint,
        "size of chunks": chunk,
        "batch size": batch_size,
    }
    return KeptChunks.beside(out, "scores", facts)


def score_pairs(
    scorer: Scorer,
    pairs: Iterable[Pair],
    count: int,
    *,
    chunk: int = CHUNK,
    batch_size: int | None = None,
    kept: KeptChunks | None = None,
    shown: bool = True,
) -> np.ndarray:
    """Score pairs on all devices of all processes: the scorer's raw scores, float32 [n].

    With several processes, each scores every n-th chunk; all must call this with the same pairs, and all get all scores.

    Args:
      pairs: read once, a chunk at a time.
      count: the number of pairs, n.
      chunk: pairs at a time. The scores of a chunk do not depend on the other chunks.
      batch_size: pairs per batch; None: chosen for the device.
      kept: the folder in which finished chunks are kept, and from which they are read; None: no folder.
      shown: whether progress and speed are shown.

    Raises:
      UserError: a score is not a finite number, or a chunk cannot be written.
    """
    processes, process = jax.process_count(), jax.process_index()
    scores = np.zeros(count, np.float32)
    share = range(process, -(-count // chunk), processes)
    found: dict[int, np.ndarray] = {}
    if kept is not None:
        for number in share:
            if (arrays := kept.read(number, (np.float32, (min(chunk, count - number * chunk),)))) is not None:
                [found[number]] = arrays
    of_share = sum(min(chunk, count - number * chunk) for number in share)
    cut, began, rest = 0, time.monotonic(), iter(pairs)
    with Progress(of_share, "pair", "scored", shown=shown) as progress, without_truncation_warnings():
        progress.skip(sum(map(len, found.values())))
        for number in range(-(-count // chunk)):
            piece = list(islice(rest, chunk))
            start = number * chunk
            if len(piece) != min(chunk, count - start):
                raise UserError(
                    "the pairs have changed while they were read; leave the files as they are, and start again"
                )
            if number in found:
                scores[start : start + len(piece)] = found[number]
            elif number in share:
                of_chunk = _scored(scorer, piece, start, batch_size)
                cut += scorer.truncated if isinstance(scorer, PairScorer) else 0
                if kept is not None:
                    kept.write(number, np.asarray(of_chunk, np.float32))
                scores[start : start + len(piece)] = of_chunk
                progress.advance(len(piece))
    note_cut(cut, progress.done - progress.skipped, "pair")
    if shown and (new := progress.done - progress.skipped) > chunk:
        log.info("scored %d pairs, %.0f/s", new, new / (time.monotonic() - began))
    return _of_all_processes(scores, chunk)


def _scored(scorer: Scorer, pairs: Sequence[Pair], start: int, batch_size: int | None) -> np.ndarray:
    """The scores of one chunk, whose first pair is number `start`."""
    questions = [pair.question for pair in pairs]
    passages = [{"title": pair.title, "text": pair.text} for pair in pairs]
    options: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    if isinstance(scorer, PairScorer):
        scores = scorer.score(questions, passages, progress=False, **options)
    else:
        scores = scorer.score(questions, passages, **options)
    if not (finite := np.isfinite(scores)).all():
        at = int(finite.argmin())
        raise UserError(
            f"pair {start + at + 1} ('{pairs[at].question[:60]}') has the score {scores[at]}; check the model, or compute "
            "in float32"
        )
    return scores


def _of_all_processes(scores: np.ndarray, chunk: int) -> np.ndarray:
    """Put chunks together, the n-th of which process n % N has scored; all processes must call this."""
    processes, process = jax.process_count(), jax.process_index()
    if processes == 1:
        return scores
    whole = np.pad(scores, (0, -len(scores) % (chunk * processes))).reshape(-1, processes, chunk)
    for of_round in whole:
        of_round[:] = multihost_utils.process_allgather(of_round[process])
    return whole.reshape(-1)[: len(scores)]
