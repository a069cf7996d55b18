"""Does a passage contain an answer? DPR's matching.

Two modes. "string": passage and answer are NFD-normalised, cut into tokens (runs of letters, numbers and marks; every
other visible character alone) and lower-cased; an answer hits where its tokens occur contiguously in the passage's
TEXT (the title is not searched). Nothing is stripped: "US" is not "U.S.", "cafe" is not "café", "a b" is not "a-b".
"regex" (CuratedTREC): each answer is a regular expression searched in the NFD text.

Unlike the original, an answer without any token matches nothing (there it matches every passage). Besides, mode
"string" matches some texts that DPR's SimpleTokenizer keeps apart: full-width letters and digits, ligatures and other
forms that Unicode calls compatible (NFKC) match their plain letters, and İstanbul matches istanbul. That can only add
hits, and adds none where neither passage nor answer has such characters.
"""

import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import regex

from jaxretr.data.characters import plain_forms
from jaxretr.runtime.errors import check_choice

Match = Literal["string", "regex"]

_FLAGS = regex.IGNORECASE | regex.UNICODE | regex.MULTILINE
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]", flags=_FLAGS)

# Tokens are compared as one string with this between them: a control character is part of no token, so a contiguous
# sublist of tokens is exactly a substring, and finding it is one C call.
_BETWEEN = "\x00"


def has_answer(text: str, answers: Sequence[str], match: Match = "string") -> bool:
    """Tell whether a passage contains at least one of the answers.

    Args:
      text: the passage's text, without its title.
      answers: the accepted answers, or regular expressions.
      match: "string" or "regex".

    Raises:
      UsageError: an unknown `match`.

    Warns:
      UserWarning: an answer has no token or is an invalid regular expression; it matches nothing.
    """
    return AnswerMatcher(match, cached_passages=0).has_answer(text, answers)


class AnswerMatcher:
    """Finds answers for many questions over the same passages, with the results of `has_answer`.

    Every answer is compiled (and, where it can match nothing, warned about) once; the tokens of passages are kept, so
    that a passage found for many questions is cut once.
    """

    def __init__(self, match: Match = "string", cached_passages: int = 100_000):
        """Make a matcher.

        Args:
          match: "string" or "regex".
          cached_passages: the number of passages to keep in tokenised form, about 1 KB each for 100 words. The
            oldest goes first.
        """
        check_choice(get_args(Match), match=match)
        self._regex = match == "regex"
        self._cached_passages = cached_passages
        self._passages: dict[str, str] = {}
        self._answers: dict[str, Any] = {}

    def has_answer(self, text: str, answers: Sequence[str]) -> bool:
        """Tell whether a passage contains at least one of the answers; see the function of the same name."""
        if isinstance(answers, str):
            raise TypeError("answers must be a sequence of strings, not one string (its letters would be the answers)")
        compiled = [compiled for answer in answers if (compiled := self._compiled(answer)) is not None]
        normalised = unicodedata.normalize("NFD", text)
        if self._regex:
            return any(pattern.search(normalised) is not None for pattern in compiled)
        if self._holds(normalised, compiled):
            return True
        plain = plain_forms(text)
        if plain == text and not any(tokens.plain for tokens in compiled):
            return False
        return self._holds(unicodedata.normalize("NFD", plain), [tokens.plain or tokens for tokens in compiled])

    def _holds(self, text: str, answers: Sequence["_AnswerTokens"]) -> bool:
        # Tokenising a passage costs far more than this test, which rules out nearly every pair.
        folded = _fold(text)
        possible = [tokens for tokens in answers if tokens.longest in folded]
        return bool(possible) and any(tokens.joined in self._joined(text) for tokens in possible)

    def first_hit(self, texts: Iterable[str], answers: Sequence[str]) -> int | None:
        """Return the index of the first text that contains an answer, or None."""
        return next((index for index, text in enumerate(texts) if self.has_answer(text, answers)), None)

    def _compiled(self, answer: str) -> Any:
        if answer not in self._answers:
            self._answers[answer] = _compile_regex(answer) if self._regex else _compile_string(answer)
        return self._answers[answer]

    def _joined(self, text: str) -> str:
        joined = self._passages.get(text)
        if joined is None:
            joined = _join(_tokens(text))
            if self._cached_passages > 0:
                if len(self._passages) >= self._cached_passages:
                    del self._passages[next(iter(self._passages))]
                self._passages[text] = joined
        return joined


@dataclass(frozen=True)
class _AnswerTokens:
    """A string answer: its tokens joined as a passage's are, and the longest of them, folded.

    `plain` is the answer in its plain (NFKC) forms; None where it is in these already.
    """

    joined: str
    longest: str
    plain: "_AnswerTokens | None" = None


def _tokens(normalised: str) -> list[str]:
    # Lower-cases each token alone, after the cut: the lower case of a Greek sigma depends on its neighbours.
    return [token.lower() for token in _TOKEN.findall(normalised)]


def _join(tokens: Sequence[str]) -> str:
    return f"{_BETWEEN}{_BETWEEN.join(tokens)}{_BETWEEN}"


def _fold(text: str) -> str:
    """Lower-cases character by character: whatever holds a token holds that token folded."""
    return text.lower().replace("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}")


def _compile_string(answer: str) -> _AnswerTokens | None:
    normalised = unicodedata.normalize("NFD", answer)
    tokens = _tokens(normalised)
    if not tokens:
        _warn(f"the answer {answer!r} has no letter, number or visible character: it matches nothing")
        return None
    plain = unicodedata.normalize("NFD", plain_forms(answer))
    of_plain = _tokens(plain) if plain != normalised else []
    return _AnswerTokens(*_searched(tokens), _AnswerTokens(*_searched(of_plain)) if of_plain else None)


def _searched(tokens: Sequence[str]) -> tuple[str, str]:
    return _join(tokens), _fold(max(tokens, key=len))


def _compile_regex(answer: str) -> Any:
    if not answer.strip():
        _warn(f"the regular expression {answer!r} is empty: it matches nothing")
        return None
    try:
        return regex.compile(unicodedata.normalize("NFD", answer), flags=_FLAGS)
    except Exception as error:  # a pattern can fail in more ways than regex.error, deep nesting for one
        _warn(f"the answer {answer!r} is not a valid regular expression ({error}): it matches nothing")
        return None


def _warn(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)
