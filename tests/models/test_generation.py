"""Generation against transformers, token for token; how tokens are drawn; the prompts around passages."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from encoder_parity import SEED
from pair_models import GENERATORS, LM_VOCABULARY, make_model, random_lm
from peers import torch

from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.generation.decoders import decoder_of
from jaxretr.models.generation.decoding import Generated, Sampling, _choose, generate
from jaxretr.models.generation.prompts import prompt_texts, prompts
from jaxretr.models.hub import t5_params
from jaxretr.models.hub.cross_encoder_folder import read_causal_lm
from jaxretr.models.pair_scorer import CausalScorer
from jaxretr.models.question_generator import QuestionGenerator, as_question
from jaxretr.runtime.errors import UsageError, UserError

LENGTHS, NEW = [5, 9, 1, 12], 14
GREEDY = Sampling(temperature=0, max_new_tokens=NEW)
PASSAGES = [
    {"title": "Treaties", "text": "The king signed the treaty in March, and the river was the border."},
    {"title": "", "text": "Trains ran along the river until the war. " * 12},
    {"title": "Bees", "text": "Bees."},
]


# ---- greedy, as transformers ----------------------------------------------------------------------------------------------


def read(folder: Path, case: str) -> tuple[Any, Any]:
    config, params = t5_params.read(folder) if case == "t5" else read_causal_lm(folder, 1)
    decoder = decoder_of(config)
    return decoder, decoder.prepared(params, "float32")


@pytest.mark.parametrize("case", GENERATORS)
def test_greedy_tokens_and_their_likelihood_are_those_of_transformers(case: str, tmp_path: Path):
    theirs = random_lm(case).eval()
    theirs.save_pretrained(tmp_path)
    tokens = np.zeros((8, 16), np.int32)
    for row, length in enumerate(LENGTHS):
        tokens[row, :length] = np.random.default_rng([SEED, row]).integers(3, LM_VOCABULARY, length)
    lengths = np.array([*LENGTHS, 0, 0, 0, 0], np.int32)
    ends = np.arange(LM_VOCABULARY) == GENERATORS[case]
    decoder, params = read(tmp_path, case)
    found: Generated = generate(
        decoder,
        params,
        tokens,
        lengths,
        np.arange(8, dtype=np.uint32),
        ends,
        np.zeros_like(ends),
        np.uint32(0),
        per_prompt=1,
        sampling=GREEDY,
        dtype="float32",
    )
    for row, length in enumerate(LENGTHS):
        prompt = torch.tensor(tokens[row : row + 1, :length], dtype=torch.long)
        settings = {"max_new_tokens": NEW, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
        wanted = theirs.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)
        ids = wanted.sequences[0, 1 if case == "t5" else length :]
        assert np.asarray(found.tokens)[row, : found.counts[row]].tolist() == ids.tolist()
        log_probs = [torch.log_softmax(scores[0], -1)[id] for scores, id in zip(wanted.scores, ids, strict=True)]
        # A mean of up to 14 logarithms, each of the order of 1 to 10.
        assert float(found.log_probs[row]) == pytest.approx(float(sum(log_probs)) / len(ids), abs=1e-4)
        assert bool(found.ended[row]) == (int(ids[-1]) == GENERATORS[case])
    assert not np.asarray(found.counts)[4:].any(), "rows without a prompt say nothing"


@pytest.mark.parametrize("setting", ["final_logit_softcapping", "attn_logit_softcapping"])
def test_logits_that_would_be_capped_are_refused(setting: str, tmp_path: Path):
    model = random_lm("gemma3_text, causal")
    setattr(model.config, setting, 30.0)
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=f"caps .*{setting}.*, which is not supported; give another model"):
        read(tmp_path, "gemma3_text, causal")


# ---- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 1.0), (0, 0.75), (3, 0.8)])
def test_tokens_are_drawn_from_the_nucleus_by_their_probabilities(top_k: int, top_p: float):
    """As in transformers: the temperature first, then the k most likely, then those that sum up to p."""
    logits = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15])) * 0.5  # at a temperature of .5 they are these
    order, left = [1, 3, 4, 2, 0], np.array([0.4, 0.3, 0.15, 0.1, 0.05])[: top_k or 5]
    left = left / left.sum()
    kept = int(np.searchsorted(np.cumsum(left), top_p - 1e-9) + 1) if top_p < 1 else len(left)
    wanted = np.zeros(5)
    wanted[order[:kept]] = left[:kept] / left[:kept].sum()
    draws = 20_000
    keys = jax.random.split(jax.random.key(SEED), draws)
    sampling = Sampling(temperature=0.5, top_k=top_k, top_p=top_p)
    found = _choose(np.broadcast_to(logits.astype(np.float32), (draws, 5)), keys, 0, sampling)
    shares = np.bincount(np.asarray(found), minlength=5) / draws
    assert np.all(np.abs(shares - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / draws)), f"seed {SEED}: {shares}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("qwen3_lm", tmp_path_factory.mktemp("lm"))


def test_draws_depend_on_the_seed_and_the_passages_number_not_on_the_batch(folder: Path):
    generator = QuestionGenerator.from_pretrained(folder, template="upr", max_length=96)
    sampling = Sampling(temperature=2.0, top_k=0, top_p=1.0, max_new_tokens=12)
    passages = PASSAGES * 3
    whole = generator.generate(passages, per_passage=2, sampling=sampling, seed=3)
    assert [len(draws) for draws in whole] == [2] * 9
    assert whole[0] != whole[3], "the same passage with another number"
    assert whole[0][0] != whole[0][1]
    part = generator.generate(passages[4:6], per_passage=2, sampling=sampling, seed=3, numbers=[4, 5])
    assert [[draw.text for draw in draws] for draws in part] == [[draw.text for draw in draws] for draws in whole[4:6]]
    other = generator.generate(passages, per_passage=2, sampling=sampling, seed=4)
    assert other != whole
    assert generator.truncated == 3


# ---- prompts -------------------------------------------------------------------------------------------------------------


def test_the_teachers_template_is_the_row_that_the_teacher_scores(folder: Path):
    """So that a model writes what it would rate highly as ART's teacher."""
    scorer = CausalScorer.from_pretrained(folder, max_length=64)
    scored, seconds, _ = scorer.rows([""] * 3, PASSAGES)
    generator = QuestionGenerator.from_pretrained(folder, template="upr", max_length=64)
    titles, texts = ([passage[name] for passage in PASSAGES] for name in ("title", "text"))
    rows, cut = prompts(generator.tokenizer, generator.texts, titles, texts)
    assert rows == [row[:start] for row, start in zip(scored, seconds, strict=True)]
    assert cut == 2, "all but the last one"


def test_prompts_by_name_and_from_a_file(folder: Path, tiny_models: Path, tmp_path: Path):
    tokenizer, t5 = load_tokenizer(folder), load_tokenizer(tiny_models / "scorer")

    def prompt(tokenizer: Any, template: str, **settings: Any) -> str:
        texts = prompt_texts(tokenizer, template, 600, **{"encoder": False, **settings})
        [row], _ = prompts(tokenizer, texts, ["Bees"], ["They fly."])
        return tokenizer.decode(row)

    assert prompt(tokenizer, "inpars").endswith("Passage: Bees They fly.\nQuestion:")
    assert prompt(t5, "upr", encoder=True).endswith("write a question based on this passage. </s>")
    assert prompt(t5, "doc2query", encoder=True) == "bees they fly. </s>"
    tokenizer.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
    assert prompt(tokenizer, "chat").startswith("<|user|>Write one question")
    assert prompt(tokenizer, "chat").endswith("Passage: Bees They fly.<|assistant|>Question:")
    own = tmp_path / "own.txt"
    own.write_text("About {passage} someone asked:\n")
    assert prompt(tokenizer, str(own)) == "About Bees They fly. someone asked:"
    own.write_text("About something")
    with pytest.raises(UserError, match=r"own.txt: has \{passage\} 0 times"):
        prompt(tokenizer, str(own))
    for template, message in (("upper", "did you mean 'upr'"), ("doc2query", "causal language model")):
        with pytest.raises(UsageError, match=message):
            prompt(tokenizer, template)


@pytest.mark.parametrize(
    ("text", "question"),
    [
        (" What is it?\nA: a bee", "What is it?"),
        ('\n\n1. "Who  was he?"', "Who was he?"),
        ("Question 2: Is 5. a number?", "Is 5. a number?"),
        ("1984 was written by whom", "1984 was written by whom"),
        ("", ""),
    ],
)
def test_a_question_is_the_first_line_of_what_was_generated(text: str, question: str):
    assert as_question(text) == question


def test_a_question_ends_at_the_marks_of_other_scripts(folder: Path, monkeypatch: pytest.MonkeyPatch):
    generator = QuestionGenerator.from_pretrained(folder, template="upr")
    texts = ["?", "\uff1f", "\u061f", "who", "\u060c"]
    marks = [*texts, *[""] * (len(generator.tokenizer) - len(texts))]
    monkeypatch.setattr(type(generator.tokenizer), "batch_decode", lambda *_, **__: marks)
    assert generator.roles[0][: len(texts)].tolist() == [True, True, True, False, False]


def test_other_models_are_refused_in_one_line(tiny_models: Path):
    with pytest.raises(UserError, match="writes no text; give a causal language model"):
        QuestionGenerator.from_pretrained(tiny_models / "encoder")
