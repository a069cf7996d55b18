"""Characters as readers see them: which code points belong together, which are the same, and which look alike."""

# ruff: noqa: RUF001
import re
import unicodedata
from functools import lru_cache

import regex

# Code points that belong to the character before them: marks, joiners, the half-width voiced sound marks of Japanese, the
# vowel am of Thai and Lao, vowels and final consonants of Korean syllables that are spelt out, skin tones. Not `\X`: that
# makes क्या one character, parts some vowels of Burmese from their consonant, and changes with versions of Unicode.
_EXTENDING = r"[\p{M}\u200c\u200d\uff9e\uff9f\u0e33\u0eb3\u1160-\u11ff\ud7b0-\ud7ff\U0001f3fb-\U0001f3ff]"
_CHARACTER = regex.compile(rf".{_EXTENDING}*+", regex.DOTALL)
_EXTENDS = regex.compile(_EXTENDING)

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

    Such are combining marks, variation selectors, joiners and skin tones, and the vowels and final consonants of Korean
    syllables that are spelt out.
    """
    return list(text) if text.isascii() else _CHARACTER.findall(text)


def is_letter(character: str) -> bool:
    """Whether a character, with its marks, is a letter or digit; a mark without its letter would move to another."""
    return character[0].isalnum() and (character.isascii() or not _EXTENDS.match(character))


def look_alike(one: str, other: str) -> bool:
    """Whether two letters are easily taken for each other, or differ by case or marks alone."""
    return _shape(one) == _shape(other)


@lru_cache(maxsize=1 << 14)
def _shape(character: str) -> str:
    base = unicodedata.normalize("NFD", character.lower())[0]
    return _SHAPES.get(base, base)
