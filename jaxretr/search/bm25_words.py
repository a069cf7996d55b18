"""BM25's parameters, and text to words."""

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from jaxretr.errors import UsageError, did_you_mean

Method = Literal["lucene", "robertson", "atire", "bm25l", "bm25+"]

_METHODS = get_args(Method)
_STEMMERS = ("english",)

# Han, Hiragana, Katakana, Hangul and their marks, with the half-width forms and the extension blocks. Punctuation
# between the blocks (the middle dot, the voiced sound marks that stand alone) is left out.
_CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u3099\u309a\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u30ff\u3131-\u318e\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97c\uac00-\ud7fb"
    "\uf900-\ufaff\uff66-\uffdc\U0001aff0-\U0001b16f\U00020000-\U0003fffd"
)
_WORD = re.compile(r"\w+")
_ANY_CJK = re.compile(f"[{_CJK}]")
_RUN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+")

# Most spellings whose ids are kept, beside the vocabulary itself: the rest are stemmed again when they come again.
_MOST_SPELLINGS = 2_000_000


@dataclass(frozen=True)
class Bm25Settings:
    """BM25's parameters; the defaults are Anserini's and Pyserini's for Lucene.

    Attributes:
      k1: how fast repeated words saturate, finite and at least 0.
      b: how much long passages are held back, in [0, 1].
      stemmer: "english" (Snowball) or None.
      method: the variant of the formula, as bm25s names them.
      quantise_lengths: whether the lengths of passages are rounded as Lucene does, which keeps one byte of each.

    Raises:
      UsageError: a parameter out of its range or unknown.
    """

    k1: float = 0.9
    b: float = 0.4
    stemmer: Literal["english"] | None = "english"
    method: Method = "lucene"
    quantise_lengths: bool = False

    def __post_init__(self):
        if not 0 <= self.k1 < float("inf"):
            raise UsageError(f"BM25's k1 must be at least 0 and finite, not {self.k1}")
        if not 0 <= self.b <= 1:
            raise UsageError(f"BM25's b must be between 0 and 1, not {self.b}")
        if self.method not in _METHODS:
            raise UsageError(f"unknown BM25 method '{self.method}'{did_you_mean(self.method, _METHODS)}")
        if self.stemmer is not None and self.stemmer not in _STEMMERS:
            hint = did_you_mean(self.stemmer, _STEMMERS)
            raise UsageError(f"unknown stemmer '{self.stemmer}'{hint} (english or none)")


def split_words(text: str) -> list[str]:
    """Returns the words of a text, lower-cased: runs of letters, digits and underscores, also of one character.

    A run of Han, Hiragana, Katakana or Hangul, which have no spaces between words or are written without them, becomes
    its overlapping pairs of characters, and a single character stays itself; what stands beside it stays a word.
    """
    text = text.lower()
    if text.isascii() or not _ANY_CJK.search(text):
        return _WORD.findall(text)
    words = []
    for run in _RUN.findall(text):
        if len(run) > 1 and _ANY_CJK.match(run):
            words += [run[start : start + 2] for start in range(len(run) - 1)]
        else:
            words.append(run)
    return words


class Vocabulary:
    """Words to numbers, in the order of their first appearance.

    Attributes:
      ids: the id of every stemmed word.
    """

    def __init__(self, stemmer: str | None, words: Iterable[str] = ()):
        """Makes a vocabulary.

        Args:
          stemmer: "english" or None.
          words: stemmed words that it has from the beginning, in the order of their ids.
        """
        self.ids: dict[str, int] = {word: number for number, word in enumerate(words)}
        self._stem = _stem_function(stemmer)
        self._id_of_spelling: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def add_passage(self, title: str, text: str, words: "array[int]") -> int:
        """Appends the ids of a passage's words to `words`, giving new words new ids; returns how many they are."""
        spellings = split_words(f"{title} {text}")
        ids = list(map(self._id_of_spelling.get, spellings))
        if None in ids:
            ids = [self._new_id(spelling) if id is None else id for spelling, id in zip(spellings, ids, strict=True)]
        words.extend(ids)  # pyright: ignore[reportArgumentType]
        return len(ids)

    def ids_of_question(self, text: str) -> list[int]:
        """Returns the ids of a question's words that the vocabulary has, repeated ones repeated."""
        found = []
        for spelling in split_words(text):
            id = self._id_of_spelling.get(spelling)
            if id is None:
                id = self.ids.get(self._stem(spelling))
                if id is None:
                    continue
                self._remember(spelling, id)
            found.append(id)
        return found

    def _new_id(self, spelling: str) -> int:
        id = self._id_of_spelling.get(spelling)
        if id is None:
            stem = self._stem(spelling)
            id = self.ids.setdefault(spelling if stem == spelling else stem, len(self.ids))
            self._remember(spelling, id)
        return id

    def _remember(self, spelling: str, id: int) -> None:
        if len(self._id_of_spelling) >= _MOST_SPELLINGS:
            self._id_of_spelling.clear()
        self._id_of_spelling[spelling] = id


def questions_as_words(
    vocabulary: Vocabulary, order: NDArray[np.int32], questions: Iterable[str]
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Turns questions into the words that `Postings.search` takes.

    Args:
      vocabulary: of the corpus.
      order: the number of every id in the postings, int32 [V].
      questions: B questions.

    Returns:
      All questions' words, int32 [any number], ascending within a question, and where each question's begin,
      int64 [B + 1].
    """
    words = array("i")
    ends = array("q", [0])
    for question in questions:
        words.extend(sorted(order[vocabulary.ids_of_question(question)].tolist()))
        ends.append(len(words))
    return np.frombuffer(words, np.int32), np.frombuffer(ends, np.int64)


def _stem_function(stemmer: str | None) -> Callable[[str], str]:
    if stemmer is None:
        return str
    import Stemmer

    # A stemmer object is not safe to share between threads while its own cache is on; ours is the dict of spellings.
    return Stemmer.Stemmer(stemmer, 0).stemWord
