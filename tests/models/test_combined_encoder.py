"""A combined encoder scores as the weighted sum of its parts, its weights are the questions' alone, and it is a MODEL."""

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny import BERT, DATA, write_tokenizer

import jaxretr
from jaxretr.data.readers import read_corpus, read_questions
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.exports.folder import export
from jaxretr.exports.verify_model import verify
from jaxretr.models.combined_encoder import CombinedEncoder, load_encoder
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.embed import DualEncoderConfig, abstract_params
from jaxretr.runtime.errors import UserError

PASSAGES = [{"title": p.title, "text": p.text} for p in read_corpus(DATA)][:7]
QUESTIONS = [question.text for question in read_questions(DATA)][:5]


def make(tokenizer: Any, seed: int, **changes: Any) -> DualEncoder:
    config = DualEncoderConfig(BERT, **{"max_question_length": 16, "max_passage_length": 48, **changes})
    rng = np.random.default_rng(seed)

    def draw(path: Any, leaf: Any) -> np.ndarray:
        return rng.normal(path[-1].key == "scale", 0.2, leaf.shape).astype(np.float32)

    return DualEncoder(config, jax.tree_util.tree_map_with_path(draw, abstract_params(config)), tokenizer)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[DualEncoder]:
    """Two dual encoders that differ in all they may: size, tokenizer, towers, pooling, lengths, length of the vectors."""
    folder = tmp_path_factory.mktemp("tokenizers")
    texts = [f"{passage['title']} {passage['text']}" for passage in PASSAGES]
    write_tokenizer("bert", texts, folder / "one")
    write_tokenizer("bert", texts, folder / "other", size=300)
    return [
        make(load_tokenizer(folder / "one"), 1),
        make(
            load_tokenizer(folder / "other"),
            2,
            projection_size=12,
            shared=True,
            pooling="mean",
            normalise=True,
            max_question_length=12,
            max_passage_length=60,
        ),
    ]


def double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def test_concatenated_scores_are_the_weighted_sum_of_the_parts_scores(parts: list[DualEncoder]) -> None:
    encoder = CombinedEncoder(parts, [1, 0.7])
    assert encoder.config.embedding_size == 16 + 12
    questions, passages = encoder.encode_queries(QUESTIONS), encoder.encode_passages(PASSAGES)
    assert questions.dtype == passages.dtype == np.float32
    scores = [double(part.encode_queries(QUESTIONS)) @ double(part.encode_passages(PASSAGES)).T for part in parts]
    expected = scores[0] + 0.7 * scores[1]
    # One rounding of each product of a weight and a number.
    np.testing.assert_allclose(
        double(questions) @ double(passages).T, expected, rtol=0, atol=1e-6 * np.abs(expected).max()
    )
    # The weighted part is not lost in the other one's scores.
    assert np.abs(expected - scores[0]).max() > 1e-3 * np.abs(expected).max()


def test_summed_vectors(parts: list[DualEncoder]) -> None:
    both = [parts[0], make(parts[0].tokenizer, 3)]
    encoder = CombinedEncoder(both, [1, 2.5], "sum")
    (q1, q2), (p1, p2) = (
        [double(getattr(part, f"encode_{side}")(texts)) for part in both]
        for side, texts in (("queries", QUESTIONS), ("passages", PASSAGES))
    )
    assert encoder.config.embedding_size == 16
    np.testing.assert_allclose(encoder.encode_queries(QUESTIONS), q1 + 2.5 * q2, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_passages(PASSAGES), p1 + p2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["concatenate", "sum"])
def test_weights_are_the_questions_alone(parts: list[DualEncoder], how: Any) -> None:
    both = parts if how == "concatenate" else [parts[0], make(parts[0].tokenizer, 3)]
    light, heavy = (CombinedEncoder(both, [1, weight], how) for weight in (0.1, 10))
    np.testing.assert_array_equal(light.encode_passages(PASSAGES), heavy.encode_passages(PASSAGES))
    assert not np.allclose(light.encode_queries(QUESTIONS), heavy.encode_queries(QUESTIONS))
    assert model_fingerprint(light) == model_fingerprint(heavy)
    assert model_fingerprint(light, "question") != model_fingerprint(heavy, "question")


def test_fingerprint_knows_parts_order_and_how(parts: list[DualEncoder]) -> None:
    other = make(parts[0].tokenizer, 3)
    found = [
        model_fingerprint(CombinedEncoder([parts[0], other], [1, 1])),
        model_fingerprint(CombinedEncoder([other, parts[0]], [1, 1])),
        model_fingerprint(CombinedEncoder([parts[0], other], [1, 1], "sum")),
        model_fingerprint(CombinedEncoder([parts[0], parts[0]], [1, 1])),
    ]
    assert len(set(found)) == 4


def test_other_weights_share_the_parts_and_the_old_ones_stay(parts: list[DualEncoder]) -> None:
    encoder = CombinedEncoder(parts, [1, 0.5], names=["base", "lexical"])
    other = encoder.with_weights([1, 0])
    assert other.parts == encoder.parts and other.names == ("base", "lexical")
    assert encoder.config.weights == (1, 0.5)
    np.testing.assert_array_equal(other.encode_queries(QUESTIONS)[:, 16:], 0)
    np.testing.assert_array_equal(other.encode_queries(QUESTIONS)[:, :16], parts[0].encode_queries(QUESTIONS))


def test_three_parts_and_texts_that_can_be_read_once(parts: list[DualEncoder]) -> None:
    encoder = CombinedEncoder([*parts, parts[0]], [1, 2, 3])
    found = encoder.encode_queries(iter(QUESTIONS))  # pyright: ignore[reportArgumentType]
    np.testing.assert_allclose(found[:, 28:], 3 * found[:, :16], rtol=1e-6)


def test_cut_texts_are_counted_in_the_part_that_cuts_most(parts: list[DualEncoder]) -> None:
    encoder = CombinedEncoder(parts, [1, 1])
    encoder.encode_queries(["a", "b " * 20, "c " * 11])  # 12 tokens with [CLS] and [SEP] in one part, 16 in the other
    assert encoder.truncated == 2
    assert encoder.config.max_question_length == 12 and encoder.config.max_passage_length == 48
    encoder.encode_queries(["a"])
    assert encoder.truncated == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"how": "concat"}, "how='concat': no such combination; did you mean 'concatenate'?"),
        ({"weights": [1]}, "1 weights for 2 parts; give one for each"),
        ({"weights": [1, -1]}, "must be finite numbers from 0"),
        ({"weights": [1, float("nan")]}, "must be finite numbers from 0"),
        ({"weights": [1, "2"]}, "must be finite numbers from 0"),
        ({"weights": [0, 0]}, "not all 0"),
        ({"how": "sum"}, "embeddings of 16 and 12 dimensions cannot be added; use 'concatenate'"),
        ({"names": ["one"]}, "1 names for 2 parts"),
    ],
)
def test_what_does_not_fit_is_refused(parts: list[DualEncoder], change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        CombinedEncoder(**{"parts": parts, "weights": [1, 1], **change})


def test_one_part_or_a_combined_part_is_refused(parts: list[DualEncoder]) -> None:
    with pytest.raises(UserError, match="at least two parts, not 1"):
        CombinedEncoder(parts[:1], [1])
    combined: Any = CombinedEncoder(parts, [1, 1])
    with pytest.raises(UserError, match=r"CombinedEncoder.* not a DualEncoder"):
        CombinedEncoder([parts[0], combined], [1, 1])


# ---- the folder ------------------------------------------------------------------------------------------------------


def test_a_saved_model_comes_back_by_every_loader(parts: list[DualEncoder], tmp_path: Path) -> None:
    encoder = CombinedEncoder(parts, [1, 0.3], names=["runs/dpr", "runs/lexical"])
    encoder.save(tmp_path / "run/model")
    content = json.loads((tmp_path / "run/model/jaxretr.json").read_text())
    assert content == {
        "format": "jaxretr-combined",
        "version": 1,
        "how": "concatenate",
        "weights": [1.0, 0.3],
        "parts": ["part-0", "part-1"],
        "names": ["runs/dpr", "runs/lexical"],
    }
    for load in (jaxretr.CombinedEncoder.from_pretrained, jaxretr.load_encoder):
        for place in ("run", "run/model"):
            loaded = load(tmp_path / place)
            assert isinstance(loaded, CombinedEncoder)
            assert loaded.config == encoder.config and loaded.names == encoder.names
    np.testing.assert_array_equal(loaded.encode_queries(QUESTIONS), encoder.encode_queries(QUESTIONS))
    np.testing.assert_array_equal(loaded.encode_passages(PASSAGES), encoder.encode_passages(PASSAGES))
    assert load_encoder(tmp_path / "run", dtype="bfloat16").parts[1].dtype == "bfloat16"  # pyright: ignore
    part = load_encoder(tmp_path / "run/model/part-1", truncate_dim=5)
    assert isinstance(part, DualEncoder) and part.config.embedding_size == 5
    # Saved over itself, and over an older one.
    loaded.with_weights([1, 4]).save(tmp_path / "run/model")
    assert CombinedEncoder.from_pretrained(tmp_path / "run").config.weights == (1, 4)
    assert not list((tmp_path / "run").glob(".*"))


def test_the_other_loader_is_named(parts: list[DualEncoder], tmp_path: Path) -> None:
    CombinedEncoder(parts, [1, 1]).save(tmp_path / "two")
    parts[0].save(tmp_path / "one")
    with pytest.raises(UserError, match=r"CombinedEncoder\.from_pretrained"):
        DualEncoder.from_pretrained(tmp_path / "two")
    with pytest.raises(UserError, match=r" not .*; load it with DualEncoder\.from_pretrained"):
        CombinedEncoder.from_pretrained(tmp_path / "one")
    with pytest.raises(UserError, match=r"combined model is not cut"):
        load_encoder(tmp_path / "two", truncate_dim=3)
    with pytest.raises(UserError, match=r"leave pooling out"):
        load_encoder(tmp_path / "two", pooling="cls")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "is of version 2, not 1"),
        ({"weights": [1]}, r"jaxretr\.json: 1 weights for 2 parts"),
        ({"weights": ["1", "2"]}, "was changed"),
        ({"parts": ["part-0", "../two/part-1"]}, "was changed"),
        ({"parts": ["part-0", "part-2"]}, "part-2: this part of the combined model is missing"),
        ({"how": "average"}, r"jaxretr\.json: how='average': no such combination"),
        ({"extra": 1}, "was changed"),
    ],
)
def test_a_changed_note_is_refused(parts: list[DualEncoder], tmp_path: Path, change: dict, message: str) -> None:
    CombinedEncoder(parts, [1, 1]).save(tmp_path / "two")
    path = tmp_path / "two/jaxretr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load_encoder(tmp_path / "two")


def test_a_folder_with_something_else_is_left_alone(parts: list[DualEncoder], tmp_path: Path) -> None:
    parts[0].save(tmp_path / "model")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for name, message in (("model", r"holds something else"), ("thesis", r"thesis\.tex"), ("file", "is a file")):
        with pytest.raises(UserError, match=message):
            CombinedEncoder(parts, [1, 1]).save(tmp_path / name)
    assert (tmp_path / "thesis/thesis.tex").exists() and DualEncoder.from_pretrained(tmp_path / "model")


# ---- exports ---------------------------------------------------------------------------------------------------------


def test_export_is_verified_and_its_card_works(
    parts: list[DualEncoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = CombinedEncoder(parts, [1, 0.3], names=["runs/dpr", "runs/lexical"])
    report = export(encoder, tmp_path / "spar", "jaxretr", license="mit")
    assert report.texts == 10 and report.files >= 4
    verify(tmp_path / "spar")
    card = (tmp_path / "spar/README.md").read_text()
    assert "| part-1 | runs/lexical | 0.3 |" in card and "A combined model of 28 dimensions" in card
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)\n```", card, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    np.testing.assert_array_equal(names["questions"], encoder.encode_queries(["who wrote The Magic Flute?"]))


def test_verify_notices_another_weight_and_another_part(parts: list[DualEncoder], tmp_path: Path) -> None:
    export(CombinedEncoder(parts, [1, 0.3]), tmp_path / "spar", "jaxretr")
    path = tmp_path / "spar/jaxretr.json"
    before = path.read_text()
    path.write_text(before.replace("0.3", "0.4"))
    with pytest.raises(UserError, match=r"weights .*\[1\.0, 0\.4\] .*\[1\.0, 0\.3\]; .*5 of 5"):
        verify(tmp_path / "spar")
    path.write_text(before)
    make(parts[1].tokenizer, 9, **{"projection_size": 12, "shared": True, "pooling": "mean", "normalise": True}).save(
        tmp_path / "spar/part-1"
    )
    with pytest.raises(UserError, match=r"part-1/model\.safetensors was changed"):
        verify(tmp_path / "spar")


def test_layouts_of_one_encoder_are_refused(parts: list[DualEncoder], tmp_path: Path) -> None:
    encoder = CombinedEncoder(parts, [1, 0.3])
    for to in ("huggingface", "sentence-transformers"):
        with pytest.raises(UserError, match=rf"no layout of {to} holds several encoders.*m/part-1 \(0\.3\)"):
            export(encoder, tmp_path / "out", to, source="m")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()
