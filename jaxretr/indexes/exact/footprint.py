"""The memory that exact search needs, estimated before it starts."""

from dataclasses import dataclass

import jax
import numpy as np

from jaxretr.embeddings.vector_files import bytes_a_row
from jaxretr.indexes.exact.host_rows import PIECE_BYTES
from jaxretr.indexes.exact.host_search import working_bytes
from jaxretr.indexes.exact.slabs import QUERY_BUCKETS
from jaxretr.indexes.topk import BLOCK_ROWS
from jaxretr.indexes.topk.accelerators import GPU, TPU, Kind, Layout, can_narrow

# Compiling the programs of a search and holding them, measured on a CPU: 10 to 25 MB.
_PROGRAMS = 20 * 2**20

# A Python string of a typical id, its place in a list and in the set that finds repeated ones.
_ID_BYTES = 60 + 8 + 40


@dataclass(frozen=True)
class Footprint:
    """Bytes in addition to what the process already uses.

    Attributes:
      rows: the embeddings on all devices of this host together; of a stream, two slabs.
      search: the working memory of a search, without the rows, on one device; on a CPU, on all its devices together.
      host: the host's memory while it reads, and for what it keeps: ids, programs.
      on_host: whether the devices' memory is the host's.
    """

    rows: int
    search: int
    host: int
    on_host: bool

    @property
    def memory(self) -> int:
        """Bytes of the process itself: everything on CPUs, elsewhere the part that is not on the devices."""
        return self.host + (self.rows + self.search if self.on_host else 0)


def estimate(
    rows: int,
    dim: int,
    *,
    questions: int,
    k: int,
    dtype: str = "float32",
    first_pass: str | None = None,
    ids: bool = True,
    slab_rows: int | None = None,
) -> Footprint:
    """Predict the memory that building and searching an `ExactIndex` of a memory map, or searching blocks, takes.

    Args:
      rows, dim: N and D.
      questions: questions of the largest search.
      k: results per question.
      dtype, first_pass: the index's settings.
      ids: whether the rows have ids.
      slab_rows: rows of a block of a streamed search; None: all rows are resident.
    """
    devices, platform = jax.local_device_count(), jax.default_backend()
    unit = np.lcm(1024, devices)
    resident_rows = -(-min(rows, slab_rows or rows) // unit) * unit
    stored = bytes_a_row(dim, first_pass or dtype)
    slabs = 1 if slab_rows is None or slab_rows >= rows else 2
    candidates = 4 * k + 60 if first_pass else k
    batch = next((size for size in QUERY_BUCKETS if size >= questions), QUERY_BUCKETS[-1])
    batch_questions = min(questions, QUERY_BUCKETS[-1])
    on_host = platform == "cpu"
    if on_host:
        searching = working_bytes(dim, batch_questions, candidates, float32=stored == dim * 4)
    else:
        searching = _search_bytes(
            resident_rows // devices, dim, batch, candidates, stored, TPU if platform == "tpu" else GPU
        )
    results = questions * candidates * 12 + questions * dim * 4 * 2
    # The loops on a host are part of what it takes to search; XLA compiles nothing then.
    host = 3 * PIECE_BYTES + results + (rows * _ID_BYTES if ids else 0)
    if not on_host:
        host += _PROGRAMS + resident_rows // devices * stored  # with one device's rows on their way
    return Footprint(int(slabs * resident_rows * stored), int(searching), int(host), on_host)


def _search_bytes(rows: int, dim: int, batch: int, k: int, stored: int, kind: Kind) -> int:
    """The working memory of one search program on one accelerator, in bytes; see `topk` for its arrays."""
    k = min(k, rows)
    if can_narrow(rows, k, BLOCK_ROWS, kind):
        layout = Layout.of((rows, dim), stored / dim, batch, k, BLOCK_ROWS, kind)
        return layout.working_bytes(rows, dim, batch, stored, kind)
    block = min(BLOCK_ROWS, rows)
    return batch * (2 * block * 4 + 2 * (k + block) * 8) + block * (stored + dim * 4)
