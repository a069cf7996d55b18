"""An encoder of the user's own: trained on one and on four devices, resumed, saved, read again, and what is refused."""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_runs
from flax import nnx
from safetensors.numpy import load_file
from test_own_parts import SETTINGS, figures, weights
from tiny import DATA, contrastive_config, write_supervised

import jaxretr
from jaxretr.data.readers import read_corpus
from jaxretr.data.tokens import load_tokenizer
from jaxretr.models.backbones import own
from jaxretr.models.embed import DualEncoderConfig, init_params
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train


@dataclass(frozen=True)
class ConvolutionShape(jaxretr.EncoderShape):
    depth: int = 2


class Convolution(nnx.Module):
    """Each token's state with its neighbours', layer by layer."""

    def __init__(self, shape: ConvolutionShape, *, dtype: Any, rngs: nnx.Rngs):
        size = shape.hidden_size
        self.words = nnx.Embed(shape.vocab_size, size, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(3 * size, size, dtype=dtype, rngs=rngs) for _ in range(shape.depth)])
        self.rate = shape.hidden_dropout_prob

    def __call__(self, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None) -> jax.Array:
        own_tokens = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        x = self.words(tokens)
        if keys is not None:
            kept = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - self.rate, x.shape[1:]))(keys)
            x = jnp.where(kept, x / (1 - self.rate), 0.0)
        for layer in self.layers:
            x = jnp.where(own_tokens, x, 0.0)
            around = jnp.concatenate([jnp.roll(x, 1, axis=1), x, jnp.roll(x, -1, axis=1)], axis=-1)
            x = x + jax.nn.gelu(layer(around))
        return x


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(own, "SHAPES", {})
    monkeypatch.setattr(own, "MODULES", {})
    jaxretr.register_encoder("convolution", ConvolutionShape, Convolution)
    yield


def fresh(tiny_models: Path, seed: int = 0, **settings: Any) -> jaxretr.DualEncoder:
    tokenizer = load_tokenizer(tiny_models / "encoder")
    shape = ConvolutionShape(vocab_size=len(tokenizer), hidden_size=16, max_position_embeddings=64)
    config = DualEncoderConfig(
        shape, shared=True, pooling="mean", max_question_length=16, max_passage_length=32, **settings
    )
    return jaxretr.DualEncoder(config, init_params(config, seed), tokenizer)


@pytest.fixture
def config(tiny_models: Path, tmp_path: Path) -> Any:
    fresh(tiny_models).save(tmp_path / "start")
    data = write_supervised(tmp_path / "data")
    encoder = {"path": str(tmp_path / "start"), "pooling": None, "dropout": 0.1, "fresh": None, "shared": True}
    return contrastive_config(
        tiny_models, data={**data, "dev": data["train"], "dev_questions": None}, train=SETTINGS, encoder=encoder
    )


def test_it_trains_on_any_number_of_devices_resumes_and_is_read_again(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config, tmp_path / "all")
    start, trained = load_file(tmp_path / "start/model.safetensors"), weights(tmp_path / "all")
    assert all(np.abs(array - start[name]).max() > 1e-5 for name, array in trained.items())
    assert "shared.bert.own.layers.1.kernel" in trained

    def stop(step: int, _: Any) -> None:
        if step == 2:
            raise small_runs.Killed

    with pytest.raises(small_runs.Killed):
        train(config, tmp_path / "stopped", on_step=stop)
    with monkeypatch.context() as patch:
        patch.setattr("jaxretr.training.loop.make_mesh", lambda model: make_mesh(jax.devices()[:1]))
        train(config, tmp_path / "stopped")
    assert figures(tmp_path / "stopped") == pytest.approx(figures(tmp_path / "all"), rel=1e-4)
    for name, array in weights(tmp_path / "stopped").items():
        np.testing.assert_allclose(array, trained[name], atol=1e-5, err_msg=name)

    model = jaxretr.load_encoder(whole.model)
    vectors = model.encode_passages(list(read_corpus(DATA / "corpus.jsonl")))
    assert isinstance(model.config.backbone, ConvolutionShape) and vectors.shape == (20, 16)
    store = jaxretr.encode(model, corpus=DATA / "corpus.jsonl", out=tmp_path / "store")
    assert store.meta.rows == 20
    jaxretr.export(model, to="jaxretr", out=tmp_path / "exported")
    assert "| encoder | convolution, 0 layers of 16" in (tmp_path / "exported/README.md").read_text()
    with pytest.raises(UserError, match="convolution: no other library has this encoder"):
        jaxretr.export(model, to="sentence-transformers", out=tmp_path / "never")
    with pytest.raises(UserError, match="an encoder of your own is not written as ONNX; export --to stablehlo"):
        jaxretr.export(model, to="onnx", out=tmp_path / "never")

    # Another source under the same name does not go on; and without the name the folder says what to do.
    class Changed(Convolution):
        def __call__(self, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None) -> jax.Array:
            return 2 * super().__call__(tokens, lengths, keys)

    with pytest.raises(UsageError, match="ConvolutionShape has another module already; define the shape again"):
        jaxretr.register_encoder("convolution", ConvolutionShape, Changed)
    own.MODULES[ConvolutionShape] = Changed
    with pytest.raises(UserError, match=r"other own encoder than there are now \(encoder.path="):
        train(config, tmp_path / "stopped")
    digest = own.source_of(model.config.backbone)
    own.MODULES[ConvolutionShape] = type("Child", (Changed,), {})
    assert own.source_of(model.config.backbone) != {"own encoder": ""} and digest != own.source_of(
        model.config.backbone
    )
    digests = set[str]()
    for module in (
        functools.partial(Convolution),
        functools.partial(Convolution, depth=3),
        lambda *given, **named: Convolution(*given, **named),
    ):
        own.MODULES[ConvolutionShape] = module
        digests.add(own.source_of(model.config.backbone)["own encoder"])
    assert len(digests) == 3, "given arguments and functions count"
    own.MODULES[ConvolutionShape] = Convolution
    monkeypatch.setattr(own, "SHAPES", {})
    with pytest.raises(UserError, match=r"the encoder 'convolution' is not known here; call jaxretr.register_encoder"):
        jaxretr.load_encoder(whole.model)
    # An installed package registers it where a folder names it.
    register = SimpleNamespace(load=lambda: jaxretr.register_encoder("convolution", ConvolutionShape, Convolution))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group, name: [register] * (name == "convolution"))
    read = jaxretr.load_encoder(whole.model)
    np.testing.assert_array_equal(read.encode_queries(["Mars"]), model.encode_queries(["Mars"]))


def test_texts_have_the_same_vectors_alone_and_among_others(tiny_models: Path) -> None:
    model = fresh(tiny_models, normalise=True)
    texts = ["Mars", "which planet is the fourth from the sun", "Who?"]
    together = model.encode_queries(texts)
    np.testing.assert_allclose(together, np.concatenate([model.encode_queries([text]) for text in texts]), atol=1e-6)


def test_what_cannot_be_an_encoder_is_refused(tiny_models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the name 'bert' is taken"):
        jaxretr.register_encoder("bert", ConvolutionShape, Convolution)
    for shape in (int, ConvolutionShape(vocab_size=9, hidden_size=3)):
        with pytest.raises(UsageError, match="is no shape; give a frozen dataclass"):
            jaxretr.register_encoder("other", shape, Convolution)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="ConvolutionShape: hidden_size is 0; it must be at least 1"):
        ConvolutionShape(vocab_size=9, hidden_size=0)
    with pytest.raises(UsageError, match="JAXRETR_ENGINE=packed: an encoder of one's own reads padded rows"):
        monkeypatch.setenv("JAXRETR_ENGINE", "packed")
        fresh(tiny_models).encode_queries(["a"])
    monkeypatch.delenv("JAXRETR_ENGINE")

    class Wide(Convolution):
        def __call__(self, tokens: jax.Array, lengths: jax.Array, keys: jax.Array | None) -> jax.Array:
            return super().__call__(tokens, lengths, keys)[:, :, :3]

    @dataclass(frozen=True)
    class WideShape(ConvolutionShape):
        pass

    model = fresh(tiny_models)
    shape = WideShape(vocab_size=model.config.backbone.vocab_size, hidden_size=16, max_position_embeddings=64)
    with pytest.raises(UsageError, match="WideShape: is not registered; call"):
        init_params(dataclasses.replace(model.config, backbone=shape), 0)
    jaxretr.register_encoder("wide", WideShape, Wide)
    wide = jaxretr.DualEncoder(dataclasses.replace(model.config, backbone=shape), model.params, model.tokenizer)
    with pytest.raises(UsageError, match=r"returned states of shape .* return \[B, L, hidden_size\]"):
        wide.encode_queries(["a"])

    class Dropping(Convolution):
        def __init__(self, shape: ConvolutionShape, *, dtype: Any, rngs: nnx.Rngs):
            super().__init__(shape, dtype=dtype, rngs=rngs)
            self.drop = nnx.Dropout(0.1, rngs=rngs)

    own.MODULES[WideShape] = Dropping
    with pytest.raises(UsageError, match=r"wide: holds variables that are no parameters .* draw dropout from `keys`"):
        init_params(dataclasses.replace(model.config, backbone=shape), 0)
