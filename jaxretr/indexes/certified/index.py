"""Approximate search for serving: an engine proposes candidates, their exact scores choose among them."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.config import EngineName
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.indexes import question_sets
from jaxretr.indexes.certified import layout, measure, worker
from jaxretr.indexes.certified.build import Plan, check_ids, plan_of, write_vectors
from jaxretr.indexes.certified.engines import engine_of
from jaxretr.indexes.certified.layout import Facts
from jaxretr.indexes.certified.rows import VECTORS, Rows
from jaxretr.indexes.certified.searcher import Searcher
from jaxretr.indexes.certified.tuning import Setting
from jaxretr.indexes.exact.host_rows import checked_matrix, checked_questions, embedding_matrix
from jaxretr.indexes.filters import Filters
from jaxretr.indexes.question_sets import Questions
from jaxretr.indexes.recall import Certificate, check_targets, of_target
from jaxretr.runtime.errors import UserError, at_least, check_rows, check_seed, reason, require_at_least
from jaxretr.runtime.parallel import memory
from jaxretr.runtime.parallel.machine import cpu_threads

log = logging.getLogger(__name__)

Advance = Callable[[int], None]


class ScannIndex:
    """Approximate maximum inner product search, with recall that was measured.

    An engine (ScaNN or FAISS: a tree over the corpus, and codes of half a byte for two or more dimensions) proposes candidates;
    they are scored with the vectors themselves, which stay on disk behind a memory map. Scores are exact fp32 inner
    products.

    Attributes:
      facts: the index's facts, as it was built or loaded.
      rows: vectors and ids.
      questions: the tuning and the certification questions, if there are any.
      certificate: the measured recall and speed, if they were measured.
      searcher: the engine over the rows, to be asked with numbers in place of a target.
    """

    def __init__(
        self,
        facts: Facts,
        rows: Rows,
        questions: Questions | None,
        certificate: Certificate | None,
        folder: Path,
        keeper: tempfile.TemporaryDirectory | None = None,
    ):
        """Use `build` or `load`.

        Args:
          keeper: an object that removes `folder` when the index is gone.
        """
        self.facts, self.rows, self.questions, self.certificate = facts, rows, questions, certificate
        self.searcher = Searcher(folder, facts, rows)
        self._keeper = keeper
        self._exact: Any = None  # an ExactIndex, where the engine does not work
        engine = facts.used_engine()
        if engine is not None and (problem := engine.problem()):
            from jaxretr.indexes.exact import ExactIndex

            log.warning("%s: searched exactly, since %s cannot be used here: %s", folder, engine.label, problem)
            self._exact = ExactIndex(rows.base.vectors, rows.ids)

    def __repr__(self) -> str:
        facts = self.facts
        kind = {"tree": f"{facts.leaves} leaves", "flat": "no tree", "exact": "exact"}[facts.kind]
        engine = "FAISS, " if facts.kind != "exact" and facts.engine == "faiss" else ""
        targets = ", ".join(f"{setting.target:g}" for setting in facts.settings)
        recall = f", recall {targets} at {facts.k}" if targets else ""
        return f"ScannIndex({len(self)} passages, {facts.dim} dimensions, {engine}{kind}{recall})"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "a ScannIndex cannot be pickled or copied: it lives in its engine's memory and in files; write it with "
            "index.save(folder), and read it with ScannIndex.load(folder)"
        )

    @classmethod
    def build(
        cls,
        passages: np.ndarray | EmbeddingStore,
        ids: Sequence[str] | None = None,
        *,
        target_recall: float | Sequence[float] = 0.95,
        k: int = 10,
        questions: np.ndarray | None = None,
        num_leaves: int | None = None,
        train_size: int | None = None,
        engine: EngineName = "scann",
        seed: int = 0,
        workdir: str | os.PathLike | None = None,
        advance: Advance = lambda rows: None,
    ) -> "ScannIndex":
        """Train an engine, find settings for the targets, and certify them.

        Args:
          passages: embeddings [N, D] or a store of them. They are copied into a file of float32, block by block, and
            not held in memory.
          ids: N different strings; those of the store, or "0", "1", ... by default.
          target_recall: recall@k to reach, one or several.
          k: depth of the targets.
          questions: question embeddings [Q, D]; one half, drawn by `seed`, tunes and the other certifies (at most
            2000 each). Without them passages of the index replace them, whose neighbours are easier to find:
            the certificate states it.
          num_leaves: leaves of the tree, 1 for no tree; by default the square root of N, and 1 below 20,000 passages.
          train_size: passages that tree and codes are learnt from; by default a third of them, at least 20,000.
          engine: the engine that proposes the candidates, "scann" (trained in another process) or "faiss".
          seed: seed of that sample and of the split.
          workdir: the folder in which the files are made; by default the system's folder for temporary files.
          advance: a function that is told how many more passages are done.

        Raises:
          UserError: the engine does not work here; wrong shapes, NaN or infinity, ids that repeat or do not match; a target
            outside (0, 1].
        """
        targets = check_targets(target_recall)
        store = passages if isinstance(passages, EmbeddingStore) else None
        if isinstance(passages, EmbeddingStore):
            source, blocks = str(passages.folder), passages.blocks()
            n, dim = passages.meta.rows, passages.meta.dim
        else:
            source, matrix = "passages", embedding_matrix(passages, "passages")
            blocks, (n, dim) = iter([matrix]), matrix.shape
        plan = plan_of(n, dim, num_leaves, train_size, engine_of(engine).name)
        require_at_least(1, k=k)
        check_seed(seed)
        if plan.kind != "exact":
            engine_of(engine).require()
        names = check_ids(store.read_ids() if ids is None and store is not None else ids, n)
        question_set = (
            None if questions is None else question_sets.split(checked_matrix(questions, dim, "questions"), seed)
        )
        keeper, folder = _folder_in(workdir)
        what = f"{source}: {_article(plan)} index of {n:,} x {dim}"
        memory.announce(what, plan.memory(), disk=plan.disk(), folder=folder)
        write_vectors(folder / VECTORS, blocks, (n, dim), source)
        _train(folder, plan, seed, advance)
        facts = Facts(
            rows=n,
            dim=dim,
            kind=plan.kind,
            leaves=plan.leaves,
            train_rows=plan.train_rows,
            code_size=0 if plan.kind == "exact" else np.load(folder / worker.CODES, mmap_mode="r").shape[1],
            changed=0,
            k=min(k, n),
            seed=seed,
            settings=(),
            model=None if store is None else store.meta.model,
            model_fingerprint=None if store is None else store.meta.model_fingerprint,
            engine=plan.engine,
        )
        rows = Rows.read(folder, n, dim, facts.code_size or None, facts.kind == "tree", names)
        if question_set is None and n > 1:
            question_set = question_sets.stand_ins(rows.ids, rows.vector, seed)
        index = cls(facts, rows, question_set, None, folder, keeper)
        index.facts = replace(facts, settings=measure.tuned(index, question_set, targets))
        index.certify()
        return index

    @classmethod
    def load(cls, directory: str | os.PathLike) -> "ScannIndex":
        """Read an index that `save` wrote; vectors stay on disk. Where its engine does not work it is searched exactly.

        Raises:
          UserError: the folder is missing, incomplete, damaged or of another kind.
        """
        return cls(*layout.read(directory), Path(directory).expanduser())

    def save(self, directory: str | os.PathLike) -> None:
        """Write the index to a folder, which appears complete or not at all and replaces an older index.

        Raises:
          UserError: the folder contains something else, or cannot be written.
        """
        facts = replace(self.facts, rows=len(self))
        self.searcher.check_not_replaced()
        layout.write(directory, facts, self.searcher.folder, self.rows, self.questions, self.certificate)
        if self.searcher.was_replaced():  # It was this index's own folder: the files hold its changes now.
            self.facts, self.rows, self.questions, self.certificate = layout.read(self.searcher.folder)
            self.searcher = Searcher(self.searcher.folder, self.facts, self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    # ---- searching ---------------------------------------------------------------------------------------------------

    def search(
        self,
        queries: np.ndarray,
        k: int = 10,
        *,
        target_recall: float | None = None,
        threads: int | None = None,
        allow: Iterable[str] | None = None,
        deny: Iterable[str] | None = None,
    ) -> tuple[np.ndarray, list[list[str]]]:
        """Find about the k passages with the highest inner product for each question.

        Args:
          queries: question embeddings [B, D], cast to float32.
          k: results per question; as many are returned as there are passages that may be found, if that is less.
          target_recall: one of the targets of the build; the first one by default.
          threads: threads to divide the questions among; all of the machine by default.
          allow: ids of the only passages that may be found; all by default.
          deny: ids of passages that may not be found.

        Returns:
          scores float32 [B, min(k, N)], descending and exact, and for each question the ids in the same order.

        Raises:
          UserError: wrong shape, NaN or infinity in the questions, k < 1, or a target that was not built for, or an
            unknown id.
        """
        allowed = Filters(len(self), self.rows.ids).mask(allow, deny)
        scores, rows = self.search_rows(queries, k, target_recall=target_recall, threads=threads, allowed=allowed)
        return scores, [[self.rows.ids[row] for row in question_rows] for question_rows in rows.tolist()]

    def search_rows(
        self,
        queries: np.ndarray,
        k: int = 10,
        *,
        target_recall: float | None = None,
        threads: int | None = None,
        allowed: NDArray[np.bool_] | None = None,
    ) -> tuple[np.ndarray, NDArray[np.int64]]:
        """Search as `search` does, and return row numbers, int64 [B, min(k, N)], in place of ids.

        Args:
          queries, k, target_recall, threads: see `search`.
          allowed: bool [N], the rows that may be found; all by default. Where they are few all of them are scored, and
            where they are many, the engine is asked; the limit was measured for the target, see filtering.py.
        """
        queries = checked_questions(queries, self.facts.dim, k)
        at_least(1, threads=threads)
        allowed_count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        if not allowed_count:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        threads, k = threads or cpu_threads(), min(k, allowed_count)
        if allowed is None or allowed_count == len(self):
            if self._exact is not None:
                return self._exact.search_rows(queries, k)
            setting = self._setting(target_recall)
            return self.searcher.search(queries, k, setting.leaves, setting.candidates, threads)
        # Shares are of whole rows: one row less than a half of an odd number is a half.
        setting = (
            None
            if self._exact is not None
            else self._setting(target_recall).with_share((allowed_count + 1) / len(self))
        )
        if setting is None:
            return self.searcher.exact(queries, k, allowed)
        return self.searcher.search_allowed(queries, k, allowed, setting.leaves, setting.candidates, threads)

    def prepare(self) -> None:
        """Read the codes now, and not in the first search."""
        if self._exact is None:
            self.searcher.prepare()

    def _setting(self, target: float | None) -> Setting:
        return of_target(self.facts.settings, target, "the index", "choose one of these, or build again")

    # ---- changing ----------------------------------------------------------------------------------------------------

    def add(self, passages: np.ndarray | EmbeddingStore, ids: Sequence[str] | None = None) -> int:
        """Add passages; one whose id is there takes that one's place. The certificate becomes stale.

        Args:
          passages: embeddings [M, D], or a store of the same model.
          ids: M different strings; those of the store by default.

        Returns:
          How many took the place of another.

        Raises:
          UserError: wrong shape, NaN or infinity, ids that repeat or do not match, another model's store.
        """
        self._can_change()
        if isinstance(passages, EmbeddingStore):
            self._check_store(passages)
            ids = passages.read_ids() if ids is None else ids
            passages = passages.rows(0, passages.meta.rows)
        if ids is None:
            raise UserError("ids: give one for each passage that is added")
        passages = checked_matrix(passages, self.facts.dim, "passages")
        names = check_ids(ids, len(passages))
        if not names:
            return 0
        replaced = self.rows.put(self.searcher.encoded(passages), names)
        self._now_changed(len(names))
        return replaced

    def update(self, passages: np.ndarray, ids: Iterable[str]) -> None:
        """Replace the embeddings of passages that are there; see `add`.

        Raises:
          UserError: as for `add`, or an id is not there.
        """
        self.add(passages, self._known(ids))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove passages by id. The certificate becomes stale.

        Raises:
          UserError: an id is unknown or given twice, or no passage would be left.
        """
        self._can_change()
        names = self._known(ids)
        if len(names) == len(self):
            raise UserError("delete: no passage would be left; remove the folder instead")
        if names:
            self.rows.remove(names)
            self._now_changed(len(names))

    def rebalance(self, *, num_leaves: int | None = None, workdir: str | os.PathLike | None = None) -> None:
        """Learn tree and codes from the passages as they are now, tune again, and certify.

        Args:
          num_leaves: leaves of the new tree; the default is that of `build`.
          workdir: see `build`.
        """
        self._can_change()
        facts, n = self.facts, len(self)
        plan = plan_of(n, facts.dim, num_leaves, None, facts.engine)
        keeper, folder = _folder_in(workdir)
        what = f"{_article(plan)} index of {n:,} x {facts.dim}"
        memory.announce(what, plan.memory(), disk=plan.disk(), folder=folder)
        self.rows.write(folder, [VECTORS])
        _train(folder, plan, facts.seed, lambda rows: None)
        size = 0 if plan.kind == "exact" else np.load(folder / worker.CODES, mmap_mode="r").shape[1]
        self.rows = Rows.read(folder, n, facts.dim, size or None, plan.kind == "tree", self.rows.ids)
        changes = {"kind": plan.kind, "leaves": plan.leaves, "train_rows": plan.train_rows, "code_size": size}
        self.facts = replace(facts, rows=n, changed=0, k=min(facts.k, n), **changes)
        self.searcher, self._keeper = Searcher(folder, self.facts, self.rows), keeper
        targets = [setting.target for setting in facts.settings]
        self.facts = replace(self.facts, settings=measure.tuned(self, self.questions, targets))
        self.certify()

    @property
    def changed_share(self) -> float:
        """Rows added or deleted since the training, as a share of the rows that there are."""
        return self.facts.changed / len(self)

    def _can_change(self) -> None:
        self.searcher.check_not_replaced()
        self.facts.require_engine()

    def _now_changed(self, count: int) -> None:
        self.facts = replace(self.facts, rows=len(self), changed=self.facts.changed + count)
        if self.certificate is not None:
            self.certificate = replace(self.certificate, stale=True)

    def _known(self, ids: Iterable[str]) -> list[str]:
        check_rows("ids", ids)
        names = list(ids)
        names = check_ids(names, len(names))
        unknown = [name for name in names if name not in self.rows.row_of()]
        if unknown:
            raise UserError(f"{unknown[0]!r} is not in the index ({len(unknown)} such ids); leave it out")
        return names

    def _check_store(self, store: EmbeddingStore) -> None:
        known, meta = self.facts.model_fingerprint, store.meta
        if meta.side != "passage":
            raise UserError(f"{store.folder}: contains embeddings of questions; encode the passages instead")
        if known is not None and meta.model_fingerprint != known:
            raise UserError(
                f"{store.folder}: was encoded with another model ({meta.model}) than the index ({self.facts.model}); "
                "encode the passages with that one"
            )

    # ---- measuring ---------------------------------------------------------------------------------------------------

    def certify(self) -> None:
        """Find the exact neighbours of the certification questions, and measure the certificate again.

        Raises:
          UserError: the engine does not work here.
        """
        self._can_change()
        if self.questions is not None:
            self.questions, self.certificate = measure.certify(self, self.questions)


def _folder_in(workdir: str | os.PathLike | None) -> tuple[tempfile.TemporaryDirectory, Path]:
    try:
        keeper = tempfile.TemporaryDirectory(prefix="jaxretr-scann-", dir=workdir)
    except OSError as error:
        raise UserError(f"{workdir}: {reason(error)}; give a folder that you can write to as workdir=") from None
    return keeper, Path(keeper.name)


def _train(folder: Path, plan: Plan, seed: int, advance: Advance) -> None:
    if plan.kind == "exact":
        return
    engine = engine_of(plan.engine)
    engine.require()
    engine.train(folder / VECTORS, folder, leaves=plan.leaves, sample=plan.train_rows, seed=seed)
    engine.encode(folder / VECTORS, folder, folder, tree=plan.kind == "tree", advance=advance)


def _article(plan: Plan) -> str:
    """The name of an index of this plan in messages, with its article."""
    return "an exact" if plan.kind == "exact" else f"a {engine_of(plan.engine).label}"
