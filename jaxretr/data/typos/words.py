"""A word as typos see it: its letters and digits, whole with their marks, and the changes that it allows."""

from collections.abc import Callable, Mapping, Sequence, Sized
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeVar

from jaxretr.data.characters import is_letter, look_alike, split_characters
from jaxretr.data.typos.stop_words import STOP_WORDS

# Letters of all the words that are remembered with the facts found about them, some 200 bytes each.
_MOST_LETTERS = 1 << 18

# Letters of the words that the single-word profile prefers, and the rank of those that it never takes.
_SHORTEST = 3
NO_LETTER = 3

_Key = TypeVar("_Key", bound=Sized)
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


class _Remembered(dict[_Key, _Value]):
    """A value of each key, made on demand; all are forgotten when the keys have too many letters together."""

    def __init__(self, make: Callable[[_Key], _Value]):
        super().__init__()
        self._make = make
        self._letters = 0

    def __missing__(self, key: _Key) -> _Value:
        self._letters += len(key)
        if self._letters > _MOST_LETTERS:
            self.clear()
            self._letters = len(key)
        value = self[key] = self._make(key)
        return value


class _Shape(NamedTuple):
    """The numbers of a word's letters, which words of the same length share to save time and memory; see `Word`."""

    letters: Sequence[int]
    pairs: Sequence[int]
    removable: Sequence[int]
    gaps: Sequence[int]


def _shape(letters: tuple[int, ...]) -> _Shape:
    pairs = [one for one, other in pairwise(letters) if other == one + 1]
    removable, gaps = (sorted({place for one in ones for place in (one, one + 1)}) for ones in (pairs, letters))
    return _Shape(letters, pairs, removable, gaps)


_SHAPES = _Remembered(_shape)


class Word:
    """A piece of text between white space.

    Attributes:
      text: the whole text, with the punctuation around it.
      sources: the lists that typos are made from.
      characters: the text's characters, each with its marks.
      letters: the numbers of the characters that are letters or digits.
      pairs: the first of each two letters side by side.
      removable: the letters that are next to another one.
      gaps: the places where a letter can be inserted: before and behind each one.
    """

    def __init__(self, text: str, sources: Sources):
        """Take a word apart."""
        self.text = text
        self.sources = sources
        self.characters = split_characters(text)
        if text.isascii() and text.isalnum():
            letters = tuple(range(len(text)))
        else:
            letters = tuple(number for number, character in enumerate(self.characters) if is_letter(character))
        self.letters, self.pairs, self.removable, self.gaps = _SHAPES[letters]

    @cached_property
    def keyed(self) -> list[tuple[int, str]]:
        """The letters with a key, each with the letters on the keys next to it."""
        # İ becomes two characters, and a word with it stays in its case.
        lower, near = self.text.lower(), self.sources.keys
        characters = split_characters(lower) if len(lower) == len(self.text) else self.characters
        return [(number, near[key]) for number in self.letters if (key := characters[number]) in near]

    @cached_property
    def plain(self) -> str:
        """The word's form in lists: in lower case, with the straight apostrophe, without the punctuation around it."""
        return self._inner.lower().replace("\u2019", "'")

    @property
    def _inner(self) -> str:
        return "".join(self.characters[self.letters[0] : self.letters[-1] + 1]) if self.letters else ""

    @cached_property
    def letter_count(self) -> int:
        """The number of the word's characters that are letters, not digits."""
        return sum(self.characters[number][0].isalpha() for number in self.letters)

    @cached_property
    def misspelt(self) -> list[str]:
        """The word with each of the misspellings that the dictionary has of it, in its case.

        Misspellings that are a swap of neighbours or a neighbouring key are not among them: these are operations of
        their own. Stop words of fewer than five letters are not looked up.
        """
        plain = self.plain
        if plain not in self.sources.misspellings or (len(plain) < 5 and plain in STOP_WORDS):
            return []
        return [
            self.changed(self.letters[0], self.letters[-1] + 1, in_case_of(self._inner, wrong))
            for wrong in self.sources.misspellings[plain]
            if form(plain, wrong, self.sources.keys) not in ("swap", "keyboard")
        ]

    @cached_property
    def can_be_misspelt(self) -> bool:
        """Whether the word has two letters, and some operation of the dictionary profile changes them."""
        return len(self.letters) > 1 and bool(self.misspelt or self.keyed or self.pairs)

    @cached_property
    def alphabet(self) -> Sequence[str]:
        """The letters from which a random one is drawn: the keyboard's, or the word's own if none of them has a key."""
        if self.keyed:
            return self.sources.letters
        return [self.characters[number] for number in self.letters if self.characters[number][0].isalpha()]

    @cached_property
    def can_be_split(self) -> bool:
        """Whether the word has four letters, and two side by side to part."""
        return self.letter_count > 3 and bool(self.pairs)

    @cached_property
    def transposable(self) -> list[int]:
        """The pairs whose exchange can be seen: two letters of different shape."""
        ones, others = self.characters, self.characters[1:]
        return [
            n
            for n in self.pairs
            if ones[n][0].isalpha() and others[n][0].isalpha() and not look_alike(ones[n], others[n])
        ]

    def swapped(self, pair: int) -> str:
        """The word with two letters exchanged; upper and lower case stay where they are."""
        one, other = self.characters[pair : pair + 2]
        return self.changed(pair, pair + 2, in_case_of(one, other) + in_case_of(other, one))

    def replaced(self, number: int, letter: str) -> str:
        """The word with another letter in a character's place, in its case."""
        return self.changed(number, number + 1, in_case_of(self.characters[number], letter))

    def changed(self, begin: int, end: int, text: str) -> str:
        """The word with a text in the place of the characters from `begin` to before `end`."""
        characters = self.characters.copy()
        characters[begin:end] = (text,)
        return "".join(characters)


class Words(_Remembered[str, Word]):
    """The `Word` of each text.

    Attributes:
      ranks: text -> the order in which the single-word profile prefers it: 0 first, `NO_LETTER` never.
    """

    def __init__(self, sources: Sources):
        super().__init__(lambda text: Word(text, sources))
        self.ranks = _Remembered(self._rank)

    def _rank(self, text: str) -> int:
        # Most words are plain letters, and need not be taken apart for this.
        plain, letters = text, len(text)
        if not (text.isascii() and text.isalpha()):
            plain, letters = self[text].plain, self[text].letter_count
        return int(plain in STOP_WORDS) if letters >= _SHORTEST else 2 if letters else NO_LETTER


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
    """Name the change between two spellings of a word by what it looks like.

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
