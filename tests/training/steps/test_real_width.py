"""Gradients of models as wide as people train (384 x 1536): right, the same in every call, on a loaded machine.

Tiny models hide faults of the compiler that depend on the width. Chunks of 4 texts make several passes over each step.
"""

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import Mesh

from jaxretr.config import AdapterShape, Config, Joint, MlmConfig, PretrainData, Train
from jaxretr.models.embed import DualEncoderConfig
from jaxretr.models.hub import encoder_params
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import build
from jaxretr.training.steps.chunks import embed_in_chunks
from jaxretr.training.steps.encoding import row_encoder
from jaxretr.training.steps.packed_chunks import PackedChunks, PackedForm
from jaxretr.training.steps.padded_chunks import PaddedChunks

WIDE = dataclasses.replace(tiny.BERT, hidden_size=384, num_attention_heads=12, intermediate_size=1536)
T5_SMALL = dataclasses.replace(tiny.T5, d_model=512, d_kv=64, d_ff=1024, num_heads=6)
CALLS = 10

SUPERVISED: dict[str, dict[str, dict[str, Any]]] = {
    "retrieved negatives": {"negatives": {"retrieved": 1, "last_rank": 8}},
    "corpus-wide softmax": {"contrastive": {"chunk": 4, "corpus_softmax": True}},
    "adapters": {"encoder": {"adapter": AdapterShape(4, 4.0, ("query", "value"), 8, 4.0)}},
    "typos": {"typos": {"contrast_weight": 1.0, "passage_weight": 1.0}},
}
OBJECTIVES = [*SUPERVISED, "joint", "ART", "masked language modelling"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wide encoder, a narrow lexical one that reads the same tokens, and a scorer of T5-small's width."""
    folder = tmp_path_factory.mktemp("wide")
    tiny.write_models(folder, bert=WIDE, t5=T5_SMALL)
    return folder


def config(objective: str, folder: Path) -> Config:
    if objective == "ART":
        return tiny.art_config(folder)
    if objective == "masked language modelling":
        data = PretrainData(corpora=(str(tiny.DATA),), max_length=32, held_out=0)
        return MlmConfig(name="wide", start=str(folder / "encoder"), data=data, chunk=4, train=Train(batch_size=8))
    plain = tiny.contrastive_config(folder, **SUPERVISED.get(objective, {}))
    return dataclasses.replace(plain, joint=Joint(str(folder / "encoder"))) if objective == "joint" else plain


@contextlib.contextmanager
def loaded() -> Iterator[None]:
    """Another process keeps a core busy meanwhile."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def repeated(objective: str, models: Path, mesh: Mesh, workdir: Path) -> None:
    with tiny.few_padding_rows():
        run = build(config(objective, models), mesh, workdir)
    batch, start = run.batch(0), run.init()
    host, shardings = jax.device_get(start), jax.tree.map(lambda x: x.sharding, start)
    first: Any = None
    for _ in range(CALLS):
        state, metrics = run.step(jax.device_put(host, shardings), 0, batch)
        found = jax.device_get((state, metrics))
        first = first or found
        jax.tree.map(np.testing.assert_array_equal, found, first)
    assert float(first[1]["gradient_norm"]) > 0


def test_a_step_gives_the_same_bits_in_every_call_on_a_loaded_machine(
    models: Path, mesh1: Mesh, tmp_path: Path
) -> None:
    with loaded():
        repeated(OBJECTIVES[0], models, mesh1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES[1:])
def test_so_does_a_step_of_every_other_objective(objective: str, models: Path, mesh1: Mesh, tmp_path: Path) -> None:
    with loaded():
        repeated(objective, models, mesh1, tmp_path)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_several_devices_of_a_cpu_are_refused_for_every_objective(objective: str, models: Path, tmp_path: Path) -> None:
    """XLA's gradients are wrong there: benchmarks/cpu_devices_gradients.py."""
    with pytest.raises(UsageError, match=r"wrong gradients for layers as wide .* unset JAX_NUM_CPU_DEVICES"):
        build(config(objective, models), make_mesh(jax.devices()[:2]), tmp_path)


@pytest.mark.parametrize(
    ("keep", "packed"), [(False, False), (True, False), (False, True)], ids=["recompute", "keep", "packed"]
)
def test_gradients_of_chunks_equal_those_of_pytorch(models: Path, keep: bool, packed: bool) -> None:
    """Lengths from 1 to the full width. Tolerance: float32 sums over some 200 tokens in another order."""
    torch = pytest.importorskip("torch", reason="parity is measured against PyTorch: pip install torch")
    transformers = pytest.importorskip("transformers", reason="parity is measured against transformers")
    rng = np.random.default_rng(5)
    lengths = np.array([48, 1, 17, 33, 5, 48, 20, 9, 30, 2, 12, 40], np.int32)
    tokens = np.where(np.arange(48) < lengths[:, None], rng.integers(1, WIDE.vocab_size, (12, 48)), 0)
    weights = rng.standard_normal((12, 384)).astype(np.float32)
    bert = encoder_params.read_checkpoint(models / "encoder").params
    encoder = DualEncoderConfig(WIDE, shared=True, pooling="mean", normalise=True)
    words = ("bert", "word_embedding", "table") if keep else None

    @jax.jit
    def gradient(params: Any) -> Any:
        def total(params: Any) -> jax.Array:
            rows = {"tokens": jnp.asarray(tokens), "lengths": jnp.asarray(lengths), "keys": None}
            chunks: Any = PaddedChunks.of(**rows, chunk=4)
            if packed:
                chunks = PackedChunks.of(**rows, form=PackedForm.of(12, 48, 96, 192), together=False)
            embeddings = embed_in_chunks(row_encoder(encoder, "float32"), params, chunks, keep=keep, words=words)
            return (embeddings * weights).sum()

        return jax.grad(total)(params)

    ours = jax.device_get(gradient({"bert": bert}))["bert"]
    model = transformers.BertModel.from_pretrained(models / "encoder", add_pooling_layer=False).eval()
    mask = torch.tensor(np.arange(48) < lengths[:, None])
    states = model(input_ids=torch.tensor(tokens), attention_mask=mask.long()).last_hidden_state
    pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    (torch.nn.functional.normalize(pooled) * torch.tensor(weights)).sum().backward()
    theirs = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    named: dict[str, Callable[[int], np.ndarray]] = {
        "attention.self.query.weight": lambda i: ours["layers"]["query"]["kernel"][i].T,
        "attention.output.dense.weight": lambda i: ours["layers"]["attention_out"]["kernel"][i].T,
        "intermediate.dense.weight": lambda i: ours["layers"]["ffn_in"]["kernel"][i].T,
        "output.dense.weight": lambda i: ours["layers"]["ffn_out"]["kernel"][i].T,
        "output.dense.bias": lambda i: ours["layers"]["ffn_out"]["bias"][i],
        "output.LayerNorm.weight": lambda i: ours["layers"]["ffn_norm"]["scale"][i],
    }
    pairs = [
        (ours["word_embedding"]["table"], theirs["embeddings.word_embeddings.weight"]),
        (ours["position_embedding"]["table"], theirs["embeddings.position_embeddings.weight"]),
        *((of(i), theirs[f"encoder.layer.{i}.{name}"]) for i in range(2) for name, of in named.items()),
    ]
    for found, expected in pairs:
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
