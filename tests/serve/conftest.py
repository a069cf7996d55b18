"""A service over tiny models: an embedding store that is only read, and a small index that is written."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import make_service
from tiny import DATA

from jaxretr.embeddings.encoding import encode
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.service import Service


@pytest.fixture(scope="session")
def encoder(tiny_models: Path) -> DualEncoder:
    """Reads up to 16 tokens of a question and 32 of a passage, so that few programs are compiled."""
    folder = tiny_models / "served"
    model = DualEncoder.from_pretrained(
        tiny_models / "encoder", pooling="mean", shared=True, max_question_length=16, max_passage_length=32
    )
    model.save(folder)
    return DualEncoder.from_pretrained(folder)


@pytest.fixture(scope="session")
def combined(encoder: DualEncoder, tiny_models: Path) -> CombinedEncoder:
    """Two parts, as SPAR's: `dense` and `lexical`."""
    second = DualEncoder.from_pretrained(
        tiny_models / "encoder", pooling="cls", shared=True, max_question_length=16, max_passage_length=32
    )
    return CombinedEncoder([encoder, second], [1.0, 0.5], names=["dense", "lexical"])


@pytest.fixture(scope="session")
def store(encoder: DualEncoder, tiny_models: Path) -> Path:
    """The test passages, encoded."""
    encode(encoder, corpus=DATA, out=tiny_models / "store")
    return tiny_models / "store"


@pytest.fixture(scope="session")
def started(
    encoder: DualEncoder, store: Path, tiny_cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """One service for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXRETR_CACHE", str(tmp_path_factory.mktemp("cache")))
        service = make_service(encoder, store, reranker=load_scorer(tiny_cross_encoder))
    service.start()
    yield service
    service.close()
