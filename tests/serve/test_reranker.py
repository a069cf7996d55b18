"""Re-rankers in the service: their programs are compiled before the first request, and scores are the scorer's own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxretr.indexes.index import Document
from jaxretr.models import question_scorer
from jaxretr.models.question_scorer import QuestionScorer
from jaxretr.serve.reranker import Reranker
from jaxretr.serve.settings import Settings

# In batches of 8 and 32, with short and long passages and questions, and one passage twice.
DOCUMENTS = [
    *(Document(f"{n}", f"Title {n}", f"The crisis of {1900 + n} began in October ." * (1 + n % 5)) for n in range(44)),
    Document("twice", "Title 1", "The crisis of 1901 began in October ." * 2),
]
QUESTIONS = [
    "when did the crisis begin?" if n % 3 else f"in which year of the century began crisis {n} " * 3 for n in range(45)
]


@pytest.fixture(scope="module")
def reranker(tiny_models: Path) -> Iterator[Reranker]:
    scorer = QuestionScorer.from_pretrained(tiny_models / "scorer", max_length=115, max_question_length=48)
    optimised = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)  # compiles several times as fast
    with ThreadPoolExecutor(1) as threads:
        reranker = Reranker(scorer, Settings(), threads)
        reranker.compile()
        yield reranker
        reranker.batcher.close()
    jax.config.update("jax_disable_most_optimizations", optimised)


@pytest.mark.parametrize("count", [1, 9, 16, 17, 45])
def test_no_request_compiles_a_t5s_program(reranker: Reranker, count: int) -> None:
    scorer = reranker.scorer
    assert isinstance(scorer, QuestionScorer)
    programs = question_scorer._score_shared._cache_size()
    assert programs >= len(scorer.few_shapes().every()) >= 8
    scores, _ = asyncio.run(reranker.score(QUESTIONS[:count], DOCUMENTS[:count]))
    assert question_scorer._score_shared._cache_size() == programs
    passages = [{"title": document.title, "text": document.text} for document in DOCUMENTS[:count]]
    # Other shapes add up in another order: some roundings of log-probabilities of about 6.
    np.testing.assert_allclose(scores, scorer.score(QUESTIONS[:count], passages), atol=1e-5, rtol=0)
    assert count == 1 or scores.std() > 0.01


def test_the_shapes_of_a_t5_hold_every_pair() -> None:
    """With the default lengths: 28 programs, and no passage is padded by more than half from 64 tokens on."""
    shapes = question_scorer.T5Shapes.of(490, 128)
    assert shapes.passages == (64, 96, 128, 192, 256, 384, 490) and shapes.questions == (32, 128)
    assert len(shapes.every()) == 28
    for tokens in range(1, 491):
        assert tokens <= shapes.passage(tokens) <= max(64, 1.5 * tokens)
    for pairs in range(100):
        batches = list(shapes.batches(range(pairs)))
        assert [pair for batch, _ in batches for pair in batch] == list(range(pairs))
        assert all(len(batch) <= rows and rows in (8, 32) for batch, rows in batches)
    assert question_scorer.T5Shapes.of(20, 16).every() == [(8, 20, 16), (32, 20, 16)]
