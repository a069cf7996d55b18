"""Queries with typos, made at random in three ways that are never to be mixed in one comparison.

dictionary (Sidiropoulos and Kanoulas 2022): every fifth word, at least one, is drawn, stop words too, and misspelt if it
    has two characters or more. A word that the dictionary of misspellings has gets one of its misspellings; any other
    one, with the same chance, a letter of a neighbouring key or a swap of two neighbouring characters. Upper and lower
    case stay. Drawing a word of one character, or a swap of two equal ones, leaves a query as it is, about one in forty.
    Of the changes in the authors' test queries .362 are keyboard, .339 swap and .294 dictionary, and .026 of the queries
    are unchanged: of English words about as many have one character, which is why they are drawn here.
    The dictionary that comes with this package has seven words of ten in common questions, "of" and "the" among them,
    more than the lists of *common* misspellings that these shares speak of. Two restrictions make them the same: stop
    words of fewer than five letters are not looked up, and of a word's misspellings those are left out that are a swap
    of neighbours or a neighbouring key, the other two operations. By the second, counting operations and counting what
    the changes look like give the same shares.
single_word (Zhuang and Zuccon 2021): one change to one word of three letters or more that is not a stop word: delete a
    letter, swap two neighbours, insert or substitute a random letter, or substitute one of a neighbouring key, each
    word and operation with the same chance; what changes nothing is drawn again, so the edit distance (with swaps) is
    always 1. The query is lower-cased. A random letter on a neighbouring key counts as "keyboard": the released data
    can only be counted so. Where no word qualifies, stop words do, then shorter words.
spacing: one change a query: join two words, split one, or swap two neighbouring letters that do not look alike.

White space and the punctuation around words stay, characters stay whole with their marks, and no query becomes empty.
"""

import functools
import operator
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from jaxretr.config import TypoProfile
from jaxretr.data.typos import profiles as typo_profiles
from jaxretr.data.typos.draws import Draws, output
from jaxretr.data.typos.keyboards import neighbours
from jaxretr.data.typos.misspellings import read_misspellings
from jaxretr.data.typos.words import Sources, Words
from jaxretr.runtime.errors import UsageError, did_you_mean

PROFILES: tuple[TypoProfile, ...] = get_args(TypoProfile)
_NOT_SPACE = re.compile(r"\S+")


class Typo(NamedTuple):
    """A text with typos.

    Attributes:
      text: the text.
      operations: the operation of each change, in the order of the text: "dictionary", "keyboard", "swap", "delete",
        "insert", "substitute", "join" or "split". Empty where nothing changed.
    """

    text: str
    operations: tuple[str, ...]


class TypoGenerator:
    """Makes typos, the same ones in every process and whatever else is asked for.

    A typo is a function of the settings, the text and the three numbers that it is asked for with, and of nothing else.
    Random numbers come from SplitMix64, a generator that gives any of its outputs by its number: profile, seed, step,
    variant and row each pick an output that seeds the next, and each changed word takes one of the last.
    """

    def __init__(
        self,
        profile: str = "dictionary",
        *,
        keyboard: str = "qwerty",
        misspellings: str | Path | None = None,
        seed: int = 0,
    ):
        """Make a generator.

        Args:
          profile: one of `PROFILES`.
          keyboard: one of `jaxretr.data.typos.keyboards.KEYBOARDS`; spacing has no use for it.
          misspellings: a file as `read_misspellings` reads it, for the dictionary profile, which alone has a use for
            it; None for the list of English that comes with the package.
          seed: another seed gives other typos; taken modulo 2^64.

        Raises:
          UsageError: there is no such profile or keyboard.
          UserError: the file of misspellings cannot be read.
        """
        if profile not in PROFILES:
            hint = did_you_mean(profile, PROFILES) or f" (there are {', '.join(PROFILES)})"
            raise UsageError(f"unknown profile of typos '{profile}'{hint}")
        self.profile, self.keyboard, self.misspellings, self.seed = profile, keyboard, misspellings, seed
        self._change: typo_profiles.Change = getattr(typo_profiles, profile)
        self._lowers = profile == "single_word"
        keys = neighbours(keyboard)
        table = read_misspellings(misspellings) if profile == "dictionary" else {}
        self._words = Words(Sources(keys, "".join(keys), table))
        self._key = output(output(0, PROFILES.index(profile)), operator.index(seed))

    def __repr__(self) -> str:
        list_ = "" if self.misspellings is None else f", misspellings={str(self.misspellings)!r}"
        return f"TypoGenerator({self.profile!r}, keyboard={self.keyboard!r}{list_}, seed={self.seed})"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        # The facts found about words are not copied to a worker process.
        settings = {"keyboard": self.keyboard, "misspellings": self.misspellings, "seed": self.seed}
        return functools.partial(TypoGenerator, **settings), (self.profile,)

    def typo(self, text: str, step: int, row: int, variant: int = 0) -> Typo:
        """Make a typo of one text.

        Args:
          text: any text.
          step: the training step, or the number of the draw.
          row: the question's number in its list.
          variant: for several typos of one question at one step.

        Returns:
          The text with typos and its operations; the text itself where the profile can do nothing (no word of two
          letters, say).
        """
        return self._typo(text, output(self._state(step, variant), operator.index(row)))

    def texts(self, texts: Sequence[str], step: int, rows: Sequence[int], variant: int = 0) -> list[str]:
        """Make a typo of each text, whose row is in the same place of `rows`; see `typo`."""
        return [typo.text for typo in self.typos(texts, step, rows, variant)]

    def typos(self, texts: Iterable[str], step: int, rows: Iterable[int], variant: int = 0) -> list[Typo]:
        """Make a typo of each text as `texts` does, and return the operations as well."""
        state = self._state(step, variant)
        return [self._typo(text, output(state, operator.index(row))) for text, row in zip(texts, rows, strict=True)]

    def _state(self, step: int, variant: int) -> int:
        return output(output(self._key, operator.index(step)), operator.index(variant))

    def _typo(self, text: str, state: int) -> Typo:
        changed = text.lower() if self._lowers else text
        words = changed.split()
        if " ".join(words) == changed:
            operations = self._change(words, None, Draws(state), self._words)
            return Typo(" ".join(words), operations) if operations else Typo(text, operations)
        gaps = _NOT_SPACE.split(changed)
        operations = self._change(words, gaps, Draws(state), self._words)
        if not operations:
            return Typo(text, operations)
        return Typo(gaps[0] + "".join(map(operator.add, words, gaps[1:])), operations)


def generators(
    profiles: Iterable[str], *, keyboard: str | None = None, misspellings: str | Path | None = None, seed: int = 0
) -> dict[str, TypoGenerator]:
    """Return a generator for each of several profiles with the same settings; None: the default.

    Raises:
      UsageError: a setting that no profile reads; see `TypoGenerator` for other errors.
    """
    profiles = tuple(profiles)
    for setting, value, readers in (
        ("misspellings", misspellings, ("dictionary",)),
        ("keyboard", keyboard, ("dictionary", "single_word")),
    ):
        if value is not None and not set(readers) & set(profiles):
            raise UsageError(f"{setting} is for the typos of {' and '.join(readers)}; leave it out, or name these")
    settings = {"keyboard": keyboard or "qwerty", "misspellings": misspellings, "seed": seed}
    return {profile: TypoGenerator(profile, **settings) for profile in profiles}
