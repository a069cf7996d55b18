"""BM25's parameters, and text to words."""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import regex
from numpy.typing import NDArray

from jaxretr.data.characters import plain_forms
from jaxretr.runtime.errors import UsageError, did_you_mean, is_number

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
_FIRST_CJK = re.compile(f"[{_CJK}]").match
_RUN = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+")

# Invisible within a word: soft hyphen, joiners, variation selectors.
_INVISIBLE = "\u00ad\u034f\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
_HIDDEN = re.compile(f"[{_INVISIBLE}]+")

# A text of these alone has the same words whether forms and cases are joined word by word or, faster, at once: Latin,
# Greek, Cyrillic, Armenian, Georgian, punctuation, arrows, mathematics; no marks, nothing invisible, no pictures, no
# fractions, no symbols that become letters.
_WESTERN = (
    "\0-\xac\xae-\xbb\xbf-\u02ff\u0370-\u0482\u048a-\u0557\u0559-\u058a\u10a0-\u10ff\u1e00-\u200b\u2010-\u203e\u2041-\u2053"
    "\u2055-\u205f\u2070-\u208e\u2090-\u209c\u20a0-\u20a7\u20a9-\u20bf\u2190-\u22ff"
)
# The same for Han, Hiragana, Katakana and Hangul, their punctuation, and full-width and half-width forms.
_EASTERN = "\u3000-\u3029\u3030-\u3098\u309d-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff3e\uff40-\uff9d"
_NOT_WESTERN = re.compile(f"[^{_WESTERN}]")
_UNUSUAL = re.compile(f"[^{_WESTERN}{_EASTERN}]")

# Marks belong to the word, but not in Thai, Lao, Burmese and Khmer: without spaces a word would be a whole clause.
_TOKEN = regex.compile(
    rf"""(?V1)
    (?P<unspaced>[{_CJK}][{_CJK}{_INVISIBLE}]*)
    |[[\p{{L}}\p{{N}}_\uff3f]--[{_CJK}]]
     [[\p{{L}}\p{{N}}\p{{Mn}}\p{{Mc}}_\uff3f{_INVISIBLE}]--[{_CJK}]--[\p{{M}}&&[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]]]*
    |(?P<picture>\p{{RI}}\p{{RI}}|[\p{{Emoji_Presentation}}--[\U0001f3fb-\U0001f3ff]]|\p{{Extended_Pictographic}}(?=\ufe0f))
    """,
    regex.VERBOSE,
)

# Most spellings whose ids are kept, in addition to the vocabulary: the rest are stemmed again when they come again.
_MOST_SPELLINGS = 2_000_000


@dataclass(frozen=True)
class Bm25Settings:
    """BM25's parameters; the defaults are Anserini's and Pyserini's for Lucene.

    Attributes:
      k1: saturation of repeated words: the larger it is, the more repetitions count; finite and at least 0.
      b: length normalisation: the degree to which long passages are penalised, in [0, 1].
      stemmer: "english" (Snowball) or None.
      method: the variant of the formula, as bm25s names them.
      quantise_lengths: round passage lengths to one byte, like Lucene.

    Raises:
      UsageError: a parameter out of its range or unknown.
    """

    k1: float = 0.9
    b: float = 0.4
    stemmer: Literal["english"] | None = "english"
    method: Method = "lucene"
    quantise_lengths: bool = False

    def __post_init__(self):
        if not is_number(self.k1) or self.k1 < 0:
            raise UsageError(f"k1={self.k1!r}: must be at least 0 and finite")
        if not is_number(self.b) or not 0 <= self.b <= 1:
            raise UsageError(f"b={self.b!r}: must be between 0 and 1")
        if self.method not in _METHODS:
            raise UsageError(f"unknown BM25 method '{self.method}'{did_you_mean(self.method, _METHODS)}")
        if self.stemmer is not None and self.stemmer not in _STEMMERS:
            hint = did_you_mean(self.stemmer, _STEMMERS)
            raise UsageError(f"unknown stemmer '{self.stemmer}'{hint} (english or none)")


def split_words(text: str) -> list[str]:
    """Return the words of a text: runs of letters, digits, marks and underscores, also of one character, and emoji.

    The same word in upper or lower case (also Straße and STRASSE, İstanbul and istanbul), with composed or combining
    accents, in full-width characters or with ligatures is the same (Unicode's NFKC and case folding, word by word).
    That is what Lucene's StandardTokenizer with ICUNormalizer2Filter does; its StandardAnalyzer, and EnglishAnalyzer, which
    Pyserini takes, only lower-case. Accents stay, as in all of these: cafe is not café. Unlike theirs, the dot of İ goes,
    as it does in ICUFoldingFilter, and a fraction is words of its own (5½ has 5, 1 and 2).

    A run of Han, Hiragana, Katakana or Hangul, which have no spaces between words or are written without them, becomes
    its overlapping pairs of characters, and a single character stays itself; its neighbours stay words. That is
    Lucene's CJKBigramFilter. An emoji is a word, as in StandardTokenizer, but without its skin tone, and of several that
    are joined to one picture each is.
    """
    if text.isascii():
        return _WORD.findall(text.lower())
    if not _NOT_WESTERN.search(text):
        return _WORD.findall(_fold(text))
    if _UNUSUAL.search(text):
        text = unicodedata.normalize("NFC", text)
        if _UNUSUAL.search(text):
            return _words_one_by_one(text)
    text = _fold(text)
    words = []
    for run in _RUN.findall(text):
        words += _pairs(run) if _FIRST_CJK(run) else [run]
    return words


def stems_of(text: str, stemmer: str | None = "english") -> list[str]:
    """Return the words of a text as BM25 compares them, in their order: split, folded and stemmed."""
    stem = _stem_function(stemmer)
    return [stem(word) for word in split_words(text)]


def _words_one_by_one(text: str) -> list[str]:
    words = []
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word.isascii():
            words.append(word.lower())
        elif token["picture"]:
            words.append(word)
        elif token["unspaced"]:
            words += _pairs(_fold(_HIDDEN.sub("", word)))
        else:
            folded = _fold(_HIDDEN.sub("", word))
            # A form of compatibility may have hidden several words, as (一) in one character.
            words += [word] if folded == word else split_words(folded)
    return words


def _pairs(run: str) -> list[str]:
    return [run[start : start + 2] for start in range(len(run) - 1)] if len(run) > 1 else [run]


def _fold(text: str) -> str:
    return unicodedata.normalize("NFC", plain_forms(text).casefold())


class Vocabulary:
    """Words to numbers, in the order of their first appearance.

    Attributes:
      ids: the id of every stemmed word.
    """

    def __init__(self, stemmer: str | None, words: Iterable[str] = ()):
        """Make a vocabulary, empty or of words that are known already.

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
        """Append the ids of a passage's words to `words`, giving new words new ids; return how many they are."""
        spellings = split_words(f"{title} {text}")
        ids = list(map(self._id_of_spelling.get, spellings))
        if None in ids:
            ids = [self._new_id(spelling) if id is None else id for spelling, id in zip(spellings, ids, strict=True)]
        words.extend(ids)  # pyright: ignore[reportArgumentType]
        return len(ids)

    def ids_of_question(self, text: str) -> list[int]:
        """Return the ids of a question's words that the vocabulary has, repeated ones repeated."""
        word_ids = []
        for spelling in split_words(text):
            id = self._id_of_spelling.get(spelling)
            if id is None:
                id = self.ids.get(self._stem(spelling))
                if id is None:
                    continue
                self._remember(spelling, id)
            word_ids.append(id)
        return word_ids

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
    """Turn questions into the words that `Postings.search` takes.

    Args:
      vocabulary: the corpus's.
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
