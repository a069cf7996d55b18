"""Sentences end where readers of the language see them end, and nothing of a text is lost or makes the splitter fail."""

# ruff: noqa: RUF001
import json
import random
import re
from pathlib import Path

import pytest

from jaxretr.data.sentences import split_sentences

DATA = Path(__file__).parents[1] / "data" / "wiki_qa"


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "Dr. Smith met Mrs. Jones at 5 p.m. in Washington, D.C. on Jan. 5. They spoke of the U.S. Army.",
            ["Dr. Smith met Mrs. Jones at 5 p.m. in Washington, D.C. on Jan. 5.", "They spoke of the U.S. Army."],
        ),
        (
            "J. R. R. Tolkien, Jr. paid $3.50 for No. 5 (cf. Fish et al. 1998). Really? Yes! He left... The end.",
            [
                "J. R. R. Tolkien, Jr. paid $3.50 for No. 5 (cf. Fish et al. 1998).",
                *("Really?", "Yes!", "He left...", "The end."),
            ],
        ),
        # A passage of 100 words begins and ends anywhere.
        (
            "period. The ceremony ran for 15 minutes.  Winners were an",
            ["period.", "The ceremony ran for 15 minutes.", "Winners were an"],
        ),
        (
            "吾輩は猫である。名前はまだ無い。本当ですか？はい！終わり",
            ["吾輩は猫である。", "名前はまだ無い。", "本当ですか？", "はい！", "終わり"],
        ),
        (
            "今天天气很好。我们去公园吧！你想去吗？好的；走吧。",
            ["今天天气很好。", "我们去公园吧！", "你想去吗？", "好的；走吧。"],
        ),
        # Years and names in Latin letters behind the stop, as in every encyclopedia.
        (
            "公園は1970年に開いた。1980年に閉じた。３人いた。NHKは報じた。",
            ["公園は1970年に開いた。", "1980年に閉じた。", "３人いた。", "NHKは報じた。"],
        ),
        ("", []),
        (" \n\n \u3000\u00a0 ", []),
        ("no stop", ["no stop"]),
        ("One.\n\nTwo\nstill two. ", ["One.", "Two\nstill two."]),
    ],
)
def test_sentences(text: str, sentences: list[str]):
    assert split_sentences(text) == sentences


def test_wide_spaces_behind_initials_and_broken_characters_stay_as_they_are():
    assert split_sentences("George A.\u00a0Smith won. He left.") == ["George A.\u00a0Smith won.", "He left."]
    assert split_sentences("Mr. A.\u3000B.\u2028C. slept. It rained.")[-1] == "It rained."
    assert split_sentences("Half\ud83d a pair. Next.") == ["Half\ud83d a pair.", "Next."]


def test_nothing_is_lost_and_nothing_is_empty():
    seed = 5
    drawn = random.Random(seed)
    pieces = [
        *" .!?。！？\"'“”「」()[]\n\tabcABC5éß;:…–",
        "😀",
        "\u0301",
        "\u200d",
        "\x00",
        "\x1c",
        "\u2028",
        "\u3000",
        "\u00a0",
    ]
    pieces += ["\u0085", "\ufeff", "\ud800", "Mr. ", "e.g. ", "A.", "U.S. ", "No. ", "3.5"]
    texts = ["".join(drawn.choices(pieces, k=drawn.randint(0, 40))) for _ in range(3000)]
    texts += [json.loads(line)["text"] for line in (DATA / "corpus.jsonl").read_text().splitlines()]
    for text in texts:
        sentences = split_sentences(text)
        assert all(sentence and sentence == sentence.strip() for sentence in sentences), f"seed {seed}: {text!r}"
        places = re.sub(r"\s", "", text)
        assert re.sub(r"\s", "", "".join(sentences)) == places, f"seed {seed}: {text!r}"


def test_time_grows_with_the_length_and_not_with_its_square():
    # Seconds; with the square of the length it would be hours.
    assert len(split_sentences("word " * 200_000)) == 1
    assert len(split_sentences("One two. " * 20_000)) == 20_000
