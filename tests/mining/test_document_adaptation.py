"""`jaxretr adapt documents`, with a generator that asks with the words of its passages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from command_errors import the_error
from pair_models import Quoting, make_model

import jaxretr
from jaxretr import document_adaptation
from jaxretr.cli import main
from jaxretr.data.formats.examples import Candidate, Example
from jaxretr.data.readers import read_beir, read_corpus, read_qrels
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.models.question_generator import QuestionGenerator
from jaxretr.runtime.errors import UserError

SETTINGS: dict[str, Any] = {"per_passage": 1, "steps": 3, "batch_size": 8, "max_length": 32, "dtype": "float32"}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> QuestionGenerator:
    return Quoting.from_pretrained(make_model("qwen3_lm", tmp_path_factory.mktemp("lm")), template="upr", max_length=96)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty passages of the quickstart's and a copy of each, as a file."""
    path = tmp_path_factory.mktemp("documents") / "corpus.jsonl"
    corpus = read_corpus(tiny.QUICKSTART)
    with open(path, "w") as file:
        for row in range(80):
            passage, copy = corpus[row % 40], " copy\t" if row >= 40 else ""
            file.write(json.dumps({"_id": copy + passage.id, "title": passage.title, "text": passage.text}) + "\n")
    return path


def test_a_model_is_trained_on_generated_questions_and_compared(
    generator: QuestionGenerator, documents: Path, tiny_models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "adapted"

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    arguments: dict[str, Any] = {"model": tiny_models / "encoder", "generator": generator, "out": out, **SETTINGS}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(document_adaptation, "train", killed)
        jaxretr.adapt_to_documents(documents, **arguments)
    written = (out / "generated.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(document_adaptation, "generate", killed)  # What was done before the kill is kept.
        patch.setattr(document_adaptation, "mine", killed)
        adapted = jaxretr.adapt_to_documents(documents, **arguments)
    assert (out / "generated.jsonl").read_bytes() == written
    assert {*adapted.report["seconds"]} == {"generating", "encoding", "mining", "training"}, "those of both calls"

    # The questions' passages are divided, and every example has its passage and negatives that are others.
    held_out = [json.loads(line)["_id"] for line in (out / "held_out/queries.jsonl").read_text().splitlines()]
    learnt = [json.loads(line) for line in (out / "mined.jsonl").read_text().splitlines()]
    assert {row["query_id"] for row in learnt}.isdisjoint(held_out)
    assert len(learnt) + len(held_out) == adapted.report["questions"]
    assert len(held_out) >= 2
    contents, judged = (
        {passage.id: passage.text for passage in read_corpus(documents)},
        read_qrels(out / "held_out/qrels.jsonl"),
    )
    for row in learnt:
        assert row["query_id"].startswith(row["positive_document_ids"][0])
        positive, *others = map(contents.get, row["positive_document_ids"] + row["negative_document_ids"])
        assert others and positive not in others
        assert positive not in {contents[id] for of_one in judged.values() for id in of_one}, "a copy is not trained on"
    assert judged.keys() == set(held_out)
    for id, of_one in judged.items():
        asked = contents[id.removesuffix("-q0")]
        assert {*of_one} == {each for each, text in contents.items() if text == asked} and len(of_one) == 2

    assert adapted.report["steps"] == 3
    assert "They flatter" in adapted.table()
    assert [system.path for system in adapted.comparison.systems][-1] == "BM25"
    assert adapted.store.meta.rows == 80
    loaded = jaxretr.load_encoder(out / "model")
    before = jaxretr.load_encoder(tiny_models / "encoder")
    assert loaded.config.max_passage_length == before.config.max_passage_length > SETTINGS["max_length"]
    corpus = read_corpus(documents)
    vectors = loaded.encode_passages([corpus[row] for row in range(3)])
    np.testing.assert_allclose(vectors, adapted.store.rows(0, 3), atol=1e-5)  # Other batches round otherwise.
    assert json.loads((out / "report.json").read_text())["compared_on"] == adapted.report["compared_on"]

    with pytest.raises(UserError, match="was begun with another per_passage="):
        jaxretr.adapt_to_documents(documents, **{**arguments, "per_passage": 3})


def test_questions_that_were_edited_are_about_the_documents(documents: Path):
    example = Example("q", "what is it", (), (Candidate("nowhere", "", None, -1.0),), ())
    with pytest.raises(UserError, match=r"generated.jsonl: passage 'nowhere' is not one of the documents"):
        document_adaptation._divided([example], read_corpus(documents), Path("generated.jsonl"))


def test_a_scorers_scores_are_distilled_and_own_questions_compared_on(
    generator: QuestionGenerator, tiny_models: Path, tiny_cross_encoder: Path, tmp_path: Path
):
    tiny.write_subset(tmp_path / "beir")
    adapted = jaxretr.adapt_to_documents(
        tmp_path / "beir",
        model=tiny_models / "encoder",
        generator=generator,
        scorer=tiny_cross_encoder,
        passages=30,
        out=tmp_path / "out",
        **SETTINGS,
    )
    assert adapted.report["passages_asked"] == 30
    assert (
        adapted.report["compared_on"]
        == f"{len(read_beir(tmp_path / 'beir', 'test').questions)} questions with judgements"
    )
    [line] = (tmp_path / "out/mined.jsonl").read_text().splitlines()[:1]
    row, scorer = json.loads(line), jaxretr.load_scorer(tiny_cross_encoder)
    corpus = read_corpus(tmp_path / "beir")
    passages = {passage.id: {"title": passage.title, "text": passage.text} for passage in corpus}
    ids = row["positive_document_ids"] + row["negative_document_ids"]
    wanted = scorer.score([row["query_text"]] * len(ids), [passages[id] for id in ids])
    # Other batches round otherwise.
    np.testing.assert_allclose(row["positive_scores"] + row["negative_scores"], wanted, atol=1e-5)

    # What is learnt: log p(passage | question) of the scorer and of the model before, times the scorer's temperature.
    [target] = (json.loads(line) for line in (tmp_path / "out/targets.jsonl").read_text().splitlines()[:1])
    before = jaxretr.load_encoder(tiny_models / "encoder")
    assert not before.config.normalise, "so that the model's own temperature is 1"
    own = before.encode_passages([passages[id] for id in ids]) @ before.encode_queries([row["query_text"]])[0]
    np.testing.assert_allclose(target["positive_scores"] + target["negative_scores"], wanted + 0.2 * own, atol=1e-4)
    assert {**target, "positive_scores": 0, "negative_scores": 0} == {**row, "positive_scores": 0, "negative_scores": 0}
    assert json.loads((tmp_path / "out/run/config.json").read_text())["data"]["train"].endswith("targets.jsonl")


def test_what_cannot_be_adapted_is_one_line(documents: Path, tiny_models: Path, tmp_path: Path, capsys: Any):
    model = tmp_path / "model"  # One that says how it is used, so that no warning comes first.
    DualEncoder.from_pretrained(tiny_models / "encoder").save(model)
    words = ["adapt", "documents", str(documents), "--model", str(model), "--out", str(tmp_path / "out")]
    assert main([*words, "--generator", str(tiny_models / "encoder")]) == 1
    assert "writes no text" in the_error(capsys)
    assert main([*words, "--generator", str(tiny_models / "scorer"), "--prompt-length", "4"]) == 2
    assert "--prompt-length 4: the template takes" in the_error(capsys)
    assert main([*words, "--generator", str(tiny_models / "scorer"), "--scorer", "nowhere"]) == 1
    assert "nowhere" in the_error(capsys)
    for option, value, code, message in (
        ("--learning-rate", "-1", 2, "--learning-rate -1.0: must be at least 0"),
        ("--max-length", "3", 2, "--max-length 3: must be at least 4"),
        ("--max-length", "65", 1, "but the model has 64 positions; lower it"),
    ):
        assert main([*words, "--generator", str(tiny_models / "scorer"), option, value]) == code
        assert message in the_error(capsys)
    assert not (tmp_path / "out").exists(), "nothing of a failed call is in the way of the next one"
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    words[-1] = str(tmp_path / "full")
    assert main([*words, "--generator", str(tiny_models / "scorer")]) == 1
    assert "holds something else than a model adapted to documents (file); choose another folder" in the_error(capsys)
    assert main([*words, "--generator", str(tiny_models / "scorer"), "--queries", "q.jsonl"]) == 2
    assert "--queries and --qrels go together" in the_error(capsys)
    assert main([*words, "--generator", str(tiny_models / "scorer"), "--teacher-temperature", "1"]) == 2
    assert "--teacher-temperature 1.0: there is no --scorer; give one" in the_error(capsys)
