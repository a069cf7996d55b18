"""One state of a live index in memory: searches read it, and writes make the next one from it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.indexes.exact import first_pass
from jaxretr.indexes.exact.host_rows import scaled_questions, unscaled
from jaxretr.indexes.exact.host_search import HostSearch
from jaxretr.indexes.exact.slabs import QUERY_BUCKETS
from jaxretr.indexes.filters import Value, conditions_of
from jaxretr.indexes.index import Hit, SearchOptions
from jaxretr.indexes.live.database import Space
from jaxretr.indexes.live.segments import Base, Segment, TailRows, columns_of
from jaxretr.indexes.live.writes import Change
from jaxretr.indexes.recall import of_target
from jaxretr.runtime.errors import UserError

# Fewer products than this are computed by the thread that searches: handing rows to others takes longer, and much longer
# on a busy machine. `HostSearch` hands over rows from twice 1,024 on.
_FEW_PRODUCTS, _UNDIVIDED_ROWS = 1 << 22, 2047

# Scores float32 [B, k] and positions int64 [B, k]: those of the base, then those of the tail.
Found = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class View:
    """One state, which never changes, so that a search sees one state, however long it takes.

    Attributes:
      space: the space of the vectors.
      sequence: the number of the last write that it includes.
      base, tail: the rows.
      base_there, tail_there: masks of the rows that still exist, bool [n].
      room: the storage of the tail's rows, for the next state.
      count: the number of rows that still exist.
      names: fields of rows that no longer exist are among these: a filter on one finds nothing, before as after a snapshot.
    """

    space: Space
    sequence: int
    base: Base
    tail: Segment
    base_there: NDArray[np.bool_]
    tail_there: NDArray[np.bool_]
    room: TailRows
    count: int
    names: Sequence[str] = ()

    # ---- the next state ----------------------------------------------------------------------------------------------

    def after(self, changes: Sequence[Change]) -> "View":
        """The state after some writes; only for the newest state, and from one thread."""
        base_there, tail_there = self.base_there, self.tail_there
        removed = [row for change in changes for row in change.removed]
        added = [change for change in changes if len(change.rows)]
        for change in added:
            self.room.append(change.rows, change.ids, columns_of(change.metadata), change.vectors)
        tail = self.tail
        if added:
            tail = self.room.segment()
            tail_there = np.ones(len(tail), bool)
            tail_there[: len(self.tail)] = self.tail_there
        if removed:
            if len(places := self.base.positions(removed)):
                base_there = base_there.copy()
                base_there[places] = False
            if len(places := tail.positions(removed)):
                tail_there = tail_there.copy()
                tail_there[places] = False
        count = self.count + sum(len(change.rows) - len(change.removed) for change in changes)
        sequence = max(self.sequence, *(change.sequence for change in changes))
        return replace(
            self,
            **{"sequence": sequence, "tail": tail, "base_there": base_there, "tail_there": tail_there, "count": count},
        )

    def on(self, base: Base) -> "View":
        """Put the state on a newer snapshot, which holds all rows up to its last one and none that is unknown here."""
        there = np.concatenate([self.base.rows[self.base_there], self.tail.rows[self.tail_there]])
        room = TailRows(self.space.dim)
        kept = np.flatnonzero(self.tail_there & (self.tail.rows > (base.rows[-1] if len(base) else 0)))
        room.append(
            self.tail.rows[kept],
            [self.tail.ids[place] for place in kept.tolist()],
            {name: [values[place] for place in kept.tolist()] for name, values in self.tail.columns.items()},
            self.tail.vectors[kept],
        )
        tail = room.segment()
        base_there = np.isin(base.rows, there, assume_unique=True)
        tail_there = np.ones(len(tail), bool)
        return View(self.space, self.sequence, base, tail, base_there, tail_there, room, self.count, self.fields)

    @property
    def _segments(self) -> tuple[tuple[Segment, NDArray[np.bool_]], ...]:
        """Base and tail, each with the mask of its rows that exist."""
        return (self.base, self.base_there), (self.tail, self.tail_there)

    @property
    def changes(self) -> int:
        """Rows that were added to or removed from the base."""
        return len(self.tail) + len(self.base) - int(np.count_nonzero(self.base_there))

    # ---- searching ---------------------------------------------------------------------------------------------------

    def hits(self, scores: NDArray[np.float32], positions: NDArray[np.int64]) -> list[list[Hit]]:
        """The hits of each question, made of the scores and positions that `found` returned."""
        return [
            list(map(Hit, map(self.id, places), found))
            for found, places in zip(scores.tolist(), positions.tolist(), strict=True)
        ]

    def found(self, vectors: NDArray[np.float32], k: int, options: SearchOptions) -> Found:
        """Find passages; see `Index.search`."""
        if options.target_recall is not None and self.base.scann is not None:
            settings = self.base.scann.facts.settings
            of_target(settings, options.target_recall, "the index", "choose one of these")
        allowed = self._allowed(options)
        if self.is_approximate(options):
            return self.approximate(vectors, k, options.target_recall, allowed=allowed)
        return self.exact(vectors, k, allowed)

    def id(self, position: int) -> str:
        """The id of a row at a position that `found` returned."""
        segment, place = self._at(position)
        return segment.ids[place]

    def row(self, position: int) -> int:
        """The number in the database of a row at such a position."""
        segment, place = self._at(position)
        return int(segment.rows[place])

    def vector(self, position: int) -> NDArray[np.float32]:
        """The vector of a row at such a position, float32 [D]."""
        segment, place = self._at(position)
        return segment.vectors[place]

    def _at(self, position: int) -> tuple[Segment, int]:
        n = len(self.base)
        return (self.base, position) if position < n else (self.tail, position - n)

    def is_approximate(self, options: SearchOptions) -> bool:
        """Whether a search with these options uses the approximate index."""
        return self.base.scann is not None and not options.exact

    def exact(
        self, vectors: NDArray[np.float32], k: int, allowed: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    ) -> Found:
        """The best rows, with the scores and in the order of an `ExactIndex` of all existing rows."""
        masks = (self.base_there, self.tail_there) if allowed is None else allowed
        k = min(k, self.count if allowed is None else sum(int(np.count_nonzero(mask)) for mask in masks))
        if not k or not len(vectors):
            return np.empty((len(vectors), 0), np.float32), np.empty((len(vectors), 0), np.int64)
        found = []
        for start in range(0, len(vectors), QUERY_BUCKETS[-1]):
            search = HostSearch(vectors[start : start + QUERY_BUCKETS[-1]], k)
            first = 0
            for segment, mask in zip((self.base, self.tail), masks, strict=True):
                if mask.any():
                    step = _UNDIVIDED_ROWS if segment.vectors.size * len(vectors) < _FEW_PRODUCTS else len(segment)
                    for row in range(0, len(segment), step):
                        piece = slice(row, row + step)
                        there = None if mask[piece].all() else mask[piece]
                        search.add(segment.vectors[piece], first + row, there)
                first += len(segment)
            found.append(search.result())
        scores, positions = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return scores, positions.astype(np.int64)

    def approximate(
        self,
        vectors: NDArray[np.float32],
        k: int,
        target: float | None = None,
        threads: int | None = None,
        allowed: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None,
    ) -> Found:
        """The best of the approximate index's rows of the base and of all rows of the tail, with exact scores."""
        of_base, of_tail = (self.base_there, self.tail_there) if allowed is None else allowed
        in_base = int(np.count_nonzero(of_base))
        if not in_base or not len(vectors):
            return self.exact(vectors, k, allowed)
        if allowed is None:
            found = self._proposed(vectors, min(k, in_base), target, threads)
        else:
            assert self.base.scann is not None
            options = {"target_recall": target, "threads": threads}
            _, found = self.base.scann.search_rows(vectors, min(k, in_base), allowed=of_base, **options)
        # The base's rows [B, k'] with exact scores, best first.
        queries, exponents = scaled_questions(vectors)
        scaled, places = first_pass.rescore(self.base.vectors, queries, found, found.shape[1], np.dtype(np.float32))
        scores = unscaled(scaled, exponents)
        if len(self.tail):
            # Add the tail's best, searched exactly, and keep the k best of both [B, k]; equal scores by position.
            none = np.zeros(len(self.base), bool)
            new, new_places = self.exact(vectors, k, (none, of_tail))
            scores = np.concatenate([scores, new], axis=1)
            places = np.concatenate([places, new_places], axis=1)
            best = np.lexsort((places, -scores), axis=-1)[:, :k]
            scores = np.take_along_axis(scores, best, axis=1)
            places = np.take_along_axis(places, best, axis=1)
        return scores, places

    def _proposed(
        self, vectors: NDArray[np.float32], k: int, target: float | None, threads: int | None
    ) -> NDArray[np.int64]:
        """The first k existing rows that the approximate index finds, int64 [B, k].

        Where most of what it finds is removed, it searches once more, as for a filter, which reads more leaves.
        """
        assert self.base.scann is not None
        options = {"target_recall": target, "threads": threads}
        n, existing = len(self.base), int(np.count_nonzero(self.base_there))
        # Ask for as many more rows as are removed on average, and for a few besides.
        asked = k if existing == n else min(n, k + 8 + k * (n - existing) // n)
        _, rows = self.base.scann.search_rows(vectors, asked, **options)
        there = (rows >= 0) & self.base_there[rows]
        found = np.empty((len(vectors), k), np.int64)
        short = np.count_nonzero(there, axis=1) < k
        for question in np.flatnonzero(~short):
            found[question] = rows[question][there[question]][:k]
        if short.any():
            _, found[short] = self.base.scann.search_rows(vectors[short], k, allowed=self.base_there, **options)
        return found

    # ---- filters -----------------------------------------------------------------------------------------------------

    @property
    def fields(self) -> list[str]:
        """The fields that documents have or had."""
        return list(dict.fromkeys((*self.names, *self.base.columns, *self.tail.columns)))

    def listing(self, fields: Sequence[str]) -> tuple[list[str], dict[str, list[Value]]]:
        """The ids of all rows that exist, in their order, and their values of some fields."""
        parts = [(each, np.flatnonzero(there).tolist()) for each, there in self._segments]
        values = {
            name: [
                each.columns[name][place] if name in each.columns else None
                for each, places in parts
                for place in places
            ]
            for name in fields
        }
        return [each.ids[place] for each, places in parts for place in places], values

    def _allowed(self, options: SearchOptions) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
        """Masks of the rows of base and tail that may be found; None: all that exist."""
        if not options.is_filtered:
            return None
        conditions = conditions_of(options.where, self.fields)
        masks = []
        for segment, there in self._segments:
            mask = there & segment.passing(conditions)
            if options.allow is not None:
                named = np.zeros(len(segment), bool)
                named[segment.places(options.allow)] = True
                mask &= named
            if options.deny:
                mask[segment.places(options.deny)] = False
            masks.append(mask)
        return masks[0], masks[1]

    def vectors(self, ids: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of passages that are there, float32 [n, D]; see `Index.vectors`."""
        found = np.empty((len(ids), self.space.dim), np.float32)
        for number, name in enumerate(ids):
            for segment, there in reversed(self._segments):
                places = segment.places([name])
                if len(places) and there[places[0]]:
                    found[number] = segment.vectors[places[0]]
                    break
            else:
                raise UserError(f"{name!r}: no such passage in the index; it was deleted, or never there")
        return found

    def facts(self) -> dict[str, Any]:
        """The state's facts for /info."""
        base, scann = self.base, self.base.scann
        return {
            "engine": "live",
            "passages": self.count,
            "dim": self.space.dim,
            "model": self.space.model,
            "model_fingerprint": self.space.fingerprint,
            "writable": True,
            "bytes": base.bytes + self.tail.bytes,
            "fields": self.fields,
            "sequence": self.sequence,
            "snapshot_sequence": base.sequence,
            "snapshot_rows": len(base),
            "snapshot_removed": len(base) - int(np.count_nonzero(self.base_there)),
            "tail_rows": len(self.tail),
            "approximate": scann is not None,
            "snapshot_engine": "exact" if scann is None else scann.facts.engine,
        } | ({} if scann is None else {"targets": [setting.target for setting in scann.facts.settings]})
