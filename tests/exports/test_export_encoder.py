"""ONNX and StableHLO: the exported towers give our vectors, by the code of their README, without this package."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from export_checks import assert_each_byte_counts
from test_export import PASSAGES, QUESTIONS, as_text, make
from tiny import BERT, DECODER

from jaxretr import cli
from jaxretr.config import AdapterShape
from jaxretr.data.tokens import load_tokenizer
from jaxretr.exports import onnx_encoder, stablehlo
from jaxretr.exports.encoder_folders import QUESTION
from jaxretr.exports.exporting import verify
from jaxretr.models.backbones.adapter_layers import init_adapter
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.onnx import program
from jaxretr.runtime.errors import UserError

# Roundings of float32 in another order, as a share of a vector's length: what verify allows.
TOLERANCE = 1e-5

BOTH_DIRECTIONS = dataclasses.replace(
    DECODER, architecture="modernbert", fused=True, num_key_value_heads=4, head_dim=4, qk_norm=False, norm="layer",
    first_norm=False, embedding_norm=True, hidden_act="gelu", causal=False,
)  # fmt: skip

# Every setting with every value, in few models.
MODELS: dict[str, dict[str, Any]] = {
    "two towers, cls": {},
    "mean, of length 1": {"shared": True, "pooling": "mean", "normalise": True, "passage_template": "joined"},
    "pre-LN, cut": {"backbone": dataclasses.replace(BERT, pre_layer_norm=True), "truncate_dim": 6, "normalise": True},
    "projection, cut, relu": {
        "backbone": dataclasses.replace(BERT, hidden_act="relu"),
        "projection_size": 12,
        "truncate_dim": 6,
    },
    "projection, mean, gelu_new": {
        "backbone": dataclasses.replace(BERT, hidden_act="gelu_new", layer_norm_eps=1e-5),
        "projection_size": 12,
        "pooling": "mean",
    },
    "decoder, last token": {"backbone": DECODER, "shared": True, "pooling": "lasttoken", "normalise": True},
    "rotary, both directions": {"backbone": BOTH_DIRECTIONS, "shared": True, "pooling": "mean"},
    "a bag of words": {"backbone": dataclasses.replace(BERT, num_hidden_layers=0), "pooling": "mean", "shared": True},
}


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Path) -> Any:
    return load_tokenizer(tiny_models / "encoder_tokenizer")


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape and found.dtype == np.float32
    assert (np.abs(found - expected) / np.linalg.norm(expected, axis=1, keepdims=True)).max() <= TOLERANCE


def by_readme(folder: Path, code_after: str = "", blocked: str = "jaxretr flax safetensors transformers torch") -> str:
    """What README's code prints in a process of its own that cannot import this package."""
    code = re.findall(r"```python\n(.*?)\n```", (folder / "README.md").read_text(), re.DOTALL)[0]
    block = f"import sys\nfor name in {blocked!r}.split(): sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{block}{code}\n{code_after}"],
        cwd=folder.parent,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HOME": str(folder.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_onnx(folder: Path, texts: list[str]) -> np.ndarray:
    from tokenizers import Tokenizer

    runtime = pytest.importorskip("onnxruntime", reason="it runs the export")
    rows = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(texts)
    session = runtime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs = {"input_ids": [row.ids for row in rows], "attention_mask": [row.attention_mask for row in rows]}
    return session.run(["embedding"], {name: np.array(values) for name, values in inputs.items()})[0]


@pytest.mark.parametrize("model", MODELS)
def test_onnxruntime_gives_our_vectors(tokenizer: Any, tmp_path: Path, model: str) -> None:
    pytest.importorskip("onnx", reason="it writes the export")
    encoder = make(tokenizer, **MODELS[model])
    said = onnx_encoder.export(encoder, tmp_path / "out", side="both")
    assert said.startswith("10 golden vectors of questions and passages, computed by onnxruntime, agree to ")
    questions = encoder.encode_queries(QUESTIONS)
    assert_close(run_onnx(tmp_path / "out/question", QUESTIONS), questions)
    # Any number of rows, and rows of any length.
    assert_close(run_onnx(tmp_path / "out/question", QUESTIONS[:1]), questions[:1])
    texts = [as_text(one, encoder.config.passage_template) for one in PASSAGES]
    assert_close(run_onnx(tmp_path / "out/passage", texts), encoder.encode_passages(PASSAGES))


def test_onnx_files_are_what_old_runtimes_read(tokenizer: Any, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="it reads the export")
    onnx_encoder.export(make(tokenizer), tmp_path / "out")
    model = onnx.load(str(tmp_path / "out/question/model.onnx"))
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)] and model.ir_version == 8
    shapes = {
        one.name: [axis.dim_param or axis.dim_value for axis in one.type.tensor_type.shape.dim]
        for one in (*model.graph.input, *model.graph.output)
    }
    free = ["batch", "length"]
    assert shapes == {"input_ids": free, "attention_mask": free, "embedding": ["batch", 16]}
    assert not (tmp_path / "out/passage").exists(), "the passage tower was not asked for"


@pytest.mark.parametrize("model", ["two towers, cls", "decoder, last token"])
def test_fastembed_reads_the_folder_as_it_is(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """By README's code; texts of many lengths are padded, and the longest are cut."""
    # Its metadata wants an older huggingface-hub than transformers needs, though it works with the newer one.
    install = "pip install --no-deps -r requirements-fastembed.txt"
    pytest.importorskip("fastembed", reason=f"it reads the export: {install}")
    encoder = make(tokenizer, **MODELS[model])
    name = model.split(",")[0].replace(" ", "-")  # fastembed remembers each name once a process.
    onnx_encoder.export(encoder, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)\n```", (tmp_path / name / "README.md").read_text(), re.DOTALL)[1], found)
    texts = ["who?", *QUESTIONS]
    assert_close(np.stack(list(found["model"].embed(texts))), encoder.encode_queries(texts))


def test_onnx_weights_apart(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a message of 2 GiB does not hold lies in a second file, which is hashed and read as well."""
    pytest.importorskip("onnx", reason="it writes the export")
    monkeypatch.setattr(program, "_INSIDE", 1000)
    encoder = make(tokenizer)
    onnx_encoder.export(encoder, tmp_path / "out")
    assert (tmp_path / "out/question/model.onnx.data").stat().st_size > 10_000
    assert (tmp_path / "out/question/model.onnx").stat().st_size < 30_000
    (tmp_path / "out").rename(tmp_path / "moved")
    assert_close(run_onnx(tmp_path / "moved/question", QUESTIONS), encoder.encode_queries(QUESTIONS))


@pytest.mark.parametrize("model", ["projection, cut, relu", "a bag of words"])
def test_stablehlo_in_a_fresh_process(tokenizer: Any, tmp_path: Path, model: str) -> None:
    pytest.importorskip("flatbuffers", reason="jax.export writes with it")
    encoder = make(tokenizer, **MODELS[model])
    stablehlo.export(encoder, tmp_path / "out", side="both")
    after = f"np.save('q.npy', encode([('out/question', 1.0)], {QUESTIONS!r})); np.save('example.npy', questions)\n"
    # A row longer than the encoder has positions is an error, not a wrong vector.
    after += (
        "_, call, params = load('out/question')\n"
        "try: call(params, np.ones((1, 65), np.int32), np.ones((1, 65), np.int32))\n"
        "except ValueError as error: print('refused:', error)\n"
    )
    printed = by_readme(tmp_path / "out", after)
    size = encoder.config.embedding_size
    assert printed.split("\n")[:2] == [f"(1, {size})", f"(1, {size})"] and "refused: " in printed
    assert_close(np.load(tmp_path / "q.npy"), encoder.encode_queries(QUESTIONS))
    assert_close(np.load(tmp_path / "example.npy"), encoder.encode_queries([QUESTION]))


@pytest.mark.parametrize(
    "model",
    [
        "mean, of length 1",
        "pre-LN, cut",
        "projection, mean, gelu_new",
        "decoder, last token",
        "rotary, both directions",
    ],
)
def test_stablehlo_gives_our_vectors(tokenizer: Any, tmp_path: Path, model: str) -> None:
    """`export` recomputes the golden vectors by the program that it wrote, for all three platforms at once."""
    pytest.importorskip("flatbuffers", reason="jax.export writes with it")
    said = stablehlo.export(make(tokenizer, **MODELS[model]), tmp_path / "out", side="passage")
    assert said.startswith("5 golden vectors of passages, computed by StableHLO, agree to ")
    program = jax.export.deserialize(bytearray((tmp_path / "out/passage/encoder.stablehlo").read_bytes()))
    assert program.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("how", ["concatenate", "sum"])
@pytest.mark.parametrize("module", [onnx_encoder, stablehlo])
def test_a_combined_model_has_its_parts_side_by_side(tokenizer: Any, tmp_path: Path, how: Any, module: Any) -> None:
    """Each part has its own tokenizer and maximum length; README's code weights and joins them."""
    pytest.importorskip("onnx", reason="one of the two writes with it")
    parts = [make(tokenizer, 1), make(tokenizer, 2, shared=True, max_question_length=24)]
    encoder = CombinedEncoder(parts, [1.0, 0.7], how)
    module.export(encoder, tmp_path / "out", side="both")
    # The second part's passages are those of any weights.
    assert "('out/part-1/passage', 1.0)".replace("'", '"') in (tmp_path / "out/README.md").read_text()
    blocked = "jaxretr flax safetensors transformers torch" + (" jax" if module is onnx_encoder else "")
    by_readme(tmp_path / "out", "np.save('q.npy', questions); np.save('p.npy', passages)", blocked)
    assert_close(np.load(tmp_path / "q.npy"), encoder.encode_queries([QUESTION]))
    passage = {"title": "The Magic Flute", "text": "An opera by Wolfgang Amadeus Mozart."}
    assert_close(np.load(tmp_path / "p.npy"), encoder.encode_passages([passage]))


def test_parts_that_write_passages_differently(tokenizer: Any, tmp_path: Path) -> None:
    parts = [make(tokenizer), make(tokenizer, passage_template="joined")]
    encoder = CombinedEncoder(parts, [1.0, 0.7])
    with pytest.raises(UserError, match="write a passage in different ways"):
        onnx_encoder.export(encoder, tmp_path / "out", side="passage")
    assert not list(tmp_path.iterdir())
    onnx_encoder.export(encoder, tmp_path / "out", side="question")


def test_adapters(tokenizer: Any, tmp_path: Path) -> None:
    """LoRA becomes part of ONNX's kernels; StableHLO computes parallel adapters too, for which ONNX has no place."""
    for shape in (AdapterShape(lora_rank=2, bottleneck=0), AdapterShape(lora_rank=2, bottleneck=3)):
        plain = make(tokenizer, shared=True)
        config = dataclasses.replace(plain.config, adapter=shape)
        rng = np.random.default_rng(3)
        adapter = jax.tree.map(
            lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32),  # noqa: B023
            init_adapter(shape, BERT, 0),
        )
        encoder = DualEncoder(config, {"shared": {**plain.params["shared"], "adapter": adapter}}, tokenizer)
        assert np.abs(encoder.encode_queries(QUESTIONS) - plain.encode_queries(QUESTIONS)).max() > 0.1
        name = str(shape.bottleneck)
        stablehlo.export(encoder, tmp_path / f"hlo{name}")  # raises where a golden vector differs
        if shape.bottleneck:
            with pytest.raises(UserError, match="a parallel adapter has no place"):
                onnx_encoder.export(encoder, tmp_path / f"onnx{name}")
        else:
            onnx_encoder.export(encoder, tmp_path / f"onnx{name}")
            assert_close(run_onnx(tmp_path / f"onnx{name}/question", QUESTIONS), encoder.encode_queries(QUESTIONS))


def test_the_commands_and_one_changed_byte(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tokenizer).save(tmp_path / "model")
    for to, library in (("onnx", "onnxruntime"), ("stablehlo", "StableHLO")):
        out = str(tmp_path / to)
        assert cli.main(["export", str(tmp_path / "model"), "--to", to, "--out", out]) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(f"{out}: 5 golden vectors of questions, computed by {library}, agree to ")
        assert " of disk (" in captured.err
        assert cli.main(["verify", out]) == 0
        assert capsys.readouterr().out.startswith(f"{out}: intact; 5 golden vectors of questions, computed by")
        assert cli.main(["verify", out, "--with", "transformers"]) == 2
        assert f"is an export --to {to}, which transformers does not read" in capsys.readouterr().err
        assert_each_byte_counts(tmp_path / to)
        assert cli.main(["export", str(tmp_path / "model"), "--to", to, "--out", out]) == 1
        assert "is not empty" in capsys.readouterr().err
    for to, module in (("onnx", "onnx"), ("stablehlo", "flatbuffers")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            assert cli.main(["export", str(tmp_path / "model"), "--to", to, "--out", str(tmp_path / "no")]) == 1
        assert "run: pip install 'jaxretr[export]'" in capsys.readouterr().err


def test_int8_is_measured_and_verified(
    tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx", reason="it writes the export")
    from jaxretr.runtime.storage import manifest

    encoder = make(tokenizer, shared=True, pooling="mean")
    encoder.save(tmp_path / "model")
    out = tmp_path / "out"
    command = ["export", str(tmp_path / "model"), "--to", "onnx", "--out", str(out), "--quantise", "int8"]
    assert cli.main([*command, "--least-cosine", "1"]) == 1 and not out.exists()
    assert "nothing was written: the cosine of its golden vectors to the model's is 0.9" in capsys.readouterr().err
    assert cli.main([*command[:-2], "--least-cosine", "0.9"]) == 2
    assert cli.main(command) == 0 and cli.main(["verify", str(out)]) == 0
    written, intact = capsys.readouterr().out.splitlines()
    assert "have a cosine to the float32 model's of 0.9" in written and written.split(": ")[1] in intact
    found, exact = run_onnx(out / "question", QUESTIONS), encoder.encode_queries(QUESTIONS)
    cosines = (found * exact).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(exact, axis=1)
    stated = manifest.read(out)
    assert 0.998 < stated.facts["cosine"]["least"] <= stated.facts["cosine"]["mean"] < 1 and cosines.min() > 0.998
    assert by_readme(out) == "(1, 16)\n"
    # 2 * 255 * 64 is less than 2 ** 15: no processor's 16-bit sums overflow.
    path = str(out / "question/model.onnx")
    model = onnx.load(path)
    kernels = [one for one in model.graph.initializer if one.data_type == onnx.TensorProto.INT8]
    assert len(kernels) == 12 and {np.abs(onnx.numpy_helper.to_array(one)).max() for one in kernels} == {64}
    # Whoever changes the program and its hash as well is found out.
    codes = onnx.numpy_helper.to_array(kernels[0])
    kernels[0].CopyFrom(onnx.numpy_helper.from_array(-codes, kernels[0].name))
    onnx.save_model(model, path)
    manifest.write(out, stated.kind, stated.facts)
    with pytest.raises(UserError, match=r"the cosine to the model's vectors is .*, and was 0\.9"):
        verify(out)


def test_vectors_that_are_not_the_models_are_found(tokenizer: Any, tmp_path: Path) -> None:
    """Whoever changes the program and its hash as well is found out by the vectors."""
    onnx = pytest.importorskip("onnx", reason="it changes the export")
    from jaxretr.runtime.storage import manifest

    onnx_encoder.export(make(tokenizer), tmp_path / "out")
    path = str(tmp_path / "out/question/model.onnx")
    model = onnx.load(path)
    bias = next(one for one in model.graph.initializer if one.name == "layer.1.ffn_in.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) + 0.01, bias.name))
    onnx.save_model(model, path)
    stated = manifest.read(tmp_path / "out")
    manifest.write(tmp_path / "out", stated.kind, stated.facts)
    with pytest.raises(UserError, match="computed by onnxruntime, the vectors of 5 of 5 questions differ"):
        verify(tmp_path / "out")
