"""`jaxretr generate`: resumed and shared by processes with the same bytes, and its filters."""

import json
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import processes
import pytest
import tiny
from command_errors import the_error
from pair_models import make_model

import jaxretr
from jaxretr.cli import main
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.kept_chunks import KeptChunks
from jaxretr.mining import generated
from jaxretr.models.question_generator import Draw, QuestionGenerator
from jaxretr.runtime.errors import UsageError, UserError

CORPUS = tiny.DATA / "corpus.jsonl"
# A random model ends a text by chance: in many tokens, all about equally likely.
SETTINGS: dict[str, Any] = {
    "template": "upr",
    "max_length": 64,
    "max_new_tokens": 100,
    "temperature": 3.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_words": 1,
    "dtype": "float32",
    "chunk": 6,
}


class Killed(Exception):
    """Stands for a kill between two instructions."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen3_lm", tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out.jsonl"
    jaxretr.generate(folder, corpus=CORPUS, out=out, **SETTINGS)
    return out


def test_a_call_killed_at_every_chunk_writes_the_same_bytes(
    folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    generator = QuestionGenerator.from_pretrained(folder, template="upr", max_length=64, dtype="float32")
    out, write, written = tmp_path / "out.jsonl", KeptChunks.write, []
    with pytest.raises(UsageError, match="this one was loaded with its own"):
        jaxretr.generate(generator, corpus=CORPUS, out=out, **SETTINGS)
    for seed, message in ((-1, "must be at least 0"), (2**32, "must be below 2^32"), (0.5, "give a whole number")):
        with pytest.raises(UsageError, match=re.escape(f"seed={seed}: {message}")):
            jaxretr.generate(folder, corpus=CORPUS, out=out, seed=seed)  # pyright: ignore[reportArgumentType]
    settings = {name: value for name, value in SETTINGS.items() if name not in ("template", "max_length")}

    def killed(kept: KeptChunks, number: int, *arrays: np.ndarray) -> None:
        write(kept, number, *arrays)
        written.append(number)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(KeptChunks, "write", killed)
        for _ in range(4):
            with pytest.raises(Killed):
                jaxretr.generate(generator, corpus=CORPUS, out=out, **settings)
            assert not out.exists()
    assert written == [0, 1, 2, 3]
    jaxretr.generate(generator, corpus=CORPUS, out=out, **settings)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.made_of.json"]
    # Another seed begins anew, and says other things.
    jaxretr.generate(generator, corpus=CORPUS, out=out, **settings, seed=1)
    assert out.read_bytes() != whole.read_bytes()


def test_settings_of_numpy_are_those_of_python(folder: Path, whole: Path, tmp_path: Path):
    """They come from an array or a table of settings."""
    settings = {name: np.array(value)[()] if not isinstance(value, str) else value for name, value in SETTINGS.items()}
    settings["max_length"] = SETTINGS["max_length"]
    jaxretr.generate(folder, corpus=CORPUS, out=tmp_path / "out.jsonl", **settings, seed=np.int64(0))
    for name in ("", ".made_of.json"):
        assert (tmp_path / f"out.jsonl{name}").read_bytes() == whole.with_name(f"out.jsonl{name}").read_bytes()
    for setting in ("per_passage", "chunk", "min_words", "seed", "max_new_tokens"):
        with pytest.raises(UsageError, match=f"{setting}=None: give a whole number"):
            jaxretr.generate(folder, corpus=CORPUS, out=tmp_path / "out.jsonl", **(SETTINGS | {setting: None}))


@pytest.mark.slow
def test_two_processes_write_what_one_does(folder: Path, tmp_path: Path):
    words = ["-m", "jaxretr", "generate", str(folder), "--corpus", str(CORPUS), "--compute", "float32"]
    for name, value in SETTINGS.items():
        words += [] if name == "dtype" else [f"--{name.replace('_', '-')}", str(value)]
    processes.finish(processes.start([*words, "--out", str(tmp_path / "one")], 1, 1))
    outputs = processes.finish(processes.start([*words, "--out", str(tmp_path / "two")], 2, 1))
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert ["generated questions" in stdout for stdout, _ in outputs] == [True, False]


def test_the_file_is_a_training_set_for_the_corpus(whole: Path):
    """Which `mine` and `train` read: each question has its passage as the positive."""
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    ids = read_corpus(CORPUS).ids
    assert len(rows) > 3
    for row in rows:
        [positive] = row["positive_document_ids"]
        assert positive in ids
        assert row["query_id"] == f"{positive}-q0"
        assert row["positive_scores"][0] < 0
    assert len(jaxretr.mine(whole, corpus=CORPUS, negatives=2, answers=None)) == len(rows)


# ---- filters -------------------------------------------------------------------------------------------------------------

PASSAGES = Corpus.from_passages(
    [
        Passage("a", "The Honey Bee", "Bees keep their hive at 35 degrees and dance."),
        Passage("b", "Copper", "Roofs of copper turn green."),
        Passage("c", "", "The treaty was signed in Tordesillas."),
        Passage("d", "", " "),
    ]
)
DRAWS = [
    [Draw("how warm is a hive of bees?", -0.5, True), Draw("the honey bee", -0.1, True), Draw("bees", -0.1, True)],
    [Draw("why do copper roofs turn green", -0.7, True), Draw("How warm is a hive, of bees", -0.2, True)],
    [Draw("where was the treaty signed and", -0.4, False), Draw("which dance do bees know", -0.9, True)],
    [Draw("what is this passage about", -0.1, True)],
]


def filtered(**settings: Any) -> tuple[list[tuple[str, str]], dict[str, int]]:
    wanted = {"min_words": 3, "best_share": 1.0, "round_trip": None, "retriever": "bm25", **settings}
    found = generated._filtered(Path("out"), DRAWS, np.arange(4), PASSAGES, **wanted)
    return [(example.positives[0].id or "", example.question) for example in found.examples], found.dropped


def test_each_filter_drops_what_it_names(caplog: pytest.LogCaptureFixture):
    bees, copper, dance = ("a", DRAWS[0][0].text), ("b", DRAWS[1][0].text), ("c", DRAWS[2][1].text)
    with caplog.at_level(logging.INFO, "jaxretr"):
        kept, dropped = filtered()
    assert kept == [bees, copper, dance]
    reasons = dict.fromkeys(("empty", "unfinished", "title", "short", "duplicate"), 1)
    assert dropped == {**dict.fromkeys(generated.DROPPED, 0), **reasons}
    assert "dropped 1 questions that repeat the passage's title (title)" in caplog.messages
    kept, dropped = filtered(round_trip=1)
    assert (kept, dropped["round_trip"]) == ([bees, copper], 1), "the bees' passage is found for the dance"
    kept, dropped = filtered(best_share=0.34)
    assert (kept, dropped["likelihood"]) == ([bees], 2)
    with pytest.raises(UserError, match="none of the 8 generated questions passes the filters"):
        filtered(min_words=9)


def test_words_have_their_marks(monkeypatch: pytest.MonkeyPatch):
    """Of what and why in Hindi the consonants are the same; a name of one word has three runs of them."""
    texts = ["राम क्या खाता है", "राम क्यों खाता है", "हिंदुस्तान", "राम क्या, खाता है"]
    monkeypatch.setitem(globals(), "DRAWS", [[Draw(text, -0.5, True) for text in texts], [], [], []])
    kept, dropped = filtered()
    assert [question for _, question in kept] == texts[:2]
    assert (dropped["short"], dropped["duplicate"]) == (1, 1)


def test_a_copy_of_the_passage_is_found_as_well(monkeypatch: pytest.MonkeyPatch):
    copies = Corpus.from_passages([*PASSAGES, Passage("e", PASSAGES.titles[1], PASSAGES.texts[1])])
    monkeypatch.setitem(globals(), "PASSAGES", copies)
    monkeypatch.setitem(globals(), "DRAWS", [[], [], [], [], [Draw("why do copper roofs turn green", -0.7, True)]])
    found = generated._filtered(Path("out"), DRAWS, np.arange(5), copies, 3, 1.0, 1, "bm25")
    assert [example.positives[0].id for example in found.examples] == ["e"]


def test_a_model_finds_the_passages_of_the_round_trip(folder: Path, tiny_models: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    settings = SETTINGS | {"round_trip": 10, "retriever": tiny_models / "encoder"}
    found = jaxretr.generate(folder, corpus=CORPUS, out=out, **settings)
    assert found.dropped["round_trip"] > 0
    model, corpus = jaxretr.load_encoder(tiny_models / "encoder"), read_corpus(CORPUS)
    index = jaxretr.ExactIndex(model.encode_passages([corpus[row] for row in range(len(corpus))]), corpus.ids)
    _, hits = index.search(model.encode_queries([each.question for each in found.examples]), 10)
    assert all(each.positives[0].id in of_one for each, of_one in zip(found.examples, hits, strict=True))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "0", "--per-passage", "2"], "all questions about a passage are equal; raise it"),
        (["--top-p", "0"], "--top-p 0.0: give a number above 0, up to 1 for all tokens"),
        (["--best-share", "2"], "--best-share 2.0: give a number above 0"),
        (["--template", "chat"], "--template chat: "),
        (["--max-length", "12"], "--max-length 12: the template takes"),
        (["--max-length", "4096"], "but the model has 128 positions; lower it"),
        (["--format", "tevatron3"], "did you mean 'tevatron'"),
        (["--format", "distillation"], "--format distillation; give one of dpr"),
        (["--retriever", "nowhere"], "--retriever nowhere: is the searcher of --round-trip;"),
        (["--retriever", "./nowhere", "--round-trip", "3"], "nowhere: no such model folder"),
    ],
)
def test_bad_settings_are_one_line(
    words: Sequence[str], message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = str(tmp_path / "out.jsonl")
    assert main(["generate", str(folder), "--corpus", str(CORPUS), "--out", out, "--compute", "float32", *words]) != 0
    assert message in the_error(capsys)
    assert not list(tmp_path.iterdir())
