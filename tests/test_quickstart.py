"""The quickstart from its beginning to its end, with tiny models on a few of its passages; and its harder questions."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import tiny

from jaxretr.assets import QUICKSTART, REPHRASED
from jaxretr.config import Art, ArtConfig, ContrastiveConfig, LiveIndex, Scorer
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.questions import Question, read_questions
from jaxretr.data.readers import BeirSet, read_beir
from jaxretr.indexes.exact import ExactIndex
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.quickstart import run as quickstart
from jaxretr.quickstart.configs import config, lexical_config
from jaxretr.quickstart.run import AFTER, BEFORE, BM25, CONTROL, ENCODER, LEXICAL, SHOWN, harder_questions
from jaxretr.training.metrics_log import read_metrics

STEPS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart")
    tiny.write_models(folder, bert=dataclasses.replace(tiny.BERT, max_position_embeddings=112))
    tiny.write_subset(folder / "data")
    test = read_beir(folder / "data", "test").questions
    rows = [{"_id": question.id, "text": f"other words {number}"} for number, question in enumerate(test[:3])]
    (folder / "rephrased.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The quickstart's own configs, with the data and models of `folder`."""
    data = str(folder / "data")

    def changed(plan: Any, **sections: dict[str, Any]) -> Any:
        return dataclasses.replace(
            plan, **{name: dataclasses.replace(getattr(plan, name), **values) for name, values in sections.items()}
        )

    def art(workdir: str = "runs") -> ArtConfig:
        plan = changed(
            config(workdir),
            data={"corpus": data, "questions": data, "dev_questions": data, "dev_qrels": f"{data}/qrels/dev.tsv"},
            encoder={"path": str(folder / "encoder")},
            train={"eval_every": 1, "save_every": 1, "batch_size": 8},
        )
        scorer = Scorer(path=str(folder / "scorer"), max_length=64, max_question_length=32)
        art = Art(top_k=2, temperature=0.05, teacher_temperature=0.2, prior_weight=1.0, chunk=16)
        return dataclasses.replace(plan, scorer=scorer, art=art, index=LiveIndex(refresh_every=2, dtype="float32"))

    def lexical(workdir: str = "runs") -> ContrastiveConfig:
        plan = lexical_config(workdir)
        shape = dataclasses.replace(plan.encoder.fresh, hidden_size=32, heads=2)  # pyright: ignore[reportArgumentType]
        return changed(
            plan,
            data={"corpus": data},
            encoder={"path": str(folder / "encoder"), "fresh": shape},
            train={"steps": 2, "batch_size": 8, "eval_every": 2, "save_every": 2},
        )

    monkeypatch.setattr(quickstart, "QUICKSTART", folder / "data")
    monkeypatch.setattr(quickstart, "REPHRASED", folder / "rephrased.jsonl")
    monkeypatch.setattr(quickstart, "DEV_SENTENCES", 8)
    monkeypatch.setattr(quickstart, "config", art)
    monkeypatch.setattr(quickstart, "lexical_config", lexical)
    # 48 passages have no ranks 46 to 50 for most sentences.
    mine = quickstart.mine_lexical
    monkeypatch.setattr(quickstart, "mine_lexical", lambda **words: mine(**words, positives=2, negative_ranks=(3, 5)))
    return folder


def test_it_runs_to_its_end_and_resumes(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workdir = small / "run"
    table = quickstart.main(workdir, seed=1, steps=STEPS)
    printed = capsys.readouterr().out
    assert list(table) == [BM25, ENCODER, LEXICAL, BEFORE, AFTER, CONTROL]
    for name, values in table.items():
        assert set(values) == set(SHOWN) and all(0 <= value <= 1 for value in values.values())
        row = next(line for line in printed.splitlines() if line.startswith(f"{name}  "))
        assert row.split()[-len(SHOWN) :] == [f"{100 * values[measure]:.1f}" for measure in SHOWN]
    assert "16 test questions, none of them trained on; 48 passages" in printed
    assert printed.count("?\n") == 3 and printed.count("...") == 9, "three passages for each of three questions"
    assert "After ART against BM25: recall@20 " in printed and "What dense adds" in printed

    results = json.loads((workdir / "results.json").read_text())
    assert results["test"] == table and results["seed"] == 1 and results["steps"] == STEPS
    assert results["lexical_weight"] in quickstart.WEIGHTS
    assert results["harder"]["said in other words by hand"]["questions"] == 3
    model = CombinedEncoder.from_pretrained(workdir / "art")
    assert model.config.embedding_size == tiny.BERT.hidden_size + 32
    assert ExactIndex.load(workdir / "index").search_rows(model.encode_queries(["who wrote it"]), 3)[1].shape == (1, 3)
    page = (workdir / "report.html").read_text()
    assert all(name in page for name in (BM25, BEFORE, AFTER, CONTROL)) and page.count('class="question"') == 6
    assert (workdir / "learning_curve.png").read_bytes().startswith(b"\x89PNG")

    lines = {name: read_metrics(workdir / name) for name in ("lexical", "art", "shuffled_teacher")}
    assert quickstart.main(workdir, seed=1, steps=STEPS) == table
    assert {name: read_metrics(workdir / name) for name in lines} == lines, "nothing was trained again"


def test_the_control_is_the_same_run_with_a_shuffled_teacher(small: Path) -> None:
    one, other = (json.loads((small / f"run/{name}/config.json").read_text()) for name in ("art", "shuffled_teacher"))
    assert other["art"].pop("shuffle_teacher") and not one["art"].pop("shuffle_teacher")
    assert other["table"].pop("path").endswith("scores.jsonl") and one["table"].pop("path") is None
    assert other.pop("name") != one.pop("name") and one == other
    hits = [line["teacher_hits"] for line in read_metrics(small / "run/shuffled_teacher") if "teacher_hits" in line]
    assert max(hits) > 0, "it retrieves what ART's run has scores of"
    assert one["joint"]["lexical"].endswith("lexical"), "both learn beside the lexical model"


def test_the_harder_questions_are_what_they_are_called() -> None:
    test = read_beir(QUICKSTART, "test")
    found = harder_questions(test)
    typos, lacking, rephrased = found.values()
    originals = {question.id: question.text for question in test.questions}
    changed = sum(question.text != originals[question.id] for question in typos.questions)
    assert len(typos.questions) == 1041 and changed > 900
    assert 100 < len(lacking.questions) < 500
    assert len(rephrased.questions) == 60 == len({question.id for question in read_questions(REPHRASED)})
    for question in rephrased.questions:
        assert question.text != originals[question.id]
    for questions in found.values():
        assert set(questions.qrels) == {question.id for question in questions.questions}


@pytest.mark.parametrize(
    ("question", "lacks"),
    [
        ("who wrote the songs of the lion king", False),  # all but "wrote" are there
        ("which composer penned the lion's songs", True),  # two of four are missing
        ("who is it", False),  # says nothing that could be missing
        ("what did the director film", True),
    ],
)
def test_a_question_lacks_words_if_half_of_them_are_missing(question: str, lacks: bool) -> None:
    corpus = Corpus.from_passages([Passage("p", "The Lion King", "Elton John's song for the movie.")])
    test = BeirSet(corpus, [Question("q", question)], {"q": {"p": 1}})
    assert quickstart._lacks_words(test.questions[0], test) == lacks


def test_the_quickstarts_questions_are_apart() -> None:
    train, dev, test = (read_beir(QUICKSTART, split) for split in ("train", "dev", "test"))
    texts = [{question.text for question in each.questions} for each in (train, dev, test)]
    assert not texts[2] & (texts[0] | texts[1])
    assert config().data.questions_split == "train"
