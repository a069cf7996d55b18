"""Answer matching is DPR's, to the token, and Acc@k counts every question."""

# ruff: noqa: RUF001
import unicodedata
import warnings

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxretr.evaluate.answers import AnswerMatcher, accuracy, has_answer
from jaxretr.runtime.errors import UsageError, UserError

pytestmark = pytest.mark.filterwarnings("ignore:the answer")

PASSAGE = "The U.S. Café opened in 1999; José paid $5 (or 5€) for a-b. It's ΟΔΟΣ' street."


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("U.S.", True),
        ("u.s.", True),
        ("US", False),
        ("café", True),
        (unicodedata.normalize("NFD", "café"), True),
        ("cafe", False),
        ("caf", False),
        ("a-b", True),
        ("a - b", True),
        ("a b", False),
        ("  1999 ", True),
        ("199", False),
        ("in 1999;", True),
        ("in 1999.", False),
        ("$5", True),
        ("5€", True),
        ("it's", True),
        ("its", False),
        ("ΟΔΟΣ", True),
        ("οδος", True),
        ("the", True),
        ("paid the", False),
    ],
)
def test_string_matching_case_by_case(answer, expected):
    assert has_answer(PASSAGE, [answer]) is expected
    assert AnswerMatcher().has_answer(PASSAGE, [answer]) is expected


def test_a_final_sigma_is_judged_in_its_token():
    # In the whole text the sigma is followed by a letter, behind an apostrophe, which str.lower looks through.
    assert "ΟΔΟΣ'ΔΓ".lower() == "οδοσ'δγ"
    assert has_answer("ΟΔΟΣ'ΔΓ", ["οδος"]) and not has_answer("ΟΔΟΣ'ΔΓ", ["οδοσ"])


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("born in １９９９", "1999"),
        ("born in 1999", "１９９９"),
        ("the ﬁrst ﬂight", "first flight"),
        ("near İstanbul", "istanbul"),
        ("near i\u0307stanbul", "Istanbul"),
        ("10 km² of land", "km2"),
    ],
)
def test_forms_that_dpr_keeps_apart_match_besides(text, answer):
    assert not _by_definition(text, [answer]), "DPR's tokens differ"
    matcher = AnswerMatcher()
    assert has_answer(text, [answer]) and matcher.has_answer(text, [answer]) and matcher.has_answer(text, ["x", answer])
    assert not matcher.has_answer(text, [answer + "0"]) and not matcher.has_answer("born", [answer])


def test_a_fraction_is_not_taken_for_another_number():
    assert not has_answer("a size of 5½", ["51"]) and has_answer("a size of 5½", ["5½"])


def test_any_answer_is_enough_and_none_is_none():
    assert has_answer(PASSAGE, ["nowhere", "José"])
    assert not has_answer(PASSAGE, ["nowhere", "no one"])
    assert not has_answer(PASSAGE, [])
    assert not has_answer("", ["x"])


def _by_definition(text: str, answers: list[str]) -> bool:
    """The definition as it reads: a contiguous sublist of lower-cased tokens of the NFD text."""

    def tokens(of: str) -> list[str]:
        pattern = regex.compile(r"([\p{L}\p{N}\p{M}]+)|([^\p{Z}\p{C}])", regex.I | regex.U | regex.M)
        return [found.group().lower() for found in pattern.finditer(unicodedata.normalize("NFD", of))]

    passage = tokens(text)
    wanted = [tokens(answer) for answer in answers]
    return any(w and passage[i : i + len(w)] == w for w in wanted for i in range(len(passage)))


# Few characters, so that answers are found; each stands for a trap: case, both sigmas, the dotted I, composed and
# combining accents, case-ignorable punctuation, several kinds of white space, controls, an astral letter, digits.
_TEXT = st.text(alphabet="aAbΣς\u03c3\u0399İéÉe\u0301'.-$ \t\n\u00a0\u2028\x00\u200b\U0001d4b31²日", max_size=12)


@settings(max_examples=400, deadline=None)
@given(texts=st.lists(_TEXT, min_size=1, max_size=4), answers=st.lists(_TEXT, max_size=3), cached=st.integers(0, 2))
def test_matcher_and_function_equal_the_definition(texts, answers, cached):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matcher = AnswerMatcher(cached_passages=cached)
        for text in texts * 2:
            expected = _by_definition(text, answers)
            assert has_answer(text, answers) is expected
            assert matcher.has_answer(text, answers) is expected


@settings(max_examples=200, deadline=None)
@given(text=_TEXT, start=st.integers(0, 11), length=st.integers(0, 11))
def test_cut_out_answers_equal_the_definition(text, start, length):
    answer = text[start : start + length].swapcase()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert has_answer(text, [answer]) is _by_definition(text, [answer])


def test_answer_without_tokens_matches_nothing_and_warns_once():
    matcher = AnswerMatcher()
    with pytest.warns(UserWarning, match="matches nothing") as caught:
        assert not matcher.has_answer("some text", [" \u200b"])
        assert not matcher.has_answer("other text", [" \u200b"])
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="matches nothing"):
        assert not has_answer("some text", [""])
    with pytest.warns(UserWarning, match="matches nothing"):
        assert has_answer("some text", ["", "text"])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"19\d\d", True),
        (r"^the u\.s\.", True),
        (r"CAFÉ", True),
        (r"caf(e|é)\s+opened", True),
        (r"jos\w paid", False),  # NFD: e and its accent are two characters
        (r"jos\w\p{M} paid", True),
        (r"2\d\d\d", False),
    ],
)
def test_regex_matching_case_by_case(pattern, expected):
    assert has_answer(PASSAGE, [pattern], match="regex") is expected
    assert AnswerMatcher("regex").has_answer(PASSAGE, [pattern]) is expected


def test_regex_searches_every_line():
    assert has_answer("first\nsecond line", ["^second"], match="regex")


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "", "  "])
def test_invalid_or_empty_regex_matches_nothing_and_warns(pattern):
    with pytest.warns(UserWarning, match="matches nothing"):
        assert not has_answer("any ( text *", [pattern], match="regex")


def test_accuracy():
    answers = [["red"], ["blue", "green"], ["none"], []]
    passages = [["a Red fox", "red"], ["x", "y", "the green"], ["red", "blue"], ["red"]]
    assert accuracy(answers, passages, [1, 2, 3, 100]) == {"acc@1": 0.25, "acc@2": 0.25, "acc@3": 0.5, "acc@100": 0.5}
    assert accuracy([["r.d"]], [["red"]], [1], match="regex") == {"acc@1": 1.0}


def test_accuracy_reads_rankings_lazily_and_stops_at_the_hit():
    def texts():
        yield "no"
        yield "yes"
        raise AssertionError("read past the first hit")

    assert accuracy([["yes"]], [texts()], [1, 2]) == {"acc@1": 0.0, "acc@2": 1.0}


def test_wrong_use():
    with pytest.raises(UsageError, match="did you mean 'regex'"):
        has_answer("x", ["x"], match="regexp")
    with pytest.raises(UserError, match="empty"):
        accuracy([], [], [1])
    with pytest.raises(UsageError, match="acc@0"):
        accuracy([["x"]], [["x"]], [0])
    with pytest.raises(ValueError, match="argument"):
        accuracy([["x"], ["y"]], [["x"]], [1])
    with pytest.raises(TypeError, match="sequence of strings"):
        has_answer("x", "x")
