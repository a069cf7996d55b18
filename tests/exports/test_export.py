"""Exports: other libraries compute our vectors from them, by the code of the model card, and nothing gets lost."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import BERT, DATA, DECODER, art_config

from jaxretr import cli
from jaxretr.config import to_json
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.exports.folder import export, verify
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, abstract_params, truncated
from jaxretr.runtime.errors import UsageError, UserError

# What verify allows: roundings of float32 in another order, as a share of a vector's length.
TOLERANCE = 1e-5

CONFIG = DualEncoderConfig(BERT, max_question_length=16, max_passage_length=48)
PASSAGES = [{"title": "", "text": "No title."}, *({"title": p.title, "text": p.text} for p in read_corpus(DATA))][:7]
SHORT = "who wrote it?"
QUESTIONS = [question.text for question in read_questions(DATA)][:5]


@pytest.fixture(scope="module")
def tokenizer(tiny_models: Path) -> Any:
    return load_tokenizer(tiny_models / "encoder_tokenizer")


def make(tokenizer: Any, seed: int = 1, **changes: Any) -> DualEncoder:
    """A random dual encoder, biases and scales drawn too."""
    config = dataclasses.replace(CONFIG, **changes)
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        return rng.normal(path[-1].key == "scale", 0.2, leaf.shape).astype(np.float32)

    return DualEncoder(config, jax.tree_util.tree_map_with_path(draw, abstract_params(config)), tokenizer)


def assert_close(found: Any, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    difference = np.abs(np.asarray(found) - expected) / np.linalg.norm(expected, axis=1, keepdims=True)
    assert difference.max() <= TOLERANCE


def as_text(passage: dict[str, str], template: str) -> str:
    return f"{passage['title']} {'[SEP] ' if template == 'pair' else ''}{passage['text']}"


# Every setting with every value, in few models: what is compiled is what costs.
MODELS: dict[str, dict[str, Any]] = {
    "two towers, cls": {},
    "one tower, mean, of length 1": {
        "shared": True,
        "pooling": "mean",
        "normalise": True,
        "passage_template": "joined",
        "max_question_length": 48,
    },
    "cut, cls": {"shared": True, "truncate_dim": 6, "normalise": True},
    "projection, cut": {"projection_size": 12, "truncate_dim": 6, "normalise": True},
    "projection, mean": {"projection_size": 12, "pooling": "mean"},
    "decoder, last token": {"backbone": DECODER, "shared": True, "pooling": "lasttoken", "max_question_length": 48},
}


# ---- other libraries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_sentence_transformers_gives_our_vectors(tokenizer: Any, tmp_path: Path, model: str) -> None:
    library = pytest.importorskip("sentence_transformers", reason="the library that reads the export")
    encoder = make(tokenizer, **MODELS[model])
    export(encoder, tmp_path / "out", "sentence-transformers")
    # Two towers are also models of their own, for servers that know no Router.
    assert (tmp_path / "out/question").exists() == (not encoder.config.shared)
    both = library.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    texts = [as_text(one, encoder.config.passage_template) for one in PASSAGES]
    passages = encoder.encode_passages(PASSAGES)
    assert both.get_embedding_dimension() == encoder.config.embedding_size
    assert_close(both.encode_query([SHORT]), encoder.encode_queries([SHORT]))
    assert_close(both.encode_document(texts), passages)
    if not encoder.config.shared:
        assert_close(both.encode_query(QUESTIONS), encoder.encode_queries(QUESTIONS))
        assert_close(both.encode(texts), passages)
        passage = library.SentenceTransformer(str(tmp_path / "out/passage"), device="cpu")
        assert_close(passage.encode(texts), passages)
    read = DualEncoder.from_pretrained(tmp_path / "out").config
    assert (read.max_question_length, read.max_passage_length, read.shared) == (
        *(encoder.config.max_question_length, encoder.config.max_passage_length, encoder.config.shared),
    )
    assert verify(tmp_path / "out", "sentence-transformers").readers == ("jaxretr", "sentence-transformers")


@pytest.mark.parametrize(
    ("model", "to", "layout"),
    [
        ("two towers, cls", "huggingface", "bert"),
        ("two towers, cls", "huggingface", "dpr"),
        ("one tower, mean, of length 1", "huggingface", "bert"),
        ("cut, cls", "huggingface", "bert"),
        ("projection, cut", "huggingface", None),
        ("projection, cut", "sentence-transformers", None),
        ("one tower, mean, of length 1", "sentence-transformers", None),
        ("projection, mean", "jaxretr", None),
        ("decoder, last token", "huggingface", None),
        ("decoder, last token", "sentence-transformers", None),
    ],
)
def test_the_cards_code_gives_our_vectors(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, to: Any, layout: Any
) -> None:
    pytest.importorskip("sentence_transformers", reason="the code of some cards")
    if model.startswith("decoder"):  # Their tokenizers pad on the left.
        tokenizer.save_pretrained(tmp_path / "tokenizer")
        settings = tmp_path / "tokenizer/tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"padding_side": "left"}))
        tokenizer = load_tokenizer(settings.parent)
    encoder = make(tokenizer, **MODELS[model])
    export(encoder, tmp_path / "tiny-export", to, layout=layout)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)\n```", (tmp_path / "tiny-export/README.md").read_text(), re.DOTALL)
    assert len(blocks) == (1 if to == "jaxretr" else 2)
    for block in blocks:
        names: dict[str, Any] = {}
        exec(block, names)
        assert_close(names["questions"], encoder.encode_queries(["who wrote The Magic Flute?"]))
        passage = {"title": "The Magic Flute", "text": "An opera by Wolfgang Amadeus Mozart."}
        assert_close(names["passages"], encoder.encode_passages([passage]))
        if "def encode" in block:  # With texts of many lengths, and so with padding.
            kind = names.get("DPRQuestionEncoder") or names["AutoModel"]
            folder = f"tiny-export{'/question' if '/question' in block else ''}"
            texts, length = ["who?", *QUESTIONS], encoder.config.max_question_length
            assert_close(names["encode"](kind, folder, texts, length), encoder.encode_queries(texts))
    if to == "huggingface":
        assert verify("tiny-export", "transformers").readers == ("jaxretr", "transformers")


@pytest.mark.parametrize("to", ["huggingface", "jaxretr"])
def test_a_card_takes_any_text(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Any) -> None:
    """Prompts have several lines, as Qwen3-Embedding's; a license may be no name of the hub."""
    pytest.importorskip("transformers", reason="the code of some cards")
    from huggingface_hub import ModelCard

    prompts = {"query_prompt": 'Instruct: a "web" \\question\nQuery: ', "passage_prompt": "`text`: "}
    encoder = make(tokenizer, shared=True, pooling="mean", **prompts)
    export(encoder, tmp_path / 'of "mine"', to, license='mine: #1, "all" rights\nreserved')
    monkeypatch.chdir(tmp_path)
    card = (tmp_path / 'of "mine"/README.md').read_text()
    assert ModelCard(card).data.to_dict()["license"] == 'mine: #1, "all" rights\nreserved'
    passage = {"title": "The Magic Flute", "text": "An opera by Wolfgang Amadeus Mozart."}
    for block in re.findall(r"```python\n(.*?)\n```", card, re.DOTALL):
        names: dict[str, Any] = {}
        exec(block, names)
        assert_close(names["questions"], encoder.encode_queries(["who wrote The Magic Flute?"]))
        assert_close(names["passages"], encoder.encode_passages([passage]))


def test_the_schema_is_the_one_that_other_servers_read(tokenizer: Any, tmp_path: Path) -> None:
    """text-embeddings-inference stops at a missing pooling_mode_* or max_seq_length; vLLM loads every .safetensors."""
    export(make(tokenizer, projection_size=12, normalise=True), tmp_path / "out", "sentence-transformers")
    folder = tmp_path / "out/passage"

    def content(name: str) -> Any:
        return json.loads((folder / name).read_text())

    assert [(module["path"], module["type"]) for module in content("modules.json")] == [
        ("", "sentence_transformers.models.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Dense", "sentence_transformers.models.Dense"),
        ("3_Normalize", "sentence_transformers.models.Normalize"),
    ]
    assert content("1_Pooling/config.json") == {
        "word_embedding_dimension": 16,
        "pooling_mode_cls_token": True,
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
        "pooling_mode_weightedmean_tokens": False,
        "pooling_mode_lasttoken": False,
        "include_prompt": True,
    }
    assert content("sentence_bert_config.json") == {"max_seq_length": 48, "do_lower_case": False}
    assert content("2_Dense/config.json")["activation_function"] == "torch.nn.modules.linear.Identity"
    settings = content("config_sentence_transformers.json")
    assert settings["prompts"] == {"query": "", "document": ""} and settings["default_prompt_name"] is None
    assert content("tokenizer_config.json")["model_max_length"] == 48
    assert content("tokenizer.json")["truncation"] is None
    assert [path.name for path in folder.glob("*.safetensors")] == ["model.safetensors"]


# ---- nothing gets lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["huggingface", "sentence-transformers", "jaxretr"])
@pytest.mark.parametrize("model", ["two towers, cls", "cut, cls", "projection, mean"])
def test_a_round_trip_loses_nothing(tokenizer: Any, tmp_path: Path, model: str, to: Any) -> None:
    encoder = make(tokenizer, **MODELS[model])
    if (model, to) == ("projection, mean", "huggingface"):
        with pytest.raises(UserError, match=r"DPR's encoders pool \[CLS\], but this model pools the mean"):
            export(encoder, tmp_path / "out", to)
        return
    export(encoder, tmp_path / "out", to)
    loaded = DualEncoder.from_pretrained(tmp_path / "out")
    assert loaded.config == encoder.config
    jax.tree.map(np.testing.assert_array_equal, loaded.params, encoder.params)
    assert model_fingerprint(loaded) == model_fingerprint(encoder)
    # And an export can be exported.
    export(loaded, tmp_path / "again", "jaxretr", source=tmp_path / "out")
    assert DualEncoder.from_pretrained(tmp_path / "again").config == encoder.config


def test_a_cut_projection_keeps_what_is_left(tokenizer: Any, tmp_path: Path) -> None:
    """Servers that know no truncate_dim must cut as well: so the cut is in the weights, and the rest is gone."""
    encoder = make(tokenizer, **MODELS["projection, cut"])
    export(encoder, tmp_path / "out", "sentence-transformers")
    loaded = DualEncoder.from_pretrained(tmp_path / "out")
    assert loaded.config == dataclasses.replace(encoder.config, projection_size=6, truncate_dim=None)
    for side in ("question", "passage"):
        kernel = encoder.params[side]["projection"]["kernel"]
        np.testing.assert_array_equal(loaded.params[side]["projection"]["kernel"], kernel[:, :6])


def test_prompts_are_kept(tokenizer: Any, tmp_path: Path) -> None:
    encoder = make(tokenizer, **MODELS["one tower, mean, of length 1"])
    export(encoder, tmp_path / "first", "sentence-transformers")
    path = tmp_path / "first/config_sentence_transformers.json"
    (tmp_path / "first/golden.json").unlink()  # As a folder of others has none.
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"prompts": {"query": "query: ", "document": "", "topic": "topic: "}})
    )
    source = tmp_path / "first"
    for number, to in enumerate(("jaxretr", "huggingface", "sentence-transformers")):
        export(DualEncoder.from_pretrained(source), tmp_path / str(number), to, source=source)
        source = tmp_path / str(number)
    content = json.loads((source / "config_sentence_transformers.json").read_text())
    assert content["prompts"] == {"query": "query: ", "document": "", "topic": "topic: "}
    assert 'further prompts (topic: `"topic: "`)' in (source / "README.md").read_text()
    assert content["default_prompt_name"] is None
    assert '**Every question begins with `"query: "`**' in (source / "README.md").read_text()
    assert DualEncoder.from_pretrained(source).config.query_prompt == "query: "


# ---- truncate_dim ----------------------------------------------------------------------------------------------------


def test_truncated_is_a_prefix_of_length_1() -> None:
    embeddings = np.array([[3, 4, 12], [0, 0, 1]], np.float32)
    np.testing.assert_array_equal(truncated(jnp.asarray(embeddings), 2, normalise=False), embeddings[:, :2])
    np.testing.assert_allclose(truncated(jnp.asarray(embeddings), 2, normalise=True), [[0.6, 0.8], [0, 0]], rtol=1e-6)
    gradient = jax.grad(lambda x: truncated(x, 2, normalise=True).sum())(jnp.asarray(embeddings))
    assert np.isfinite(gradient).all() and not gradient[:, 2].any()


def test_truncate_dim_when_loading(tokenizer: Any, tmp_path: Path) -> None:
    encoder = make(tokenizer, normalise=True)
    encoder.save(tmp_path / "model")
    cut = DualEncoder.from_pretrained(tmp_path / "model", truncate_dim=5)
    assert cut.config.embedding_size == 5
    whole = encoder.encode_queries(QUESTIONS)[:, :5]
    assert_close(cut.encode_queries(QUESTIONS), whole / np.linalg.norm(whole, axis=1, keepdims=True))
    assert model_fingerprint(cut) != model_fingerprint(encoder)
    # A store of the whole embeddings goes on being one.
    assert model_fingerprint(DualEncoder.from_pretrained(tmp_path / "model", truncate_dim=16)) == model_fingerprint(
        encoder
    )
    with pytest.raises(UserError, match="truncate_dim is 17, but the embeddings have 16 dimensions; give 1 to 16"):
        DualEncoder.from_pretrained(tmp_path / "model", truncate_dim=17)


def test_truncate_dim_of_a_sentence_transformers_folder(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export(make(tokenizer, **MODELS["one tower, mean, of length 1"]), tmp_path / "out", "sentence-transformers")
    path = tmp_path / "out/config_sentence_transformers.json"
    content = json.loads(path.read_text())

    def load(size: Any) -> DualEncoder:
        path.write_text(json.dumps(content | {"truncate_dim": size}))
        return DualEncoder.from_pretrained(tmp_path / "out")

    assert [load(size).config.truncate_dim for size in (None, 16, 99)] == [None, None, None]
    assert not caplog.text
    assert load(4).config.truncate_dim == 4
    assert "cut to 4 dimensions and then divided by their length" in caplog.text
    with pytest.raises(UserError, match="'truncate_dim' is 0; it must be a number of dimensions"):
        load(0)


def test_truncate_dim_of_the_commands(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tokenizer).save(tmp_path / "model")
    model, store = str(tmp_path / "model"), str(tmp_path / "store")
    corpus, queries = str(DATA / "corpus.jsonl"), str(DATA / "queries.jsonl")
    assert cli.main(["encode", model, "--corpus", corpus, "--out", store, "--truncate-dim", "8"]) == 0
    assert ", 8 dimensions, " in capsys.readouterr().out
    words = ["search", model, "--index", store, "--queries", queries, "--out", str(tmp_path / "run")]
    assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert (
        f"contains embeddings of 8 dimensions ({model}), but {model} gives 16; load the model with --truncate-dim 8"
        in error
    )
    assert cli.main([*words, "--truncate-dim", "8"]) == 0


# ---- the command, the card, and what is refused ----------------------------------------------------------------------


def test_the_card_tells_of_the_run(
    tokenizer: Any, tiny_models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    make(tokenizer).save(run / "model")
    (run / "config.json").write_text(json.dumps(to_json(art_config(tiny_models, optimizer={"learning_rate": 3e-4}))))
    (run / "best.json").write_text(json.dumps({"step": 4, "figures": {"acc@5": 0.4375, "mrr@10": 0.25}}))
    lines = [{"step": 2, "loss": 1.5, "examples_per_s": 9.0}, {"step": 6, "loss": 1.25, "examples_per_s": 9.0}]
    lines.append({"step": 6, "acc@5": 0.4})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--to", "huggingface", "--license", "apache-2.0"]
    for number, model in enumerate((run, run / "model")):
        assert cli.main(["export", str(model), "--out", str(tmp_path / f"out{number}"), *words]) == 0
        assert "16 dimensions, questions of 16 and passages of 48 tokens; 10 golden vectors" in capsys.readouterr().out
        card = (tmp_path / f"out{number}/README.md").read_text()
        assert card.startswith("---\nlibrary_name: transformers\n")
        assert '\nlicense: "apache-2.0"\n' in card
        assert f"- corpus: `{DATA}`" in card
        assert "On the dev set, at step 4 of 6, the best one:" in card
        assert "| acc@5 | 0.4375 |\n| mrr@10 | 0.2500 |" in card
        assert "The training loss at step 6 was 1.2500." in card
        assert '"learning_rate": 0.0003' in card
        assert "**Passages are written as `title [SEP] text`**" in card
    export(make(tokenizer), tmp_path / "plain", "jaxretr")
    card = (tmp_path / "plain/README.md").read_text()
    assert '\nlicense: "unknown"\n' in card and "## Training" not in card


@pytest.mark.parametrize(
    ("changes", "words", "kind", "message"),
    [
        ({"projection_size": 6}, {"to": "huggingface", "layout": "bert"}, UserError, "BertModel has no projection"),
        ({"pooling": "mean"}, {"to": "huggingface", "layout": "dpr"}, UserError, "this model pools the mean; use to="),
        (
            {"backbone": dataclasses.replace(BERT, pre_layer_norm=True)},
            {"to": "huggingface", "layout": "dpr"},
            UserError,
            "this model is Megatron-BERT; use layout=bert",
        ),
        ({}, {"to": "sentence-transformers", "layout": "bert"}, UsageError, "layout=bert is for to=huggingface"),
    ],
)
def test_a_layout_that_cannot_hold_the_model_is_refused(
    tokenizer: Any, tmp_path: Path, changes: Any, words: Any, kind: Any, message: str
) -> None:
    with pytest.raises(kind, match=message):
        export(make(tokenizer, **changes), tmp_path / "out", **words)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_free_is_left_alone(tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"is not empty \(thesis.tex\); give a new folder"):
        export(make(tokenizer), tmp_path / "out", "jaxretr")
    with pytest.raises(UserError, match="is a file"):
        export(make(tokenizer), tmp_path / "out/thesis.tex", "jaxretr")
    assert (tmp_path / "out/thesis.tex").read_text() == "years of work"


def test_a_tokenizer_that_others_would_read_differently_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    """Without its post-processor the tokenizer gives other libraries rows without [CLS] and [SEP]."""
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    path = tmp_path / "tokenizer/tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"post_processor": None}))
    with pytest.raises(UserError, match=r"into other ids when other libraries call it"):
        export(make(load_tokenizer(tmp_path / "tokenizer")), tmp_path / "out", "sentence-transformers")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tokenizer"], "a half-written folder was left behind"
