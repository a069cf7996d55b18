"""A word as typos see it: its letters and digits, whole with their marks, and the changes that it allows."""

from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from jaxretr.data.characters import look_alike, spans_of_characters
from jaxretr.data.typos.stop_words import STOP_WORDS

# Words that are remembered with the facts found about them, half a kilobyte each; of longer ones the last.
_MOST_WORDS = 1 << 15
_LONGEST_WORD = 64

# Letters of the words that the single-word profile prefers, and the rank of those that it never takes.
_SHORTEST = 3
NO_LETTER = 3

_Value = TypeVar("_Value")


class Sources(NamedTuple):
    """The lists that typos are made from.

    Attributes:
      keys: {letter: its neighbours on the keyboard}.
      letters: all letters of the keyboard.
      misspellings: {word: its misspellings}, lower-case.
    """

    keys: Mapping[str, str]
    letters: str
    misspellings: Mapping[str, tuple[str, ...]]


class Shape:
    """The places of the characters in a word.

    Attributes:
      characters: begin and end of each letter or digit, with its combining marks.
    """

    def __init__(self, characters: Sequence[tuple[int, int]]):
        self.characters = characters

    @cached_property
    def pairs(self) -> Sequence[tuple[int, int, int]]:
        """Begin, middle and end of each two characters side by side."""
        return [(b, m, e) for (b, m), (n, e) in pairwise(self.characters) if m == n]

    @cached_property
    def removable(self) -> Sequence[tuple[int, int]]:
        """Begin and end of the characters that are next to another one."""
        return sorted({span for b, m, e in self.pairs for span in ((b, m), (m, e))})

    @cached_property
    def gaps(self) -> Sequence[int]:
        """The places where a character can be inserted: before and behind each one."""
        return sorted({place for span in self.characters for place in span})


class _ShapeOfLetters(Shape):
    """The shape of a word of letters and digits alone, with no lists of places: words may have millions."""

    def __init__(self, number: int):
        super().__init__(_Places(number, 2))
        self.pairs = _Places(number - 1, 3)
        self.removable = self.characters if number > 1 else []
        self.gaps = range(number + 1)


class _Places(Sequence[Any]):
    """The sequence (0, 1, ...), (1, 2, ...), ... of `count` tuples of `width` numbers, without memory for them."""

    def __init__(self, count: int, width: int):
        self._count, self._width = count, width

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: Any) -> Any:
        begin = range(self._count)[at]
        return tuple(range(begin, begin + self._width))


@lru_cache(maxsize=_LONGEST_WORD)
def _shape_of_letters(number: int) -> Shape:
    """The shape of a word of letters alone, which words of the same length share to save time and memory."""
    return Shape([(at, at + 1) for at in range(number)])


class Word:
    """A piece of text between white space.

    Attributes:
      text: the whole text, with the punctuation around it.
      shape: the places of its characters.
      keys: {letter: its neighbours on the keyboard}.
    """

    def __init__(self, text: str, sources: Sources):
        """Take a word apart.

        Args:
          text: a text without white space.
          sources: the lists that typos are made from.
        """
        self.text = text
        self.keys = sources.keys
        self._sources = sources
        if not (text.isascii() and text.isalnum()):
            self.shape = Shape(spans_of_characters(text))
        elif len(text) <= _LONGEST_WORD:
            self.shape = _shape_of_letters(len(text))
        else:
            self.shape = _ShapeOfLetters(len(text))

    @cached_property
    def keyed(self) -> Sequence[int]:
        """The numbers of the characters with a key."""
        text, keys = self._lower, self.keys
        if len(self.shape.characters) == len(text):
            return array("i", (at for at, letter in enumerate(text) if letter in keys))
        return array("i", (at for at, (b, e) in enumerate(self.shape.characters) if text[b:e] in keys))

    @cached_property
    def _lower(self) -> str:
        text = self.text.lower()
        return text if len(text) == len(self.text) else self.text  # İ becomes two characters.

    def key(self, number: int) -> tuple[int, int, str]:
        """Begin and end of one of the characters with a key, and the letters on the keys next to it."""
        begin, end = self.shape.characters[self.keyed[number]]
        return begin, end, self.keys[self._lower[begin:end]]

    @cached_property
    def plain(self) -> str:
        """The word's form in lists: in lower case, with the straight apostrophe, without the punctuation around it."""
        if not self.shape.characters:
            return ""
        return self.text[self.shape.characters[0][0] : self.shape.characters[-1][1]].lower().replace("\u2019", "'")

    @cached_property
    def letter_count(self) -> int:
        """The number of the word's characters that are letters."""
        return sum(self.text[begin].isalpha() for begin, _ in self.shape.characters)

    @cached_property
    def misspelt(self) -> list[str]:
        """The word with each of the misspellings that the dictionary has of it, in its case.

        Misspellings that are a swap of neighbours or a neighbouring key are not among them: these are operations of
        their own. Stop words of fewer than five letters are not looked up.
        """
        plain = self.plain
        if plain not in self._sources.misspellings or (len(plain) < 5 and plain in STOP_WORDS):
            return []
        begin, end = self.shape.characters[0][0], self.shape.characters[-1][1]
        pattern = self.text[begin:end]
        return [
            self.text[:begin] + in_case_of(pattern, wrong) + self.text[end:]
            for wrong in self._sources.misspellings[plain]
            if form(plain, wrong, self.keys) not in ("swap", "keyboard")
        ]

    @cached_property
    def can_be_misspelt(self) -> bool:
        """Whether the word has two characters, and some operation of the dictionary profile changes them."""
        return len(self.shape.characters) > 1 and bool(self.misspelt or self.keyed or self.shape.pairs)

    @cached_property
    def letters(self) -> str | list[str]:
        """The letters from which a random one is drawn: the keyboard's, or the word's own if none of them has a key."""
        if self.keyed:
            return self._sources.letters
        return [self.text[b:e] for b, e in self.shape.characters if self.text[b].isalpha()]

    @cached_property
    def can_be_split(self) -> bool:
        """Whether the word has four letters, and two characters side by side to part."""
        return self.letter_count > 3 and bool(self.shape.pairs)

    @cached_property
    def begins_plain(self) -> bool:
        """Whether the word begins with a letter or digit."""
        return bool(self.shape.characters) and self.shape.characters[0][0] == 0

    @cached_property
    def ends_plain(self) -> bool:
        """Whether the word ends with a letter or digit."""
        return bool(self.shape.characters) and self.shape.characters[-1][1] == len(self.text)

    @cached_property
    def transposable(self) -> Sequence[int]:
        """The numbers of the pairs whose exchange can be seen: two letters of different shape."""
        text = self.text
        return array(
            "i",
            (
                at
                for at, (b, m, e) in enumerate(self.shape.pairs)
                if text[b].isalpha() and text[m].isalpha() and not look_alike(text[b:m], text[m:e])
            ),
        )

    def swapped(self, pair: tuple[int, int, int]) -> str:
        """The word with two characters exchanged; upper and lower case stay where they are."""
        b, m, e = pair
        text = self.text
        one, other = text[b:m], text[m:e]
        if one.islower() and other.islower():
            return text[:b] + other + one + text[e:]
        return text[:b] + in_case_of(one, other) + in_case_of(other, one) + text[e:]

    def replaced(self, begin: int, end: int, letter: str) -> str:
        """The word with another letter in a character's place, in its case."""
        text = self.text
        return text[:begin] + in_case_of(text[begin:end], letter) + text[end:]


class Words(dict[str, Word]):
    """The `Word` of each text, made on demand and remembered for a while.

    Attributes:
      ranks: text -> the order in which the single-word profile prefers it: 0 first, `NO_LETTER` never.
    """

    def __init__(self, sources: Sources):
        super().__init__()
        self._sources = sources
        self._long: Word | None = None
        self.ranks = _Ranks(self)

    def __missing__(self, text: str) -> Word:
        if self._long is not None and self._long.text == text:
            return self._long
        word = Word(text, self._sources)
        _remember(self, text, word)
        if len(text) > _LONGEST_WORD:
            self._long = word
        return word


class _Ranks(dict[str, int]):
    def __init__(self, words: Words):
        super().__init__()
        self._words = words

    def __missing__(self, text: str) -> int:
        # Most words are plain letters, and need not be taken apart for this.
        plain, letters = text, len(text)
        if not (text.isascii() and text.isalpha()):
            plain, letters = self._words[text].plain, self._words[text].letter_count
        rank = int(plain in STOP_WORDS) if letters >= _SHORTEST else 2 if letters else NO_LETTER
        _remember(self, text, rank)
        return rank


def _remember(table: dict[str, _Value], text: str, value: _Value) -> None:
    if len(text) <= _LONGEST_WORD:
        if len(table) >= _MOST_WORDS:
            table.clear()
        table[text] = value


# ---- spellings -------------------------------------------------------------------------------------------------------


def in_case_of(pattern: str, text: str) -> str:
    """Return `text` in upper and lower case as `pattern` is.

    A pattern in upper case, or capitalised, makes the whole text so; otherwise each letter follows the one at its
    place. Where the pattern has no letter (or no more), and where another case would take more characters, it stays.
    """
    if pattern.islower():
        return text.lower() if not text.islower() and len(text.lower()) == len(text) else text
    if pattern.isupper() and len(pattern) > 1:
        return "".join(map(_upper, text))
    return "".join(map(_like, pattern, text)) + text[len(pattern) :]


def _like(pattern: str, letter: str) -> str:
    if pattern.isupper():
        return _upper(letter)
    return letter.lower() if pattern.islower() and len(letter.lower()) == 1 else letter


def _upper(letter: str) -> str:
    return letter.upper() if len(letter.upper()) == 1 else letter


def form(clean: str, typo: str, keys: Mapping[str, str]) -> str:
    """Names the change between two spellings of a word by what it looks like.

    Args:
      clean: the right spelling.
      typo: the other one, in the same case.
      keys: {letter: its neighbours on the keyboard}, as `jaxretr.data.typos.keyboards.neighbours` returns it.

    Returns:
      "none", "swap" (of two neighbours), "keyboard" (a neighbouring key), "substitute" (another letter), "insert",
      "delete", or "other" for anything more.
    """
    begin, shorter = 0, min(len(clean), len(typo))
    while begin < shorter and clean[begin] == typo[begin]:
        begin += 1
    behind = 0
    while behind < shorter - begin and clean[-1 - behind] == typo[-1 - behind]:
        behind += 1
    was, now = clean[begin : len(clean) - behind], typo[begin : len(typo) - behind]
    if len(was) == len(now) == 1:
        return "keyboard" if now in keys.get(was, "") else "substitute"
    if len(was) == len(now) == 2 and was == now[::-1]:
        return "swap"
    return {(0, 0): "none", (0, 1): "insert", (1, 0): "delete"}.get((len(was), len(now)), "other")
