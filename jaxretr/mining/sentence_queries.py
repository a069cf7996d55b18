"""SPAR's training queries: sentences of the passages, more of them from the beginning of a document.

Chen et al. 2022 (arXiv 2110.06918), appendix: of a passage's s sentences max(1, round(s / (1.2 (i + 1)))) become
queries, where i is the passage's position in its document, from 0.
"""

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from jaxretr.data.arrays import write_array
from jaxretr.data.corpus import Passage
from jaxretr.data.corpus_stream import CorpusStream
from jaxretr.data.lexical_set import SOURCES
from jaxretr.data.mapped_texts import QueryStore, write_texts
from jaxretr.data.sentences import split_sentences
from jaxretr.runtime.errors import UsageError, UserError, is_number, require_at_least
from jaxretr.runtime.storage.files import write_json

COUNTS = "counts.json"

# Numbers of 8 bytes in a digest of blake2b.
_NUMBERS_A_DIGEST = 8


@dataclass(frozen=True)
class Sampling:
    """The rule by which sentences of a passage become queries.

    Attributes:
      kind: "position": max(1, round(s / (base (i + 1)))) of s sentences of the passage at position i of its document;
        "uniform": the same number from each passage; "all": every sentence.
      base: the base of "position".
      per_passage: the number of sentences of "uniform".
      seed: the seed of the draw; all sentences of a passage are equally likely.
    """

    kind: Literal["position", "uniform", "all"] = "position"
    base: float = 1.2
    per_passage: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.base) or self.base <= 0:
            raise UsageError(f"the base must be a number above 0, not {self.base!r}")
        require_at_least(1, per_passage=self.per_passage)

    def count(self, sentences: int, position: int) -> int:
        """Return the number of a passage's sentences that become queries.

        Halves are rounded to the even number, as Python's `round` does: 2.5 gives 2, 3.5 gives 4.

        Args:
          position: the position of the passage in its document, from 0.
        """
        if self.kind == "all":
            return sentences
        if self.kind == "uniform":
            return min(self.per_passage, sentences)
        return min(max(1, round(sentences / (self.base * (position + 1)))), sentences)

    def choose(self, sentences: int, position: int, row: int) -> list[int]:
        """Return the sentences that become queries, in their order: a function of the arguments and the seed."""
        count = self.count(sentences, position)
        if count == sentences:
            return list(range(sentences))
        # A hash, not a generator of numpy, whose numbers may change with its version.
        numbers: list[int] = []
        for part in range(-(-sentences // _NUMBERS_A_DIGEST)):
            digest = hashlib.blake2b(f"{self.seed} {row} {part}".encode()).digest()
            numbers += np.frombuffer(digest, "<u8").tolist()
        return sorted(sorted(range(sentences), key=numbers.__getitem__)[:count])


# ---- documents -------------------------------------------------------------------------------------------------------


class Documents:
    """The position of each passage in its document.

    The rule is one of
      title: consecutive rows with the same title are a document; a row without a title is a document of its own;
      field:NAME: rows with the same value of this field of their JSON object are a document, wherever they are;
      id:REGEX: rows in whose ids group 1 of this expression, which must match the whole id, is the same.
    """

    def __init__(self, rule: str):
        """Read the rule.

        Raises:
          UsageError: it is not a rule.
        """
        self.rule = rule
        kind, _, value = rule.partition(":")
        if not (rule == "title" or (kind in ("field", "id") and value)):
            raise UsageError(
                rf"'{rule}' does not name a rule for documents; give title, field:NAME or id:REGEX, such as id:(.+)-\d+"
            )
        self._field = value if kind == "field" else None
        self._pattern: re.Pattern[str] | None = None
        if kind == "id":
            try:
                self._pattern = re.compile(value)
            except re.error as error:
                raise UsageError(f"'{value}' is not a regular expression ({error}); correct it") from None
            if not self._pattern.groups:
                raise UsageError(rf"'{value}' has no group; put the document's part in parentheses, as in (.+)-\d+")

    def positions(self, corpus: CorpusStream) -> Iterator[tuple[Passage, int]]:
        """Yield (passage, its position in its document, from 0), row by row.

        Raises:
          UserError: a row without the field, or an id that the expression does not match.
        """
        if self.rule == "title":
            yield from _positions_by_title(corpus)
            return
        passages_of: Counter[str] = Counter()
        for passage, document in self._named(corpus):
            yield passage, passages_of[document]
            passages_of[document] += 1

    def _named(self, corpus: CorpusStream) -> Iterator[tuple[Passage, str]]:
        if self._field is not None:
            for place, passage, value in corpus.with_field(self._field):
                if isinstance(value, bool) or not isinstance(value, str | int):
                    raise UserError(
                        f"{place}: field '{self._field}' is neither text nor a whole number; name another one"
                    )
                yield passage, str(value)
            return
        assert self._pattern is not None
        for place, passage in corpus.placed():
            match = self._pattern.fullmatch(passage.id)
            if match is None or match[1] is None:
                raise UserError(f"{place}: the expression {self._pattern.pattern} does not match the id '{passage.id}'")
            yield passage, match[1]


def _positions_by_title(corpus: CorpusStream) -> Iterator[tuple[Passage, int]]:
    title, position = "", 0
    for _, passage in corpus.passages():
        position = position + 1 if passage.title and passage.title == title else 0
        title = passage.title
        yield passage, position


# ---- queries ---------------------------------------------------------------------------------------------------------


@dataclass
class SentenceCounts:
    """The counts of passages that were read and of sentences that were drawn.

    Attributes:
      passages: passages of the corpus.
      passages_without: passages without a sentence, which give no query.
      documents: number of documents.
      sentences: sentences of all passages.
      sampled: sentences drawn.
      queries: sentences that remain under the limit.
    """

    passages: int = 0
    passages_without: int = 0
    documents: int = 0
    sentences: int = 0
    sampled: int = 0
    queries: int = 0


def sampled_sentences(
    corpus: CorpusStream, documents: Documents, sampling: Sampling, counts: SentenceCounts
) -> Iterator[tuple[int, list[str]]]:
    """Yield (row, the sentences that become queries, in their order), row by row, and count in `counts`."""
    for row, (passage, position) in enumerate(documents.positions(corpus)):
        sentences = split_sentences(passage.text)
        chosen = [sentences[number] for number in sampling.choose(len(sentences), position, row)]
        counts.passages += 1
        counts.passages_without += not sentences
        counts.documents += position == 0
        counts.sentences += len(sentences)
        counts.sampled += len(chosen)
        yield row, chosen


def write_sentence_queries(
    folder: Path,
    corpus: CorpusStream,
    documents: Documents,
    sampling: Sampling,
    *,
    limit: int | None = None,
    advance: Callable[[int], None] = lambda passages: None,
) -> SentenceCounts:
    """Write the queries, in the order of the passages and of the sentences in them.

    Args:
      folder: the folder for a query store, sources.npy (int32 [Q], the row that each query is from) and counts.json,
        which is written last.
      documents: the position of each passage in its document.
      sampling: the rule that chooses sentences.
      limit: keep at most this many, drawn evenly from all that were sampled.
      advance: called with the number of passages read since the last call.

    Raises:
      UserError: no passage has a sentence, a rule of the documents fails, or a file cannot be written.
    """
    counts = SentenceCounts()
    sources = array("i")
    with write_texts(folder) as store:
        for row, sentences in sampled_sentences(corpus, documents, sampling, counts):
            for sentence in sentences:
                store.append(sentence)
                sources.append(row)
            advance(1)
        if not counts.sampled:
            raise UserError(
                f"{corpus.name}: none of the {counts.passages} passages has a sentence; give one with texts"
            )
    counts.queries = counts.sampled
    rows = np.frombuffer(sources, np.int32)
    if limit is not None and limit < counts.sampled:
        kept = drawn(counts.sampled, limit, sampling.seed, "limit")
        everything = QueryStore(folder)
        with write_texts(folder) as store:
            for number in kept.tolist():
                store.append(everything[number])
        rows = rows[kept]
        counts.queries = limit
    write_array(folder / SOURCES, rows.shape, np.int32, [rows])
    write_json(folder / COUNTS, asdict(counts))
    return counts


def drawn(total: int, count: int, seed: int, purpose: str) -> np.ndarray:
    """Return `count` different numbers below `total`, ascending, int64; each as likely as the others.

    Args:
      total: the number of numbers to draw from.
      count: the number of draws, at most `total`.
      purpose: a name; draws for different purposes do not depend on each other.
    """
    of_purpose = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=4).digest(), "little")
    return np.sort(np.random.default_rng([seed, of_purpose]).choice(total, count, replace=False, shuffle=False))
