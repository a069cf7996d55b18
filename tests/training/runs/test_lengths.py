"""What is said of a run's inputs, such as texts that are cut: once, with their share, where steps are to come."""

import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_interruption import Stopped

from jaxretr.data.readers import read_beir
from jaxretr.indexes.index import Document
from jaxretr.indexes.live import offline
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.encode import note_cut
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.notes import note
from jaxretr.training import loop as program
from jaxretr.training.loop import build
from jaxretr.training.runs.encoder_start import load_encoder
from jaxretr.training.runs.run_inputs import Inputs


@pytest.mark.parametrize("kind", ["art", "contrastive"])
def test_a_run_says_what_it_reads_less_of_and_how_many_texts_it_cuts(
    kind: str, tiny_models: Path, mesh1: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"art": tiny.art_config, "contrastive": tiny.contrastive_config}[kind](
        tiny_models, encoder={"max_question_length": 24, "max_passage_length": 60}
    )
    with caplog.at_level(logging.INFO):
        run: Any = build(config, mesh1, tmp_path)
    whole, tokenizer = DualEncoder.from_pretrained(tiny_models / "encoder"), run.model.tokenizer
    questions = list(run.read.texts if kind == "art" else run.questions.texts)
    assert f"max_passage_length=60 ({whole.config.max_passage_length} there)" in caplog.text
    assert f"max_question_length=24 ({whole.config.max_question_length} there)" in caplog.text
    counts = [len(tokenizer(text)["input_ids"]) for text in questions]
    cut = sum(count > 24 for count in counts)
    assert 0 < cut < len(counts)
    assert f"{cut} of {len(counts)} training questions ({cut / len(counts):.0%}) were cut at 24 tokens" in caplog.text
    corpus = read_beir(tiny.DATA, "train").corpus
    long = sum(len(tokenizer(passage.title, passage.text)["input_ids"]) > 60 for passage in corpus)
    assert f"{long} of {len(corpus)} passages ({long / len(corpus):.0%}) were cut at 60 tokens" in caplog.text


def test_a_run_that_reads_as_much_as_its_start_says_nothing(
    tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = tiny.contrastive_config(tiny_models).encoder
    longest = DualEncoder.from_pretrained(tiny_models / "encoder").config.max_passage_length
    with caplog.at_level(logging.INFO):
        load_encoder(dataclasses.replace(encoder, max_question_length=longest, max_passage_length=longest))
        note_cut(0, 10, "passage", longest)
    assert not caplog.text


def test_notes_are_said_once_by_a_run_with_steps_to_go_and_not_beside_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.contrastive_config(tmp_path, train={"steps": 2, "best_metric": "mrr"})

    class Noted(Stopped):
        """Reads other data than the run began with, or fails as it starts."""

        def __init__(self, reads: str, fails: bool = False):
            super().__init__(config, [0.1, 0.2])
            self.reads, self.fails = reads, fails
            note(logging.getLogger("jaxretr.test").warning, "%d texts were cut", 3)

        def inputs(self) -> Inputs:
            return Inputs({"questions": self.reads}, {})

        def init(self) -> Any:
            note(logging.getLogger("jaxretr.test").warning, "old scores")
            if self.fails:
                raise UserError("bad scores")
            return super().init()

    def said(*run: Any) -> list[str]:
        caplog.clear()
        monkeypatch.setattr(program, "build", lambda *_: Noted(*run))
        with caplog.at_level(logging.INFO), contextlib.suppress(UserError):
            program.train(config, tmp_path / "run")
        return [record.getMessage() for record in caplog.records if record.name == "jaxretr.test"]

    assert said("a", True) == []
    assert said("a") == ["3 texts were cut", "old scores"]
    assert said("b") == []
    assert said("a") == []


def test_reindexing_counts_the_cut_texts_of_all_its_batches(
    tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoder = DualEncoder.from_pretrained(tiny_models / "encoder", max_passage_length=8)
    documents = [Document(str(n), "", "word " * (30 if n % 2 else 1)) for n in range(6)]
    with offline.encoding_model(encoder, "model", None) as model:
        for start in range(0, 6, 2):
            model.encode(documents[start : start + 2])
        assert "cut" not in caplog.text
    assert "3 of 6 passages (50%) were cut at 8 tokens" in caplog.text
