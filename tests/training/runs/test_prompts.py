"""Prompts in training: every row of a run begins with its side's, and the model that comes out goes on with them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import DATA, contrastive_config

from jaxretr.config import Encoder, Joint, Typos
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.typos import TypoGenerator
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.runtime.errors import UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.encoder_start import JointModel, encoder_config, load_encoder
from jaxretr.training.runs.step_questions import StepQuestions

PROMPTS: dict[str, Any] = {"query_prompt": "the question is ", "passage_prompt": "as read: "}


def ids(model: DualEncoder, text: str, length: int) -> list[int]:
    return model.tokenizer(text, truncation=True, max_length=length)["input_ids"]


def test_every_row_of_a_run_has_its_prompt(tiny_models: Path, tmp_path: Path) -> None:
    config = contrastive_config(tiny_models, encoder=PROMPTS, negatives={"retrieved": 1}, data={"corpus": str(DATA)})
    run: Any = ContrastiveRun(config, make_mesh(), tmp_path)
    model, corpus = run.model, read_corpus(DATA)
    assert encoder_config(config.encoder) == model.config
    assert (model.config.query_prompt, model.config.passage_prompt) == tuple(PROMPTS.values())
    store = run.store
    for row, passage in enumerate(corpus):
        expected = ids(model, f"as read: {passage.title} [SEP] {passage.text}", 48)
        assert store.row(row).tolist() == expected
    texts = [question.text for question in read_questions(DATA)]
    questions = StepQuestions(texts, Typos(), model, tmp_path, seed=3)
    tokens, lengths, _ = questions.of_step(np.arange(4), 0)
    for row in range(4):
        assert tokens[row, : lengths[row]].tolist() == ids(model, "the question is " + texts[row], 16)
    bare = StepQuestions(texts, Typos(), load_encoder(replace(config.encoder, query_prompt="")), tmp_path, seed=3)
    assert bare.store.folder != questions.store.folder, "one token cache keeps both apart"
    # As it is encoded afterwards.
    run.save_model(run.init(), tmp_path / "model")
    saved = DualEncoder.from_pretrained(tmp_path / "model")
    assert (saved.config.query_prompt, saved.config.passage_prompt) == tuple(PROMPTS.values())


def test_typos_are_in_the_question_and_never_in_the_prompt(tiny_models: Path, tmp_path: Path) -> None:
    settings = Encoder(
        str(tiny_models / "encoder"), max_question_length=30, max_passage_length=48, query_prompt="the question is "
    )
    model = load_encoder(settings)
    texts = ["Who wrote the history of England?", "when was the second world war"]
    typos = Typos(profile="single_word", variants=1, contrast_weight=1.0)
    for pre_drawn in (0, 2):
        questions = StepQuestions(texts, replace(typos, pre_drawn=pre_drawn), model, tmp_path, seed=3)
        _, _, forms = questions.of_step(np.array([1, 0]), 5)
        assert forms is not None
        for row, text in enumerate((texts[1], texts[0])):
            form = forms[0][row, 0, : forms[1][row, 0]].tolist()
            prompt = ids(model, "the question is", 30)[:-1]
            assert form[: len(prompt)] == prompt and form != ids(model, "the question is " + text, 30)
    drawn = TypoGenerator("single_word", seed=3).texts([texts[1]], 5, [1], 1)[0]
    tokens, lengths = StepQuestions(texts, typos, model, tmp_path, seed=3).of_step(np.array([1]), 5)[2] or ((), ())
    assert tokens[0, 0, : lengths[0, 0]].tolist() == ids(model, "the question is " + drawn, 30)


def test_parts_that_are_trained_jointly_have_the_same_prompts(tiny_models: Path) -> None:
    path = str(tiny_models / "encoder")
    with pytest.raises(UserError, match="the query_prompt ''; train the base alone"):
        JointModel(Encoder(path, max_passage_length=48, query_prompt="q: "), Joint(lexical=path), 0)
