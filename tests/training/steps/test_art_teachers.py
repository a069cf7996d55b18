"""ART with every kind of teacher against the same loop in PyTorch, on 1 device and on 8.

Tolerances: both sides are float32 and sum in another order; a teacher's scores, of the order of 1, differ by 1e-6, and the
temperature makes four times as much of that. `gaps` ensures that rounding cannot change which passages are found.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from art_loop import ours, reference, t5_scores
from pair_models import make_model
from peers import sentence_transformers, torch, transformers
from tiny import DATA, write_models

from jaxretr.models.pair_scorer import CausalScorer, CrossEncoder
from jaxretr.models.question_scorer import QuestionScorer

STEPS, TEMPERATURE = 3, 0.25
LONGEST = {"bert": 64, "modernbert": 64}
CLASSES = {"t5": QuestionScorer, "qwen3_lm": CausalScorer}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teachers")
    write_models(folder, noise=0.3)
    return folder


def texts() -> tuple[list[str], list[str]]:
    """Questions, and passages with their titles in front."""
    rows, passages = (
        [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
        for name in ("queries", "corpus")
    )
    return [row["text"] for row in rows], [f"{row['title']} {row['text']}" for row in passages]


def scores_of_pytorch(kind: str, folder: Path, longest: int) -> Any:
    """Of every question and every passage, [questions, N]."""
    questions, passages = texts()
    if kind == "qwen3_lm":
        return likelihoods(folder, longest, questions, passages)
    model = sentence_transformers.CrossEncoder(
        str(folder), device="cpu", max_length=longest, activation_fn=torch.nn.Identity()
    )
    pairs = [(question, passage) for question in questions for passage in passages]
    return torch.tensor(model.predict(pairs, batch_size=20, show_progress_bar=False)).reshape(len(questions), -1)


def likelihoods(folder: Path, longest: int, questions: list[str], passages: list[str]) -> Any:
    """mean log p(question token | passage, instruction), with the rows put together from their texts."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    before, between = ids("Passage:"), ids(" . Please write a question based on this passage. Question:")
    found = []
    for question in questions:
        asked = ids(f" {question}")
        room = longest - len(before) - len(between) - len(asked)
        for passage in passages:
            context = [*before, *ids(f" {passage}")[:room], *between]
            with torch.no_grad():
                logits = model(torch.tensor([[*context, *asked]])).logits[0, len(context) - 1 : -1]
            found.append(logits.log_softmax(-1)[range(len(asked)), asked].mean())
    return torch.stack(found).reshape(len(questions), -1)


@pytest.mark.parametrize("kind", ["t5", "bert", "modernbert", "qwen3_lm", "qwen3, answers"])
def test_three_steps_equal_pytorchs_on_one_device_and_on_eight(
    kind: str, models: Path, tmp_path: Path, mesh1: jax.sharding.Mesh, mesh8: jax.sharding.Mesh
) -> None:
    longest = LONGEST.get(kind, 128)
    scorer: dict[str, Any] = {"max_question_length": 48, "max_length": longest}
    if kind == "t5":
        scorer, teacher = {}, t5_scores(models)
    else:
        scorer["path"] = str(make_model(kind, tmp_path / "model"))
        teacher = scores_of_pytorch(kind, tmp_path / "model", longest)
    theirs = None
    for name, mesh in (("1 device", mesh1), ("8 devices", mesh8)):
        history, run = ours(models, tmp_path / name, mesh, STEPS, teacher_temperature=TEMPERATURE, scorer=scorer)
        assert type(run.scorer) is CLASSES.get(kind, CrossEncoder)
        if theirs is None:
            batches = [run.batches.indices(number) for number in range(STEPS)]
            theirs = reference(models, teacher, batches, tmp_path / "towers", teacher_temperature=TEMPERATURE)
            assert min(theirs.gaps) > 1e-4 and min(theirs.losses) > 1e-3
        np.testing.assert_array_equal(history.rows, theirs.rows, err_msg=name)
        np.testing.assert_allclose(history.teacher_scores, theirs.teacher_scores, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(history.losses, theirs.losses, rtol=2e-4, err_msg=name)
        np.testing.assert_allclose(history.norms, theirs.norms, rtol=2e-4, err_msg=name)
        assert history.params.keys() == theirs.params.keys()
        for path, array in theirs.params.items():
            np.testing.assert_allclose(history.params[path], array, atol=2e-5, err_msg=f"{name}: {path}")
        np.testing.assert_allclose(history.embeddings, theirs.embeddings, atol=1e-4, err_msg=name)
