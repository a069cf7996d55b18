"""combine, tune, and a combined model in encode, search, evaluate, export and verify, as a user types them."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from test_combined_encoder import make
from tiny import DATA, write_tokenizer

from jaxretr import cli
from jaxretr.data.readers import read_corpus, read_qrels, read_questions
from jaxretr.data.run_reading import read_trec
from jaxretr.data.tokens import load_tokenizer
from jaxretr.embeddings.embedding_store import EmbeddingStore
from jaxretr.evaluate import metrics
from jaxretr.evaluate import weight_tuning as tune
from jaxretr.evaluate.answers import accuracy
from jaxretr.indexes.source import masked
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.models.dual_encoder import DualEncoder

CORPUS = DATA / "corpus.jsonl"
QUERIES = DATA / "queries.jsonl"
QRELS = DATA / "qrels/train.tsv"
ANSWERS = DATA / "questions.tsv"


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base, lexical and other (of 16, 12 and 16 dimensions), and spar, which is base + 0.5 lexical."""
    folder = tmp_path_factory.mktemp("models")
    write_tokenizer("bert", [f"{p.title} {p.text}" for p in read_corpus(DATA)], folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    make(tokenizer, 1).save(folder / "base")
    make(tokenizer, 2, projection_size=12, shared=True).save(folder / "lexical")
    make(tokenizer, 3, shared=True).save(folder / "other")
    assert run("combine", folder / "base", folder / "lexical", "--weight", 0.5, "--out", folder / "spar") == 0
    return folder


def scores_of(model: Path, side: str = "encode_") -> tuple[np.ndarray, np.ndarray]:
    """Questions and passages of one model, float64."""
    encoder = DualEncoder.from_pretrained(model)
    questions = encoder.encode_queries([question.text for question in read_questions(QUERIES)])
    return questions.astype(np.float64), encoder.encode_passages(list(read_corpus(CORPUS))).astype(np.float64)


def expected_scores(models: Path, weight: float) -> np.ndarray:
    (q1, p1), (q2, p2) = scores_of(models / "base"), scores_of(models / "lexical")
    return q2 @ p2.T if math.isinf(weight) else q1 @ p1.T + weight * q2 @ p2.T


# ---- combine ---------------------------------------------------------------------------------------------------------


def test_combine_and_other_weights(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = CombinedEncoder.from_pretrained(models / "spar")
    assert loaded.config.weights == (1, 0.5) and loaded.names == (str(models / "base"), str(models / "lexical"))
    assert run("combine", models / "spar", "--weight", 2, "--out", tmp_path / "heavier") == 0
    assert capsys.readouterr().out.endswith("lexical, concatenate, 28 dimensions\n")
    assert CombinedEncoder.from_pretrained(tmp_path / "heavier").config.weights == (1, 2)
    parts = (models / "base", models / "other", models / "lexical")
    assert run("combine", *parts, "-w", 2, "-w", 3, "--truncate-dim", "8,all,4", "--out", tmp_path / "three") == 0
    three = CombinedEncoder.from_pretrained(tmp_path / "three").config
    assert three.weights == (1, 2, 3) and [part.embedding_size for part in three.parts] == [8, 16, 4]
    assert run("combine", *parts[:2], "-w", 2, "--how", "sum", "--out", tmp_path / "sum") == 0
    assert CombinedEncoder.from_pretrained(tmp_path / "sum").config.embedding_size == 16


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("base --weight 1 --out {out}", 2, "base: is a single model; name the one to combine it with as well"),
        ("base lexical --out {out}", 2, "the following arguments are required: --weight"),
        ("base lexical -w 1 -w 2 --out {out}", 2, "2 weights for 1 models besides the first"),
        ("base lexical -w x --out {out}", 2, "'x' is not a weight; give a number of at least 0"),
        ("base lexical -w 1 --how sum --out {out}", 1, "16 and 12 dimensions cannot be added; use 'concatenate'"),
        ("spar base -w 1 --out {out}", 1, "spar: is a combined model already; name its parts"),
        ("spar -w 1 --truncate-dim 4 --out {out}", 2, "--truncate-dim cuts models that are being combined"),
        ("base lexical -w 1 --truncate-dim 4 --out {out}", 2, "1 sizes for 2 models; give one for each, or 'all'"),
        ("base lexical -w 1 --truncate-dim 4,400 --out {out}", 1, "truncate_dim is 400"),
        ("base lexical -w 1 --truncate-dim 4,x --out {out}", 2, "'4,x' is not a list of dimensions"),
        ("base lexical -w 1 --out base", 1, "holds something else than a combined model"),
        ("base nowhere -w 1 --out {out}", 1, "nowhere: no such model folder"),
    ],
)
def test_combine_used_wrongly(
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(models)
    names = [f"./{word}" if (models / word).exists() or word == "nowhere" else word for word in words.split()]
    assert run("combine", *(name.format(out=tmp_path / "out") for name in names)) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


# ---- as a MODEL ------------------------------------------------------------------------------------------------------


def test_an_index_made_with_one_weight_is_searched_with_another(models: Path, tmp_path: Path) -> None:
    assert run("encode", models / "spar", "--corpus", CORPUS, "--out", tmp_path / "index", "--shard-rows", 7) == 0
    assert run("combine", models / "spar", "--weight", 3, "--out", tmp_path / "heavy") == 0
    ids = read_corpus(CORPUS).ids
    for model, weight in ((models / "spar", 0.5), (tmp_path / "heavy", 3)):
        words = ("--index", tmp_path / "index", "--queries", QUERIES, "-k", 20, "--out", tmp_path / "run.trec")
        assert run("search", model, *words) == 0
        found = read_trec(tmp_path / "run.trec")
        expected = expected_scores(models, weight)
        for question, scores in zip(read_questions(QUERIES), expected, strict=True):
            assert found[question.id] == pytest.approx(dict(zip(ids, scores, strict=True)), rel=1e-4, abs=1e-4)
    # The same store goes on, whatever the weight.
    assert run("encode", tmp_path / "heavy", "--corpus", CORPUS, "--out", tmp_path / "index", "--shard-rows", 7) == 0


def test_stored_questions_have_their_weight_and_other_models_indexes_are_refused(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("combine", models / "spar", "--weight", 3, "--out", tmp_path / "heavy") == 0
    words = ("--side", "question", "--corpus", QUERIES, "--out", tmp_path / "questions")
    assert run("encode", models / "spar", *words) == 0
    stored = np.concatenate(list(EmbeddingStore.open(tmp_path / "questions").blocks()))
    (q1, _), (q2, _) = scores_of(models / "base"), scores_of(models / "lexical")
    np.testing.assert_allclose(stored, np.concatenate([q1, 0.5 * q2], axis=1), rtol=1e-5, atol=1e-5)
    assert run("encode", tmp_path / "heavy", *words) == 1
    assert "holds embeddings of another model" in capsys.readouterr().err

    assert run("encode", models / "base", "--corpus", CORPUS, "--out", tmp_path / "index") == 0
    search = ("--index", tmp_path / "index", "--queries", QUERIES, "--out", tmp_path / "run.trec")
    capsys.readouterr()
    assert run("search", models / "spar", *search) == 1
    assert "of 16 dimensions" in (error := capsys.readouterr().err) and "--truncate-dim" not in error
    assert run("search", models / "other", *search) == 1
    assert "was encoded with another model" in capsys.readouterr().err
    assert run("search", models / "spar", *search, "--truncate-dim", 4) == 1
    assert "a combined model is not cut, its parts are" in capsys.readouterr().err


def test_evaluate_and_export(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", models / "spar", "--beir", DATA, "--split", "train", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    ids, qrels = read_corpus(CORPUS).ids, read_qrels(QRELS)
    scores = expected_scores(models, 0.5)
    found = {
        question.id: dict(zip(ids, row, strict=True))
        for question, row in zip(read_questions(QUERIES), scores.tolist(), strict=True)
    }
    assert content["metrics"] == pytest.approx(metrics.evaluate(qrels, found, list(content["metrics"])))

    assert run("export", models / "spar", "--to", "jaxretr", "--out", tmp_path / "export") == 0
    assert run("verify", tmp_path / "export") == 0
    assert "intact; 10 golden vectors agree" in capsys.readouterr().out
    assert run("export", models / "spar", "--to", "huggingface", "--out", tmp_path / "hf") == 1
    error = capsys.readouterr().err
    assert "no layout of huggingface holds several encoders" in error and f"{models / 'spar'}/part-1 (0.5)" in error
    assert run("verify", tmp_path / "export", "--with", "transformers") == 2
    assert "was exported for jaxretr" in capsys.readouterr().err


# ---- tune ------------------------------------------------------------------------------------------------------------


def figures(models: Path, metric: str, weights: list[float], how: str = "concatenate") -> dict[float, float]:
    """The metric with each weight by float64 scores of all pairs."""
    (q1, p1), (q2, p2) = (
        scores_of(models / "base"),
        scores_of(models / ("lexical" if how == "concatenate" else "other")),
    )
    corpus, questions = read_corpus(CORPUS), read_questions(QUERIES)
    found = {}
    for weight in weights:
        if weight == 0:
            scores = q1 @ p1.T
        elif math.isinf(weight):
            scores = q2 @ p2.T
        else:
            scores = q1 @ p1.T + weight * q2 @ p2.T if how == "concatenate" else (q1 + weight * q2) @ (p1 + p2).T
        if metric.startswith("acc"):
            texts = [[corpus.texts[row] for row in np.argsort(-one, kind="stable")] for one in scores]
            answers = [question.answers for question in read_questions(ANSWERS)]
            found[weight] = accuracy(answers, texts, [int(metric.split("@")[1])])[metric]
        else:
            run = {q.id: dict(zip(corpus.ids, one, strict=True)) for q, one in zip(questions, scores, strict=True)}
            found[weight] = metrics.evaluate(read_qrels(QRELS), run, [metric])[metric]
    return found


def table_of(printed: str) -> dict[float, float]:
    rows = re.findall(r"^ *([\d.e+-]+|inf) +([01]\.\d{4})", printed, re.MULTILINE)
    return {float(weight): float(value) for weight, value in rows}


def test_tune_measures_every_weight_and_writes_the_best_model(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--corpus", CORPUS, "--queries", QUERIES, "--qrels", QRELS, "--metric", "mrr@10", "--grid", "paper")
    assert run("tune", models / "base", models / "lexical", *words, "--out", tmp_path / "best") == 0
    printed = capsys.readouterr().out
    found = table_of(printed)
    assert len(found) == 21
    curve = json.loads((tmp_path / "best/curve.json").read_text())
    exact = [point["weight"] for point in curve["curve"]]
    expected = figures(models, "mrr@10", [0, *exact, math.inf])
    assert [point["value"] for point in curve["curve"]] == pytest.approx([expected[weight] for weight in exact])
    assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-4)
    assert curve["alone"] == pytest.approx([expected[0], expected[math.inf]])
    assert len(set(found.values())) > 3, "the weight makes a difference"

    best = curve["best"]["weight"]
    assert expected[best] == max(expected[weight] for weight in exact)
    assert 0 < curve["held_out"]["combined_against_first"]["p_value"] <= 1
    assert f"best weight {best:.6g}: mrr@10 {expected[best]:.4f}" in printed
    assert (tmp_path / "best/curve.png").read_bytes().startswith(b"\x89PNG")
    assert CombinedEncoder.from_pretrained(tmp_path / "best").config.weights == (1, best)
    # What the table says of the best weight is what the written model gives.
    assert run("evaluate", tmp_path / "best", "--beir", DATA, "--split", "train", "--metrics", "mrr@10", "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["mrr@10"] == pytest.approx(expected[best])
    # An older result is replaced.
    grid = ("--grid", "0.01", "--out", tmp_path / "best")
    assert run("tune", models / "spar", *words[:-2], *grid) == 0
    assert CombinedEncoder.from_pretrained(tmp_path / "best").config.weights == (1, 0.01)


def test_tune_with_indexes_needs_no_corpus_and_writes_a_curve(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, rows in (("base", 6), ("lexical", 9)):
        out = ("--out", tmp_path / name, "--shard-rows", rows)
        assert run("encode", models / name, "--corpus", CORPUS, *out) == 0
    capsys.readouterr()
    indexes = ("--index-a", tmp_path / "base", "--index-b", tmp_path / "lexical")
    words = ("--queries", QUERIES, "--qrels", QRELS, "--metric", "mrr@10", "--grid", "log", "--json")
    curve = ("--curve", tmp_path / "pictures/mu.png")
    assert run("tune", models / "spar", *indexes, *words, *curve) == 0
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "pictures/mu.json").read_text())
    assert (tmp_path / "pictures/mu.png").read_bytes().startswith(b"\x89PNG")
    weights = [point["weight"] for point in content["curve"]]
    assert weights == sorted(weights) and len(weights) >= 19
    expected = figures(models, "mrr@10", weights)
    assert {point["weight"]: point["value"] for point in content["curve"]} == pytest.approx(expected)

    # Each index with its own model, and both of the same passages.
    assert run("tune", models / "spar", "--index-a", tmp_path / "lexical", "--index-b", tmp_path / "base", *words) == 1
    assert "contains embeddings of 12 dimensions" in capsys.readouterr().err
    (tmp_path / "half.jsonl").write_text("".join(CORPUS.read_text().splitlines(keepends=True)[:10]))
    assert run("encode", models / "lexical", "--corpus", tmp_path / "half.jsonl", "--out", tmp_path / "half") == 0
    capsys.readouterr()
    assert run("tune", models / "spar", "--index-a", tmp_path / "base", "--index-b", tmp_path / "half", *words) == 1
    assert "was encoded from other passages than those in" in capsys.readouterr().err


def test_tune_by_answers_and_by_sums(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--corpus", CORPUS, "--queries", ANSWERS, "--answers", "--metric", "acc@2", "--grid", "0.25,4")
    assert run("tune", models / "base", models / "lexical", *words) == 0
    assert table_of(capsys.readouterr().out) == pytest.approx(
        figures(models, "acc@2", [0, 0.25, 4, math.inf]), abs=1e-4
    )
    words = ("--beir", DATA, "--split", "train", "--metric", "mrr@10", "--grid", "0.25,4", "--how", "sum")
    assert run("tune", models / "base", models / "other", *words, "--out", tmp_path / "sum") == 0
    expected = figures(models, "mrr@10", [0, 0.25, 4, math.inf], "sum")
    assert table_of(capsys.readouterr().out) == pytest.approx(expected, abs=1e-4)
    assert CombinedEncoder.from_pretrained(tmp_path / "sum").config.how == "sum"


def test_scale_is_sampled_from_the_whole_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_SAMPLED_PASSAGES", 40)
    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(100, 3)), rng.normal(size=(5, 3))
    blocks = lambda: [p[:30], p[30:90], p[90:]]  # noqa: E731
    rows = np.array([0, 29, 30, 89, 90, 99])
    mask = np.isin(np.arange(100), rows)
    np.testing.assert_array_equal(np.concatenate(list(masked(blocks(), mask))), p[rows])
    pairs = list(tune._sampled_scores("concatenate", [q, 2 * q], [blocks, blocks], 100))
    assert len(pairs) == 5 and all(len(one) == 40 for one, _ in pairs)
    for one, other in pairs:
        np.testing.assert_allclose(other, 2 * one, rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("base", 2, "give --queries with either --qrels or --answers, or give --beir"),
        (
            "base --queries {q} --qrels {r}",
            2,
            "give --corpus; only with --index-a, --index-b and --qrels it is not",
        ),
        ("base --corpus {c} --queries {q} --qrels {r} --answers", 2, "either --qrels or --answers"),
        ("base --beir {d} --corpus {c}", 2, "--beir has corpus, queries and qrels"),
        ("base lexical other --beir {d}", 2, "tune finds one weight, of two models, not 3"),
        ("base --beir {d} --split train", 2, "base: is a single model; name the one to combine it with"),
        ("base lexical --beir {d} --split train --metric recal@5", 2, "unknown measure 'recal@5'"),
        ("base lexical --beir {d}", 1, "dev"),
        ("base lexical --corpus {c} --queries plain.txt --answers", 1, "no question has answers"),
        ("base lexical --corpus {c} --queries {a} --answers --metric mrr@10", 2, "by --answers the metric is acc@20"),
        ("base lexical --corpus {c} --queries {a} --qrels {r}", 1, "judges 6 questions that"),
        ("base lexical --beir {d} --split train --curve mu.jpg", 2, "give a name that ends in .png"),
        ("base lexical --beir {d} --split train --grid 1,x", 2, "'x' is not a weight"),
        ("base lexical --beir {d} --split train --out base", 1, "holds something else than a combined model"),
    ],
)
def test_tune_used_wrongly(
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(models)
    (models / "plain.txt").write_text("who wrote The Magic Flute\n")
    words = words.format(c=CORPUS, q=QUERIES, r=QRELS, d=DATA, a=ANSWERS)
    assert run("tune", *words.split()) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize("command", ["combine", "tune", "fuse"])
def test_help_has_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    printed = capsys.readouterr().out
    for example in printed.split("example:\n")[1].splitlines():
        assert cli.parse(example.split()[1:]).command == command
    for name in cli.build_parser()[1][command]._option_string_actions:
        assert name in printed
