"""The teacher's scores against PyTorch transformers, with the prompt built here anew, to 1e-4 (float32 rounding)."""

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from peers import torch, transformers
from tiny import DATA, T5, lively

from jaxretr.data.readers import read_corpus
from jaxretr.data.token_store import TokenStore
from jaxretr.data.tokens import Template, load_tokenizer, scorer_passage, scorer_target
from jaxretr.models.backbones.layers import initialise
from jaxretr.models.backbones.t5 import T5Model
from jaxretr.models.hub.hf_folder import write_folder
from jaxretr.models.hub.t5_params import export_t5
from jaxretr.models.question_scorer import QuestionScorer, rectangle
from jaxretr.models.scorers.t5_scorer import Prompt, encoder_input, score_pairs

MAX_LENGTH, MAX_QUESTION_LENGTH = 64, 24
PASSAGES = [
    {"title": "Webbed toes", "text": "Webbed toes is the common name for syndactyly affecting the feet ."},
    {"title": "", "text": "The crisis began in October 1973 ."},
    {"title": "Wild card (sports)", "text": "1980 Oakland Raiders -- Super Bowl XV ( played in 1981 ) " * 8},
]
QUESTIONS = ["what is the medical term for webbed toes", "When did the 1973 oil crisis begin?", "who?", "x " * 40]
# Every question with every passage, and some pairs twice.
PAIRS = [(q, p) for q in QUESTIONS for p in PASSAGES] + [(QUESTIONS[0], PASSAGES[0]), (QUESTIONS[2], PASSAGES[2])]


class Reference:
    """ART's teacher in plain PyTorch, one pair at a time."""

    def __init__(self, folder: Path):
        self.model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def inputs(self, passage: dict[str, str], max_length: int) -> list[int]:
        before, after = self.ids("Passage: "), self.ids(" . Please write a question based on this passage.")
        room = max_length - len(before) - len(after) - 1
        return before + (self.ids(passage["title"]) + self.ids(passage["text"]))[:room] + after + [1]

    def score(self, question: str, passage: dict[str, str], max_length: int = MAX_LENGTH) -> float:
        target = [*self.ids("Question: " + question)[: MAX_QUESTION_LENGTH - 1], 1]
        with torch.no_grad():
            logits = self.model(
                input_ids=torch.tensor([self.inputs(passage, max_length)]), labels=torch.tensor([target])
            ).logits[0]
        return float(torch.log_softmax(logits.float(), -1)[range(len(target)), target].mean())


@dataclass
class Case:
    folder: Path
    reference: Reference

    def scorer(self, max_length: int = MAX_LENGTH) -> QuestionScorer:
        return QuestionScorer.from_pretrained(
            self.folder, max_length=max_length, max_question_length=MAX_QUESTION_LENGTH
        )


@pytest.fixture(scope="module", params=["v1.0", "v1.1"])
def case(request: pytest.FixtureRequest, tiny_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tiny_models / "scorer"
    if request.param == "v1.0":
        config = replace(T5, feed_forward_proj="relu", tie_word_embeddings=True)
        params = lively(initialise(lambda rngs: T5Model(config, rngs=rngs), 3), 4)
        folder = tmp_path_factory.mktemp("v1.0")
        write_folder(folder, *export_t5(config, params), load_tokenizer(tiny_models / "scorer"))
    return Case(folder, Reference(folder))


def test_scores_of_users_equal_pytorch(case: Case) -> None:
    questions, passages = zip(*PAIRS, strict=True)
    expected = np.array([case.reference.score(*pair) for pair in PAIRS])
    assert expected.std() > 0.1  # Not trivially equal.
    np.testing.assert_allclose(case.scorer().score(questions, passages, batch_size=16), expected, atol=1e-4, rtol=0)


def test_scores_inside_the_training_step_equal_pytorch(case: Case) -> None:
    """`score_pairs`, which the ART step calls, on the rows that the token store holds."""
    scorer = case.scorer()
    room = MAX_LENGTH - scorer.prompt.size
    titles, texts = ([passage[part] for _, passage in PAIRS] for part in ("title", "text"))
    passages, lengths = rectangle(scorer_passage(scorer.tokenizer, titles, texts, room).ids, len(PAIRS), 8)
    questions = [question for question, _ in PAIRS]
    targets, target_lengths = rectangle(
        scorer_target(scorer.tokenizer, questions, MAX_QUESTION_LENGTH).ids, len(PAIRS), 8
    )
    assert lengths.max() == room and target_lengths.max() == MAX_QUESTION_LENGTH  # Both limits are reached.
    score = jax.jit(partial(score_pairs, scorer.config, scorer.prompt))
    expected = [case.reference.score(*pair) for pair in PAIRS]
    ours = score(scorer.params, passages, lengths, targets, target_lengths)
    np.testing.assert_allclose(ours, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["v1.1"], indirect=True)
def test_a_passage_on_the_limit_is_whole(case: Case) -> None:
    """The original empties a passage that lands exactly on the length limit, by a [:-0] slice."""
    question, passage = QUESTIONS[0], PASSAGES[0]
    whole = case.reference.inputs(passage, 1000)
    for limit, kept in ((len(whole), True), (len(whole) - 1, False)):
        (ours,) = case.scorer(limit).score([question], [passage], batch_size=2)
        np.testing.assert_allclose(ours, case.reference.score(question, passage, limit), atol=1e-4, rtol=0)
        assert (abs(ours - case.reference.score(question, passage, 1000)) < 1e-4) == kept
        assert abs(ours - case.reference.score(question, {"title": "", "text": ""}, limit)) > 1e-3


@pytest.mark.parametrize("case", ["v1.1"], indirect=True)
def test_a_passage_of_many_questions_is_encoded_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = T5Model.encode

    def spy(self: T5Model, tokens: Any, lengths: Any) -> Any:
        encoded.append(tokens.shape[0])
        return encode(self, tokens, lengths)

    monkeypatch.setattr(T5Model, "encode", spy)
    passages = [PASSAGES[0], PASSAGES[1]] * 3
    questions = [QUESTIONS[n % 4] for n in range(6)]
    scores = case.scorer().score(questions, passages, batch_size=6)
    assert encoded == [2]
    expected = [case.reference.score(*pair) for pair in zip(questions, passages, strict=True)]
    np.testing.assert_allclose(scores, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", ["v1.1"], indirect=True)
def test_weights_in_bfloat16_score_nearly_the_same(case: Case) -> None:
    """The paper's teacher runs in bfloat16, whose 8 bits make about 1% of a log-probability."""
    exact = case.scorer().score([QUESTIONS[0]], [PASSAGES[0]], batch_size=2)
    rounded = QuestionScorer.from_pretrained(case.folder, dtype="bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(rounded.params)} == {"bfloat16"}
    np.testing.assert_allclose(rounded.score([QUESTIONS[0]], [PASSAGES[0]], batch_size=2), exact, rtol=0.03)


def test_an_empty_title_moves_no_other_row(tiny_models: Path, tmp_path: Path) -> None:
    """In the original an empty title misaligned the passages' ids in the scorer's token store."""
    rows = [json.loads(line) for line in (DATA / "corpus.jsonl").read_text().splitlines()][:4]
    rows[1]["title"] = rows[2]["text"] = ""
    (tmp_path / "corpus.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    tokenizer = load_tokenizer(tiny_models / "scorer")
    store = TokenStore.build(
        tmp_path / "tokens", read_corpus(tmp_path / "corpus.jsonl"), tokenizer, Template.SCORER_PASSAGE, 1000
    )
    assert store.num_rows == 4
    for number, row in enumerate(rows):
        title, text = tokenizer([row["title"], row["text"]], add_special_tokens=False)["input_ids"]
        assert store.row(number).tolist() == title + text


def test_the_instruction_stands_around_every_passage() -> None:
    """`encoder_input` against plain lists, from an empty passage to one that fills its row."""
    prompt = Prompt((7, 8, 9), (4, 5, 1))
    rng = np.random.default_rng(0)
    lengths = np.array([[0, 1, 5], [6, 3, 6]], np.int32)
    passages = rng.integers(10, 99, (2, 3, 6)).astype(np.uint16)  # Whatever lies behind a passage is not read.
    tokens, total = encoder_input(prompt, passages, lengths)
    assert tokens.shape == (2, 3, 12)
    for place in np.ndindex(2, 3):
        row = [*prompt.prefix, *passages[place][: lengths[place]].tolist(), *prompt.suffix]
        assert tokens[place].tolist() == row + [0] * (12 - len(row))
        assert total[place] == len(row)
