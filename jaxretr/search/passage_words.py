"""The words of a streamed corpus on disk, shard by shard: what BM25 is computed from."""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.arrays import write_array
from jaxretr.data.corpus import Passage
from jaxretr.errors import UserError
from jaxretr.files import atomic_write
from jaxretr.search.bm25_postings import Slab, Statistics
from jaxretr.search.bm25_words import Bm25Settings, Vocabulary

_HOLDERS = "holders.npy"
_RANKS = "ranks.npy"
_DONE = "passages.json"

# Passages whose words are in memory at a time while postings are made.
_SLAB = 65_536
# Ids up to this length are sorted as fixed-size bytes, which take less memory than Python's strings.
_SHORT_ID = 64


class PassageWords:
    """The finished files of `read_words`.

    Attributes:
      shards: the passages of each, as ranges of rows.
      num_passages: N.
      rank_of_row: the place of each passage's id among all ids in ascending order, int32 [N], mapped into memory.
    """

    def __init__(self, folder: Path):
        """Opens them."""
        content = json.loads((folder / _DONE).read_text())
        self.folder = folder
        self.num_passages, self.num_words = content["passages"], content["words"]
        size = content["shard_passages"]
        starts = range(0, self.num_passages, size)
        self.shards = [range(start, min(start + size, self.num_passages)) for start in starts]
        self.rank_of_row: NDArray[np.int32] = np.load(folder / _RANKS, mmap_mode="r")
        self._by_id: tuple[int, NDArray[np.int32]] | None = None

    def statistics(self) -> Statistics:
        """Of the whole corpus."""
        return Statistics(np.load(self.folder / _HOLDERS), self.num_passages, self.num_words)

    def vocabulary(self, settings: Bm25Settings) -> Vocabulary:
        """Of the whole corpus."""
        words = [word for shard in range(len(self.shards)) for word in _read_new_words(self.folder, shard)]
        return Vocabulary(settings.stemmer, words)

    def rows_by_id(self, shard: int) -> NDArray[np.int32]:
        """A shard's passages in the order of their ids, int32 [n]."""
        if self._by_id is None or self._by_id[0] != shard:
            rows = self.shards[shard]
            by_id = np.argsort(self.rank_of_row[rows.start : rows.stop]).astype(np.int32) + rows.start
            self._by_id = shard, by_id
        return self._by_id[1]

    def slabs_by_id(self, shard: int) -> Callable[[], Iterator[Slab]]:
        """What `Postings` reads a shard from, its passages in the order of their ids."""
        order = self.rows_by_id(shard) - self.shards[shard].start

        def slabs() -> Iterator[Slab]:
            words, lengths = read_shard(self.folder, shard)
            begins = np.cumsum(lengths, dtype=np.int64) - lengths
            for start in range(0, len(order), _SLAB):
                chosen = order[start : start + _SLAB]
                count = lengths[chosen]
                place = np.repeat(begins[chosen] - (np.cumsum(count) - count), count) + np.arange(count.sum())
                yield np.asarray(words[place]), count

        return slabs


def read_words(
    passages: Callable[[], Iterable[tuple[int, Passage]]],
    folder: Path,
    settings: Bm25Settings,
    shard_passages: int,
    corpus_name: str,
) -> PassageWords:
    """Turns passages into files of words, or goes on behind the shards that an interrupted call finished.

    Each shard leaves its words, lengths, ids, line numbers and the words that it was the first to have. Nothing of the
    texts stays in memory but the vocabulary, and one shard's words.

    Args:
      passages: gives the stream from its beginning.
      folder: of the files.
      settings: the stemmer.
      shard_passages: passages a shard.
      corpus_name: for messages.

    Raises:
      UserError: two passages have the same id, there is none, or no word in any; a file cannot be written.
    """
    if (folder / _DONE).exists():
        return PassageWords(folder)
    finished = 0
    while (folder / _shard("new-words", finished, "json")).exists():
        finished += 1
    known = [word for shard in range(finished) for word in _read_new_words(folder, shard)]
    vocabulary = Vocabulary(settings.stemmer, known)
    shard = finished
    words, lengths, ids, lines = array("I"), array("i"), [], array("q")

    def finish() -> None:
        nonlocal shard, words, lengths, ids, lines
        for name, values, dtype in (
            ("words", words, np.uint32),
            ("lengths", lengths, np.int32),
            ("lines", lines, np.int64),
        ):
            write_array(folder / _shard(name, shard, "npy"), (len(values),), dtype, [np.frombuffer(values, dtype)])
        with atomic_write(folder / _shard("ids", shard, "json")) as file:
            json.dump(ids, file)
        # Last: with it the shard is finished.
        with atomic_write(folder / _shard("new-words", shard, "json")) as file:
            json.dump(list(vocabulary.ids)[len(known) :], file)
        known.extend(list(vocabulary.ids)[len(known) :])
        shard += 1
        words, lengths, ids, lines = array("I"), array("i"), [], array("q")

    total = 0
    for number, (line, passage) in enumerate(passages()):
        total = number + 1
        if number < finished * shard_passages:
            continue
        lengths.append(vocabulary.add_passage(passage.title, passage.text, words))
        ids.append(passage.id)
        lines.append(line)
        if len(ids) == shard_passages:
            finish()
    if ids:
        finish()
    if not total:
        raise UserError(f"{corpus_name}: the corpus is empty: BM25 needs at least one passage")
    if not known:
        raise UserError(f"{corpus_name}: the corpus has no word: every title and text is empty or punctuation")
    _write_ranks(folder, shard, total, corpus_name)

    def slabs() -> Iterator[Slab]:
        for of_shard in range(shard):
            yield read_shard(folder, of_shard)

    statistics = Statistics.count(slabs(), len(known))
    write_array(folder / _HOLDERS, statistics.holders.shape, np.int64, [statistics.holders])
    with atomic_write(folder / _DONE) as file:
        json.dump({"passages": total, "words": statistics.num_words, "shard_passages": shard_passages}, file)
    return PassageWords(folder)


def read_shard(folder: Path, shard: int) -> Slab:
    """A shard's words and lengths; the words mapped into memory."""
    mapped = np.load(folder / _shard("words", shard, "npy"), mmap_mode="r")
    return np.asarray(mapped), np.load(folder / _shard("lengths", shard, "npy"))


def _write_ranks(folder: Path, shards: int, total: int, corpus_name: str) -> None:
    """Writes the rank of every passage's id; refuses repeated ids."""
    longest = 1
    for shard in range(shards):
        longest = max([longest, *(len(id.encode("utf-8", "surrogatepass")) for id in _read_ids(folder, shard))])
    if longest <= _SHORT_ID:
        # UTF-8 bytes sort as code points do, which is how Python sorts strings.
        ids = np.empty(total, f"S{longest}")
        start = 0
        for shard in range(shards):
            of_shard = _read_ids(folder, shard)
            ids[start : start + len(of_shard)] = [id.encode("utf-8", "surrogatepass") for id in of_shard]
            start += len(of_shard)
    else:
        ids = np.array([id for shard in range(shards) for id in _read_ids(folder, shard)], object)
    order = np.argsort(ids, kind="stable")
    for start in range(0, total - 1, _SLAB):
        block = ids[order[start : start + _SLAB + 1]]
        if len(twice := np.flatnonzero(block[1:] == block[:-1])):
            first, second = order[start + twice[0]], order[start + twice[0] + 1]
            lines = np.concatenate([np.load(folder / _shard("lines", shard, "npy")) for shard in range(shards)])
            id = block[twice[0]]
            raise UserError(
                f"{corpus_name}:{lines[second]}: duplicate id '{id.decode() if isinstance(id, bytes) else id}' (first on "
                f"line {lines[first]}); give every passage an id of its own"
            )
    ranks = np.empty(total, np.int32)
    ranks[order] = np.arange(total, dtype=np.int32)
    write_array(folder / _RANKS, ranks.shape, np.int32, [ranks])


def _read_ids(folder: Path, shard: int) -> list[str]:
    return json.loads((folder / _shard("ids", shard, "json")).read_text())


def _read_new_words(folder: Path, shard: int) -> list[str]:
    return json.loads((folder / _shard("new-words", shard, "json")).read_text())


def _shard(name: str, number: int, suffix: str) -> str:
    return f"{name}-{number:05d}.{suffix}"
