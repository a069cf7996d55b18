"""The encoding engine: texts in, vectors out, where short texts are not padded to the length of long ones.

A background thread tokenises chunk after chunk, also those of the next job while one is computed; each chunk is sorted
by length and cut into batches of about the same number of tokens, padded to one of a few lengths, or packed into rows of
one length; one program is compiled for every shape that occurs, those of a chunk side by side. On processors where
numpy's BLAS is faster than XLA nothing is compiled, and padding is dropped (host_bert.py).
"""

import contextlib
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxretr.config import AutoDtype, Dtype
from jaxretr.models.backbones.backbone_config import BACKBONE
from jaxretr.models.backbones.layer_stacks import as_operands, kernels_of, unstack
from jaxretr.models.backbones.layers import Params
from jaxretr.models.batches import ACCELERATOR_COSTS, CPU_COSTS, Batch, Costs, PackedShapes, Shapes
from jaxretr.runtime.errors import UsageError, at_least
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.compilation_cache import keep_programs, keep_short_programs
from jaxretr.runtime.parallel.machine import multiplies_bfloat16
from jaxretr.runtime.parallel.mesh import DATA, make_mesh, replicate
from jaxretr.runtime.parallel.programs import compile_all, programs

# Tokens of one batch for the BLAS, whose matmuls are slower for fewer rows.
_BATCH_TOKENS_BLAS = 2048

# Programs for packed rows that are compiled in advance, as parts of a full batch's tokens.
_PARTS = 1, 16, 128

# Number of results in flight: enough to keep the device's queue full while the host writes rows and progress.
_IN_FLIGHT = 8

_log = logging.getLogger(__name__)


def fastest_dtype() -> Dtype:
    """Return the dtype of the matmuls' operands that encodes fastest on this machine.

    This is bfloat16 on accelerators and on processors that multiply it; elsewhere float32, which is also more exact.
    """
    return "bfloat16" if jax.default_backend() != "cpu" or multiplies_bfloat16() else "float32"


def chosen_dtype(dtype: AutoDtype) -> Dtype:
    """Return the dtype, or the fastest one for "auto".

    Raises:
      UsageError: it is none of these; int8 is for encoders alone.
    """
    if dtype not in get_args(AutoDtype):
        raise UsageError(f"dtype={dtype}: give one of {', '.join(get_args(AutoDtype))}; int8 is for encoders")
    return fastest_dtype() if dtype == "auto" else dtype


AnyShapes = Shapes | PackedShapes


class Job(NamedTuple):
    """Texts whose batches contain no text of another job.

    Attributes:
      rows: function (start, stop) -> token ids of these texts, and the number that were cut; called in another thread.
      n: number of texts.
    """

    rows: Callable[[int, int], tuple[list[list[int]], int]]
    n: int


class _Result:
    """State of a job: embeddings float32 [n, D], number of rows without one, number of texts that were cut."""

    def __init__(self, n: int, size: int):
        self.embeddings = np.empty((n, size), np.float32)
        self.left = n
        self.cut = 0
        self.shapes: AnyShapes | None = None


class Engine:
    """Runs one tower over any number of texts, on all local devices.

    Args:
      embed: compiled function (parameters, tokens [B, L], lengths [B]) -> float32 [B, D].
      tower_params: parameters of the tower, float32.
      dtype: type of the matmuls' operands; the encoder's kernels are cast to it once, here.
      costs: the device's; None: those of its kind.
    """

    compiles = True
    """Whether each shape of a batch is a program to compile."""
    pads = True
    """Whether short texts cost as much as the longest of their batch."""

    def __init__(
        self,
        embed: Callable[[Params, jax.Array, jax.Array], jax.Array],
        tower_params: Params,
        dtype: str,
        costs: Costs | None = None,
    ):
        keep_programs()
        self.embed = embed
        self.mesh = make_mesh(jax.local_devices())
        self.devices = self.mesh.size
        on_cpu = self.mesh.devices.flat[0].platform == "cpu"
        costs = costs or (CPU_COSTS if on_cpu else ACCELERATOR_COSTS)
        self._compiled: set[tuple[bool, tuple[tuple[int, ...], ...]]] = set()
        # Kept on the host: slices of numpy arrays are views, while each slice of a JAX array is a program to compile.
        params = as_operands(jax.device_get(tower_params), dtype)
        self.stacked = self.params = replicate(self.mesh, params)
        if costs.unrolled:  # CPUs read both forms where they are: they are views of the same arrays.
            self.params = replicate(self.mesh, unrolled(params))
        kernels = kernels_of(params[BACKBONE].get("layers", {}))  # a bag of words has no layers
        self.costs = costs.for_tower(len(kernels[0]) if kernels else 0, sum(kernel.size for kernel in kernels))
        self.batch_tokens = costs.batch_tokens

    def encode(
        self,
        rows: Callable[[int, int], tuple[list[list[int]], int]],
        n: int,
        size: int,
        *,
        max_length: int,
        batch_size: int | None = None,
        progress: bool | None = None,
        what: str = "text",
    ) -> tuple[np.ndarray, int]:
        """Encode a job.

        Args:
          rows: function (start, stop) -> token ids of these texts, and the number that were cut; called in another
            thread.
          n: number of texts.
          size: D.
          max_length: largest number of ids of a row.
          batch_size: rows per batch; None: a number that suits the device and the lengths.
          progress: whether to show a bar; None: on a terminal, and only if it takes more than two seconds.
          what: name of a text in the bar and the log.

        Returns:
          float32 [n, D] in the order of the texts, and the number of texts that were cut.

        Raises:
          UserError: `batch_size` is not positive.
        """
        from tqdm import tqdm

        hidden = not sys.stderr.isatty() if progress is None else not progress
        with tqdm(total=n, unit=what, delay=2.0, disable=hidden) as bar:
            jobs = self.encode_jobs(
                [Job(rows, n)], size, max_length=max_length, batch_size=batch_size, advance=bar.update
            )
            [(result, truncated)] = jobs
        note_cut(truncated, n, what, max_length)
        return result, truncated

    def encode_jobs(
        self,
        jobs: Iterable[Job],
        size: int,
        *,
        max_length: int,
        batch_size: int | None = None,
        total: int | None = None,
        advance: Callable[[int], object] = lambda rows: None,
    ) -> Iterator[tuple[np.ndarray, int]]:
        """Encode one job after another; the devices need not wait while the texts of the next job are tokenised.

        A job's embeddings do not depend on the jobs around it.

        Args:
          jobs: jobs, requested one job ahead of the one that is computed.
          size, max_length, batch_size: see `encode`.
          total: number of texts of all jobs, if they are parts of a larger one; None: each is separate.
          advance: called with the number of texts that were encoded since the last call.

        Yields:
          For each job float32 [n, D] in the order of its texts, and the number of texts that were cut.

        Raises:
          UserError: `batch_size` is not positive.
        """
        at_least(1, batch_size=batch_size)
        unfinished: deque[_Result] = deque()
        in_flight: deque[tuple[_Result, Batch, jax.Array | np.ndarray]] = deque()

        def collect() -> None:
            result, batch, embeddings = in_flight.popleft()
            result.embeddings[batch.positions] = np.asarray(embeddings)[batch.slots]
            result.left -= len(batch.positions)
            advance(len(batch.positions))

        with ThreadPoolExecutor(1, "tokenise") as thread:
            for result, batches in self._chunks(thread, jobs, size, max_length, batch_size, total):
                if not unfinished or unfinished[-1] is not result:
                    unfinished.append(result)
                self._compile(batches)
                for batch in batches:
                    in_flight.append((result, batch, self._run(batch)))
                    while in_flight and (len(in_flight) > _IN_FLIGHT or _is_ready(in_flight[0][2])):
                        collect()
                        # Yielded at once: until then nobody can save the job.
                        while unfinished and not unfinished[0].left:
                            done = unfinished.popleft()
                            yield done.embeddings, done.cut
            while unfinished:
                while unfinished[0].left:
                    collect()
                done = unfinished.popleft()
                yield done.embeddings, done.cut

    def _chunks(
        self,
        thread: ThreadPoolExecutor,
        jobs: Iterable[Job],
        size: int,
        max_length: int,
        batch_size: int | None,
        total: int | None,
    ) -> Iterator[tuple[_Result, list[Batch]]]:
        """Yield the batches of one chunk of texts, while the thread tokenises the next one, also of the next job."""
        devices, batch_tokens = self.devices, self.batch_tokens
        full = batch_tokens * devices if batch_size is None else batch_size * max_length
        # Some 30 batches: the rows of a batch then have nearly the same length, and few batches are incomplete.
        chunk = max(4096, 32 * full // 64)

        def prepare(job: Job, result: _Result, start: int) -> tuple[_Result, list[Batch]]:
            ids, cut = job.rows(start, min(start + chunk, job.n)) if job.n else ([], 0)
            result.cut += cut
            if result.shapes is None:
                share = max(len(ids), 1) / max(total or job.n, 1)
                result.shapes = self._shapes_of(list(map(len, ids)), share, max_length, batch_size)
            return result, result.shapes.batches(ids, start)

        def chunks() -> Iterator[tuple[Job, _Result, int]]:
            for job in jobs:
                result = _Result(job.n, size)
                for start in range(0, max(job.n, 1), chunk):
                    yield job, result, start

        coming = None
        for each in chunks():
            before, coming = coming, thread.submit(prepare, *each)
            if before is not None:
                yield before.result()
        if coming is not None:
            yield coming.result()

    def _shapes_of(self, lengths: Sequence[int], share: float, max_length: int, batch_size: int | None) -> AnyShapes:
        """Return the shapes for a job, of which texts of these lengths are a share."""
        if not self.compiles:
            return Shapes(max_length, self.devices, self.batch_tokens, batch_size)
        ratio = None if self.costs.fills else 2
        shapes = Shapes(max_length, self.devices, self._tokens_of_batch(lengths, share), batch_size, ratio=ratio)
        return self.costs.soonest(shapes, lengths, share)

    def _tokens_of_batch(self, lengths: Sequence[int], share: float) -> int:
        # The devices share a job.
        return self.costs.tokens_of_batch(int(sum(lengths) / share) // self.devices)

    # ---- for callers that gather their own batches ---------------------------------------------------------------------

    def few_shapes(self, max_length: int, batch_tokens: int | None = None) -> AnyShapes:
        """Return shapes for texts that come a few at a time, so few shapes that all of them can be compiled in advance.

        Args:
          max_length: largest number of ids of a row.
          batch_tokens: tokens of a batch on each device; None: a number that suits the device.
        """
        shapes = Shapes(max_length, self.devices, batch_tokens or self.batch_tokens)
        if not self.compiles:
            return shapes
        steps, ratio = self.costs.in_advance
        return replace(shapes, steps=steps, ratio=ratio)

    def compile(self, shapes: AnyShapes, stopped: Callable[[], bool] | None = None) -> None:
        """Compile the programs of all shapes, or read them from the cache; without XLA there is nothing to do.

        Args:
          shapes: shapes from `few_shapes`, or the `first` of them.
          stopped: asked before each program whether to compile no more; they are compiled one after the other, to leave
            the processors to others. None: they are compiled side by side.
        """
        if not self.compiles:
            return
        batches = [shapes.empty(*shape) for shape in shapes.every()]
        for some in [batches] if stopped is None else [[batch] for batch in batches]:
            if stopped is not None and stopped():
                return
            with keep_short_programs():
                self._compile(some)
            # A program's first call takes longer than the next ones: it should be nobody's request.
            for batch in some:
                np.asarray(self._run(batch))

    def embed_rows(self, ids: Sequence[Sequence[int]], size: int, shapes: AnyShapes) -> np.ndarray:
        """Embed rows of token ids at once, in this thread, float32 [n, D].

        Args:
          ids: n rows.
          size: D.
          shapes: shapes from `few_shapes`.
        """
        result = np.empty((len(ids), size), np.float32)
        for batch, embeddings in [(batch, self._run(batch)) for batch in shapes.batches(ids, 0)]:
            result[batch.positions] = np.asarray(embeddings)[batch.slots]
        return result

    def _compile(self, batches: Iterable[Batch]) -> None:
        """Compile the programs for batches of shapes that were not compiled before, side by side."""
        needed = {(batch.loops, (batch.tokens.shape, batch.lengths.shape)) for batch in batches}
        new = sorted(needed - self._compiled)
        by_row = NamedSharding(self.mesh, PartitionSpec(DATA))
        ids = partial(jax.ShapeDtypeStruct, dtype=np.int32, sharding=by_row)
        before = programs()
        compile_all(self.embed, [(self.stacked if loops else self.params, *map(ids, shapes)) for loops, shapes in new])
        if (news := programs() - before).seconds >= 1:
            _log.info("%s", news)
        self._compiled.update(new)

    def _run(self, batch: Batch) -> jax.Array | np.ndarray:
        by_row = NamedSharding(self.mesh, PartitionSpec(DATA))
        tokens, lengths = jax.device_put((batch.tokens, batch.lengths), by_row)
        embeddings = self.embed(self.stacked if batch.loops else self.params, tokens, lengths)
        embeddings.copy_to_host_async()
        return embeddings


class PackedEngine(Engine):
    """Runs one tower over packed rows: one program for texts of every length, and no padding between them."""

    pads = False

    def _shapes_of(self, lengths: Sequence[int], share: float, max_length: int, batch_size: int | None) -> PackedShapes:
        batch_tokens = self._tokens_of_batch(lengths, share)
        if batch_size is not None:
            batch_tokens = batch_size * max_length // self.devices
        return PackedShapes.of(max_length, self.devices, batch_tokens)

    def few_shapes(self, max_length: int, batch_tokens: int | None = None) -> PackedShapes:
        full = batch_tokens or self.batch_tokens
        return PackedShapes.of(max_length, self.devices, *(full // part for part in _PARTS))


class HostEngine(Engine):
    """Runs one tower without XLA; see host_bert.py and onnx/int8.py.

    Args:
      embed: function (tokens [B, L], lengths [B]) -> float32 [B, D], for rows with at least one token.
      batch_tokens: tokens of one batch.
      pads: whether it computes what pads the rows as well.
    """

    compiles = False

    def __init__(
        self,
        embed: Callable[[np.ndarray, np.ndarray], np.ndarray],
        *,
        batch_tokens: int = _BATCH_TOKENS_BLAS,
        pads: bool = False,
    ):
        self.embed_on_host, self.pads = embed, pads
        self.devices, self.batch_tokens = 1, batch_tokens

    def _compile(self, batches: Iterable[Batch]) -> None:
        """Compile nothing: there are no programs."""

    def _run(self, batch: Batch) -> np.ndarray:
        real = len(batch.positions)
        return self.embed_on_host(batch.tokens[:real], np.maximum(batch.lengths[:real], 1))


def note_cut(cut: int, count: int, what: str, longest: int | None = None) -> None:
    """Warn of texts of which a model reads only the beginning, if there are any.

    Args:
      cut: number of such texts.
      count: number of all texts.
      what: name of a text.
      longest: the length that they are cut at, in tokens; None: the model's own limit.
    """
    if cut and _log.isEnabledFor(logging.WARNING):  # Asked now: a note may be said after `without_truncation_warnings`.
        place = "the model's maximum length" if longest is None else f"{longest} tokens"
        share = f"{cut / count:.0%}" if cut >= count / 100 else "below 1%"
        remedy = cut_remedy(cut, count, what, longest)
        note(_log.warning, "%d of %d %ss (%s) were cut at %s%s", cut, count, what, share, place, remedy)


def cut_remedy(cut: int, count: int, what: str, longest: int | None) -> str:
    """Return the remedy for passages of which a model reads only the beginning, if they are many, else ""; see `note_cut`."""
    if what != "passage" or longest is None or cut < count / 20:
        return ""
    # 256 tokens are about 190 English words, and the title needs room.
    return f"; 'files:CORPUS[words={max(1, longest * 150 // 256)}]' makes passages of them"


@contextlib.contextmanager
def without_truncation_warnings() -> Iterator[None]:
    """Suppress warnings of texts that were cut, for callers that warn once for many calls, or need not."""
    level = _log.level
    _log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        _log.setLevel(level)


def _is_ready(embeddings: jax.Array | np.ndarray) -> bool:
    return isinstance(embeddings, np.ndarray) or embeddings.is_ready()  # pyright: ignore[reportAttributeAccessIssue]


def unrolled(params: Params) -> Params:
    """Return the parameters of a tower with each layer's apart."""
    backbone = params[BACKBONE]
    split = {BACKBONE: {**backbone, "layers": unstack(backbone["layers"])}} if "layers" in backbone else {}
    return {**params, **split, **({"adapter": unstack(params["adapter"])} if "adapter" in params else {})}
