"""Characters as readers see them: which code points belong together, which are the same, and which look alike."""

# ruff: noqa: RUF001
import re
import unicodedata
from functools import lru_cache
from itertools import pairwise

_JOINER = "\u200d"
# Code points that belong to the character before them and are not marks by their category: joiners, the half-width
# voiced sound marks of Japanese, the vowel am of Thai and Lao.
_EXTENDING = frozenset("\u200c\u200d\uff9e\uff9f\u0e33\u0eb3")

# Letters that are easily taken for each other, in some type face or side by side (rn for m), also of other scripts.
_SHAPES = {
    letter: group[0]
    for group in ("liıіι", "oоοσ", "aаα", "eе", "cс", "pрρ", "xхχ", "yуγ", "uvνυ", "sѕ", "jј", "rnη", "kкκ", "tтτ")
    for letter in group
}

# A fraction becomes several characters: 5½ must not begin with 51.
_FRACTION = re.compile("[¼-¾⅐-⅟↉]")


def plain_forms(text: str) -> str:
    """Return a text in Unicode's form NFKC, and without the dot that İ keeps in lower case (i̇).

    Composed and combining accents become the same, and so do forms of one letter or digit: full-width, half-width,
    ligatures, circled, superscript. Upper and lower case stay. A fraction is separated from the character before it.
    """
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", _FRACTION.sub(r" \g<0>", text))
    return text.replace("İ", "I").replace("i\u0307", "i")


def split_characters(text: str) -> list[str]:
    """Split a text into characters as readers see them: code points that belong to a letter or picture stay with it.

    Such are combining marks, variation selectors, joiners and skin tones, the vowels and final consonants of Korean
    syllables that are spelt out, and pictures joined to one.
    """
    begins: list[int] = []
    for at, character in enumerate(text):
        if not begins or not (extends(character) or _is_joined(text[begins[-1]], text[at - 1], character)):
            begins.append(at)
    return [text[begin:end] for begin, end in pairwise([*begins, len(text)])]


def extends(character: str) -> bool:
    """Whether a character belongs to the one before it."""
    if character.isascii():
        return False
    return (
        character in _EXTENDING
        or unicodedata.category(character)[0] == "M"
        or "\u1160" <= character <= "\u11ff"
        or "\ud7b0" <= character <= "\ud7ff"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


def _is_joined(first: str, before: str, character: str) -> bool:
    # Letters behind a joiner (of Indian scripts, of Persian) are characters of their own.
    return before == _JOINER and not first.isalnum() and not character.isalnum()


def spans_of_characters(text: str) -> list[tuple[int, int]]:
    """Return begin and end of each letter or digit of a text, with its combining marks."""
    if text.isascii() or not any(map(extends, set(text))):
        return [(at, at + 1) for at, character in enumerate(text) if character.isalnum()]
    spans, begin = [], 0
    for character in split_characters(text):
        end = begin + len(character)
        # A combining mark without its letter would move to another letter.
        if character[0].isalnum() and not extends(character[0]):
            spans.append((begin, end))
        begin = end
    return spans


def look_alike(one: str, other: str) -> bool:
    """Whether two letters are easily taken for each other, or differ by case or marks alone."""
    return _shape(one) == _shape(other)


@lru_cache(maxsize=1 << 14)
def _shape(character: str) -> str:
    base = unicodedata.normalize("NFD", character.lower())[0]
    return _SHAPES.get(base, base)
