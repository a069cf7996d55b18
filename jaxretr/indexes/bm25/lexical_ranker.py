"""BM25's best passages for very many questions over a corpus that is streamed.

A first pass writes the passages' words to disk, shard by shard, and counts what the scores need of the whole corpus.
Then every question is searched in one shard after the other. Between the shards only each question's K best so far are
kept; the score of the last of them lets the next shard skip most of what it holds.
"""

import functools
import heapq
import json
import logging
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxretr.data.arrays import write_array
from jaxretr.data.lexical_set import ROWS, SCORES, Ranking
from jaxretr.data.mapped_texts import MappedTexts, write_texts
from jaxretr.indexes.bm25.postings import Postings, Slab, Statistics, hits_to_keys, keys_to_hits
from jaxretr.indexes.bm25.words import Bm25Settings, Vocabulary, questions_as_words
from jaxretr.runtime.errors import UserError, require_at_least
from jaxretr.runtime.progress import Progress, counted
from jaxretr.runtime.storage.files import atomic_folder, atomic_write, plain_number, write_json
from jaxretr.runtime.storage.sealed_folder import check_replaceable, read_object

if TYPE_CHECKING:
    from jaxretr.data.corpus import Passage

_log = logging.getLogger(__name__)

FORMAT_VERSION = 2
"""Raised when the same passages would give other words or other scores."""

# Passages that are read from a shard's files at a time.
_PASSAGES_A_SLAB = 20_000


def rank(
    passages: Callable[[], Iterable[tuple[int, "Passage"]]],
    queries: Sequence[str],
    folder: str | Path,
    settings: Bm25Settings,
    *,
    depth: int,
    corpus_name: str,
    corpus_fingerprint: str,
    queries_fingerprint: str,
    shard_passages: int = 1_000_000,
    query_block: int = 100_000,
    threads: int = 1,
) -> Ranking:
    """Find the `depth` best passages of every question.

    The result does not depend on the shards, the blocks or the threads, to the bit. Equal scores are ordered by the
    passages' ids (as strings, ascending), at every rank. A passage that shares no word with a question is not among its
    hits.

    Memory is bounded by one shard (about 1.5 GB for a million passages of 100 words), one block of questions, the
    vocabulary, and 8 bytes a passage. Everything that is finished stays in `folder`, so a killed call that is made
    again resumes; a finished result is opened at once.

    Args:
      passages: gives the stream of (line number, passage) from its beginning, as `lambda: iter_passages(path)`; called
        once, or not at all when an earlier call has read it all.
      queries: Q questions; only slices of `query_block` are taken.
      folder: for this ranking alone; made when missing. It needs about 5 bytes for every word of the corpus and of the
        questions, and 8 K bytes for every question, the latter for good.
      settings: BM25's parameters.
      depth: K, hits per question.
      corpus_name: the corpus's name in messages, usually its path.
      corpus_fingerprint: tells corpora apart: any string that changes when the passages do.
      queries_fingerprint: the same for the questions.
      shard_passages: passages whose postings are in memory at a time. Fewer, larger shards are faster.
      query_block: questions searched between two writes; at most these are searched again after a kill.
      threads: questions searched at a time.

    Returns:
      The ranking "bm25", mapped into memory from the files of its folder.

    Raises:
      UsageError: a number below 1.
      UserError: `folder` contains something else, or a ranking of another corpus, of other questions or settings; two
        passages have the same id; the corpus has no passage or no word; there are no questions; a file cannot be
        written.
    """
    require_at_least(1, depth=depth, shard_passages=shard_passages, query_block=query_block, threads=threads)
    if not len(queries):
        raise UserError("there are no questions to rank passages for; give at least one")
    folder = Path(folder)
    _check_folder(
        folder,
        {
            "corpus": corpus_fingerprint,
            "questions": [queries_fingerprint, len(queries)],
            "settings": asdict(settings),
            "depth": depth,
            "shard size": shard_passages,
            "block size": query_block,
            "format": FORMAT_VERSION,
        },
    )
    ranking = _Ranking(folder, queries, settings, depth, query_block, corpus_name)
    if not (folder / "finished.json").exists():
        ranking.read(passages, shard_passages)
        ranking.order_ids()
        ranking.prepare_questions()
        ranking.search(threads)
        ranking.finish()
    return ranking.result()


def _check_folder(folder: Path, what: dict[str, Any]) -> None:
    meta = folder / "meta.json"
    check_replaceable(folder, "a ranking", lambda names: meta.name in names)
    if not meta.exists():
        write_json(meta, what, indent=2)
        return
    content = read_object(meta, f"remove {folder} or give another folder")
    for name, value in json.loads(json.dumps(what, default=plain_number)).items():
        if content.get(name) != value:
            raise UserError(
                f"{folder}: contains a ranking with another {name} ({content.get(name)} there, {value} here); "
                "give another folder, or remove this one"
            )


@dataclass(frozen=True)
class _Ranking:
    """One ranking: its files, and the steps that make them. A step whose files are there does nothing."""

    folder: Path
    queries: Sequence[str]
    settings: Bm25Settings
    depth: int
    query_block: int
    corpus_name: str

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @functools.cached_property
    def blocks(self) -> list[tuple[int, int]]:
        count = len(self.queries)
        return [(start, min(start + self.query_block, count)) for start in range(0, count, self.query_block)]

    # ---- the result --------------------------------------------------------------------------------------------------

    def result(self) -> Ranking:
        return Ranking.open("bm25", self.folder, (len(self.queries), self.depth))

    def finish(self) -> None:
        """Join the blocks, and replace each passage's place in the order of ids by its row in the stream."""
        row_of_place = np.empty(self._num_passages(), np.int32)
        for shard in self._shards():
            row_of_place[np.load(shard / "places.npy")] = np.load(shard / "rows.npy")
        shape = (len(self.queries), self.depth)
        best = [self._best(block, len(self._shards())) for block in range(len(self.blocks))]
        hits = (keys_to_hits(np.load(path)) for path in best)
        write_array(self.folder / SCORES, shape, np.float32, (scores for scores, _ in hits))
        hits = (keys_to_hits(np.load(path)) for path in best)
        rows = (np.where(places < 0, np.int32(-1), row_of_place[places]) for _, places in hits)
        write_array(self.folder / ROWS, shape, np.int32, rows)
        write_json(self.folder / "finished.json", {"passages": len(row_of_place)})
        shutil.rmtree(self.work, ignore_errors=True)

    # ---- the corpus --------------------------------------------------------------------------------------------------

    def _shards(self) -> list[Path]:
        return sorted((self.work / "shards").glob("[0-9]*"))

    def _num_passages(self) -> int:
        return json.loads((self.work / "corpus.json").read_text())["passages"]

    def _vocabulary(self) -> Vocabulary:
        words = (word for shard in self._shards() for word in (shard / "new-words.txt").read_text("utf-8").split("\n"))
        return Vocabulary(self.settings.stemmer, (word for word in words if word))

    def read(self, passages: Callable[[], Iterable[tuple[int, "Passage"]]], shard_passages: int) -> None:
        """Write the words, ids and lines of every passage."""
        if (self.work / "corpus.json").exists():
            return
        finished = self._shards()
        vocabulary = self._vocabulary()
        stream = iter(counted(passages(), "passage"))
        row = sum(1 for _ in islice(stream, len(finished) * shard_passages))
        if finished:
            _log.info("%s: %d passages are read from an earlier run", self.corpus_name, row)
        number = len(finished)
        while True:
            known, words, lengths = len(vocabulary), array("I"), array("i")
            ids: list[str] = []
            lines_of = array("q")
            for line, passage in islice(stream, shard_passages):
                lengths.append(vocabulary.add_passage(passage.title, passage.text, words))
                ids.append(passage.id)
                lines_of.append(line)
            if not ids:
                break
            new_words = "\n".join(islice(vocabulary.ids, known, None))
            _write_shard(self.work / "shards" / f"{number:05d}", words, lengths, ids, lines_of, row, new_words)
            row += len(ids)
            number += 1
        if not row:
            raise UserError(f"{self.corpus_name}: no passages; give a corpus with at least one")
        if not len(vocabulary):
            raise UserError(f"{self.corpus_name}: has no word: every title and text is empty or punctuation")
        write_json(self.work / "corpus.json", {"passages": row, "words": len(vocabulary)})

    def order_ids(self) -> None:
        """Write the place of every passage in the order of all ids, and count the words' passages."""
        shards = self._shards()
        if (self.work / "holders.npy").exists():
            return
        places = [array("i") for _ in shards]
        last, last_line = None, 0
        by_id = heapq.merge(*(_ids_of_shard(shard, number) for number, shard in enumerate(shards)))
        for place, (id, line, shard) in enumerate(by_id):
            if id == last:
                raise UserError(
                    f"{self.corpus_name}:{line}: duplicate id '{id}' (the first is "
                    f"{self.corpus_name}:{last_line}); give every passage an id of its own, and remove {self.folder}"
                )
            last, last_line = id, line
            places[shard].append(place)
        for shard, of_shard in zip(shards, places, strict=True):
            write_array(shard / "places.npy", (len(of_shard),), np.int32, [np.frombuffer(of_shard, np.int32)])
        num_words = json.loads((self.work / "corpus.json").read_text())["words"]
        slabs = (slab for shard in shards for slab in _slabs_of_shard(shard))
        holders = Statistics.count(slabs, num_words).holders
        write_array(self.work / "holders.npy", holders.shape, holders.dtype, [holders])

    def _statistics(self) -> Statistics:
        total = sum((shard / "words.bin").stat().st_size // 4 for shard in self._shards())
        return Statistics(np.load(self.work / "holders.npy"), self._num_passages(), total)

    # ---- the questions -----------------------------------------------------------------------------------------------

    def _words_of(self, block: int) -> Path:
        return self.work / "questions" / f"{block:05d}.npz"

    def _best(self, block: int, shards: int) -> Path:
        return self.work / "best" / f"{block:05d}-{shards:05d}.npy"

    def prepare_questions(self) -> None:
        """Write the words of every question, as the postings number them."""
        missing = [block for block in range(len(self.blocks)) if not self._words_of(block).exists()]
        if not missing:
            return
        vocabulary = self._vocabulary()
        order = self._statistics().order()
        with Progress(len(self.queries), "question", "looked up") as progress:
            progress.skip(len(self.queries) - sum(map(self._size, missing)))
            for block in missing:
                start, stop = self.blocks[block]
                words, ends = questions_as_words(vocabulary, order, self.queries[start:stop])
                with atomic_write(self._words_of(block), "wb") as file:
                    np.savez(file, words=words, ends=ends)
                progress.advance(stop - start)

    def _size(self, block: int) -> int:
        start, stop = self.blocks[block]
        return stop - start

    def search(self, threads: int) -> None:
        """Search every block of questions in every shard, and keep the K best so far."""
        shards, statistics = self._shards(), self._statistics()
        done = {
            block: max(
                (number for number in range(1, len(shards) + 1) if self._best(block, number).exists()), default=0
            )
            for block in range(len(self.blocks))
        }
        _log.info("searching %d questions in %d shards", len(self.queries), len(shards))
        with Progress(len(self.queries) * len(shards), "question", "ranked") as progress:
            progress.skip(sum(number * self._size(block) for block, number in done.items()))
            for number, shard in enumerate(shards):
                missing = [block for block in done if done[block] <= number]
                if not missing:
                    continue
                postings = Postings.of_words(lambda shard=shard: _slabs_of_shard(shard), statistics, self.settings)
                places = np.load(shard / "places.npy").astype(np.int64)
                for block in missing:
                    self._search_block(block, number, postings, places, threads)
                    progress.advance(self._size(block))

    def _search_block(
        self, block: int, number: int, postings: Postings, places: NDArray[np.int64], threads: int
    ) -> None:
        with np.load(self._words_of(block)) as file:
            words, ends = file["words"], file["ends"]
        least = None
        before = np.empty((len(ends) - 1, 0), np.uint64)
        if number:
            before = np.load(self._best(block, number))
            least = keys_to_hits(before[:, -1:])[0][:, 0]  # 0 where there are not K yet
        scores, rows = postings.search(words, ends, self.depth, threads=threads, least=least)
        # The passages of a shard are in the order of their ids, so that their rows break ties as their places do.
        keys = hits_to_keys(scores, np.where(rows < 0, -1, places[rows]))
        best = np.sort(np.concatenate([before, keys], axis=1), axis=1)[:, ::-1][:, : self.depth]
        write_array(self._best(block, number + 1), best.shape, best.dtype, [best])
        self._best(block, number).unlink(missing_ok=True)


# ---- a shard's files -------------------------------------------------------------------------------------------------


def _write_shard(
    folder: Path,
    words: "array[int]",
    lengths: "array[int]",
    ids: list[str],
    lines: "array[int]",
    first_row: int,
    new_words: str,
) -> None:
    """Write some passages, in the order of their ids."""
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
    all_words, all_lengths = np.frombuffer(words, np.uint32), np.frombuffer(lengths, np.int32)
    ends = np.cumsum(all_lengths, dtype=np.int64)
    with atomic_folder(folder) as partial:
        with open(partial / "words.bin", "wb") as file:
            for row in order.tolist():
                file.write(all_words[ends[row] - all_lengths[row] : ends[row]].data)
        np.save(partial / "lengths.npy", all_lengths[order])
        np.save(partial / "rows.npy", (first_row + order).astype(np.int32))
        np.save(partial / "lines.npy", np.frombuffer(lines, np.int64)[order])
        with write_texts(partial, "ids") as texts:
            for row in order.tolist():
                texts.append(ids[row])
        (partial / "new-words.txt").write_text(new_words, "utf-8")


def _slabs_of_shard(shard: Path) -> Iterator[Slab]:
    lengths = np.load(shard / "lengths.npy")
    with open(shard / "words.bin", "rb") as file:
        for start in range(0, len(lengths), _PASSAGES_A_SLAB):
            of_slab = lengths[start : start + _PASSAGES_A_SLAB]
            yield np.fromfile(file, np.uint32, int(of_slab.sum())), of_slab


def _ids_of_shard(shard: Path, number: int) -> Iterator[tuple[str, int, int]]:
    """Yield (id, line, number of the shard) in the order of the ids, then of the lines."""
    ids = MappedTexts(shard, "ids", f"remove {shard.parents[2]} and run the command again")
    for id, line in zip(ids, np.load(shard / "lines.npy"), strict=True):
        yield id, int(line), number
