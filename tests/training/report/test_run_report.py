"""`jaxretr report`: what the page says is what was measured, and it needs nothing but itself."""

import dataclasses
import html.parser
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny import DATA, art_config, contrastive_config, write_models

import jaxretr
from jaxretr import cli
from jaxretr.config import MlmConfig, PretrainData, Train
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.questions import Question
from jaxretr.data.readers import read_beir
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.report import curves, searches
from jaxretr.training.report.examples import choose, common_stems, marked, show
from jaxretr.training.report.run_files import RunFiles
from jaxretr.training.report.run_report import report
from jaxretr.training.runs.encoder_start import load_encoder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, of which one is evaluated by judgements."""
    folder = tmp_path_factory.mktemp("runs")
    write_models(folder, noise=0.3)
    data = {"dev_qrels": str(DATA / "qrels/train.tsv")}
    plan = contrastive_config(folder, data=data, train={"steps": 4, "eval_every": 2, "best_metric": "recall@20"})
    jaxretr.train(plan, folder / "dpr")
    jaxretr.train(
        art_config(folder, data=data, train={"steps": 4, "eval_every": 2, "best_metric": "recall@20"}), folder / "art"
    )
    return folder


class Page(html.parser.HTMLParser):
    """Reads the cells of tables, and what a browser would fetch."""

    def __init__(self, path: Path):
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.fetched: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta", "br", "link", "path", "use", "rect", "stop"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("meta", "br", "link", "path", "use", "rect", "stop"):
            return
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if any(tag in ("td", "th") for tag in self.open) and self.rows:
            self.rows[-1][-1] += data.strip() + " "


def test_the_page_has_what_was_measured(runs: Path, tmp_path: Path) -> None:
    found = report([runs / "dpr", runs / "art"], out=tmp_path / "page.html", examples=3)
    page = Page(found.out)
    assert all(link.startswith("#") for link in page.fetched), "one file, nothing to fetch"
    assert "<script" not in page.text
    beir = read_beir(DATA, "train")
    assert found.comparison is not None
    assert found.comparison.names == ["dpr", searches.BM25, searches.BEFORE, "art"]
    means = jaxretr.evaluate_model(str(runs / "dpr"), beir=beir, metrics=searches.METRICS).means
    before = jaxretr.evaluate_model(
        load_encoder(RunFiles.read(runs / "dpr").config.encoder), beir=beir, metrics=searches.METRICS
    ).means
    rows = {row[0].strip(): row[1:] for row in reversed(page.rows) if row}  # the first table's win
    for name, wanted in (("dpr", means), (searches.BEFORE, before)):
        values = next(iter(wanted.values()))
        assert [float(cell.split()[0]) for cell in rows[name][:4]] == [round(100 * v, 1) for v in values.values()]
    for word in ("train.batch_size", "optimizer.learning_rate", "jax", "begun", "Searches side by side"):
        assert word in page.text
    assert page.text.count('class="question"') == 3 and "<mark>" in page.text
    assert page.text.count("<svg") == len(curves.draw(found.runs)) >= 4


def test_a_second_page_of_the_same_runs_has_the_same_bytes(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pages = [report([runs / "dpr"], out=tmp_path / name, examples=2).out.read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]
    # What the run said of its inputs when it trained.
    assert "will read less" not in caplog.text and "training question" not in caplog.text


def test_curves_are_of_what_the_run_logged(runs: Path) -> None:
    run = RunFiles.read(runs / "art")
    drawn = {curve.metric: curve.svg for curve in curves.draw([run])}
    assert {"loss", "staleness", "recall@20"} <= drawn.keys()
    assert not any(name.startswith("seconds") or name in ("step", "examples_per_s") for name in drawn)
    assert drawn["loss"].startswith("<svg") and "loss" in drawn["loss"]
    # What an evaluation calls as a step does has its own panel.
    lines = [
        {"step": 0, "loss": 9.0},
        *({"step": n, "loss": 1.0, "examples_per_s": 1.0} for n in (1, 2)),
        {"step": 2, "loss": 8.0},
    ]
    both = {curve.metric for curve in curves.draw([dataclasses.replace(run, lines=lines)])}
    assert both == {"loss", "loss (evaluation)"}


def test_text_from_files_cannot_become_markup(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "evil"
    shutil.copytree(DATA, folder)
    corpus = (folder / "corpus.jsonl").read_text().splitlines()
    first = json.loads(corpus[0])
    corpus[0] = json.dumps(
        first | {"title": "<script>alert(1)</script>", "text": "<img src=x onerror=alert(2)> " + first["text"]}
    )
    (folder / "corpus.jsonl").write_text("\n".join(corpus) + "\n")
    found = report([runs / "dpr"], out=tmp_path / "page.html", beir=folder, split="train", examples=100)
    page = Page(found.out)
    assert "alert(1)" in page.text and "<script" not in page.text and "<img" not in page.text


def test_matching_words_are_marked_by_their_stem() -> None:
    assert str(marked("Books & a BOOK, boo", {"book"})) == "<mark>Books</mark> &amp; a <mark>BOOK</mark>, boo"
    assert str(marked("京都の寺", {"京都"})) == "<mark>京都</mark>の寺"
    assert str(marked("", {"x"})) == ""


def test_examples_show_gains_and_losses_in_turn() -> None:
    questions = [Question(str(n), f"question {n}") for n in range(6)]
    relevant = {str(n): {"a"} for n in range(6)}
    right, wrong = {"a": 2.0, "b": 1.0}, {"b": 2.0, "a": 1.0}
    baseline = {str(n): right if n in (0, 1, 4) else wrong for n in range(6)}
    model = {str(n): right if n in (1, 3, 5) else wrong for n in range(6)}
    assert choose(questions, [baseline, model], relevant, 4) == [3, 0, 1, 5]
    assert choose(questions, [baseline, model], {}, 3) == [0, 2, 4], "without judgements, spread"
    assert sorted(choose(questions, [baseline, model], relevant, 99)) == list(range(6))
    corpus = Corpus.from_passages([Passage("a", "Title", "the speed of a lens " * 40), Passage("b", "", "other")])
    shown = show(questions[0], [("one", {"0": wrong})], corpus, {"a"}, set())
    assert [hit.relevant for hit in shown.columns[0].hits] == [False, True] and shown.columns[0].rank == 2
    assert common_stems(corpus) >= {"the", "speed"}


def test_a_long_passage_is_shown_from_its_first_match() -> None:
    text = "filler " * 100 + "needle here"
    corpus = Corpus.from_passages([Passage("a", "", text)])
    shown = show(Question("0", "needle"), [("one", {"0": {"a": 1.0}})], corpus, None, set())
    hit = shown.columns[0].hits[0]
    assert hit.text.startswith("…") and "<mark>needle</mark>" in hit.text and hit.relevant is None


def test_a_resumed_run_notes_where_it_went_on(runs: Path) -> None:
    starts = RunFiles.read(runs / "dpr").starts
    assert [start["from_step"] for start in starts] == [0]
    assert starts[0]["devices"].startswith("8 x") and "jax" in starts[0]


def test_a_run_on_texts_has_curves_alone(tmp_path: Path) -> None:
    plan = MlmConfig(
        name="mlm",
        data=PretrainData(corpora=(str(DATA),), vocab_size=400, vocabulary_every=1, max_length=16, held_out=8),
        train=Train(steps=2, batch_size=8, log_every=1, eval_every=2, best_metric="loss"),
    )
    jaxretr.train(plan, tmp_path / "mlm")
    found = report([tmp_path / "mlm"], out=tmp_path / "page.html")
    assert found.comparison is None and not found.examples
    assert "Searches side by side" not in Page(found.out).text


def test_what_cannot_be_reported_is_said_in_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="give the folder of a training run"):
        report([tmp_path], out=tmp_path / "page.html")
    with pytest.raises(UsageError, match="named twice"):
        report([runs / "dpr", runs / "dpr"], out=tmp_path / "page.html")
    with pytest.raises(UsageError, match="is a folder"):
        report([runs / "dpr"], out=tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(runs / "dpr", broken)
    (broken / "environment.json").write_text("[{")
    assert cli.main(["report", str(broken), "--out", str(tmp_path / "x.html")]) == 1
    assert "is damaged" in capsys.readouterr().err.splitlines()[-1]
    (broken / "environment.json").unlink()
    shutil.rmtree(broken / "model")
    assert cli.main(["report", str(broken), "--out", str(tmp_path / "x.html")]) == 1
    assert "no model yet" in capsys.readouterr().err
    assert cli.main(["report", str(broken), "--out", str(tmp_path / "x.html"), "--no-search"]) == 0
    assert "older version" in (tmp_path / "x.html").read_text()


def test_a_file_that_is_not_found_from_another_folder_is_named_with_its_setting(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(runs / "dpr", moved)
    values = json.loads((moved / "config.json").read_text())
    values["data"] |= {"train": DATA.name, "dev_questions": DATA.name}
    values["encoder"]["path"] = "encoder"
    (moved / "config.json").write_text(json.dumps(values))
    run = RunFiles.read(moved)
    monkeypatch.chdir(tmp_path)
    wanted = (
        rf"moved/config\.json: {{}} is not found from {tmp_path} .*; start the report in the folder that the run was"
    )
    with pytest.raises(UserError, match=wanted.format(rf".*data\.train={DATA.name}.*")):
        searches.test_set(run, None, "test")
    with pytest.raises(UserError, match=wanted.format(r"encoder\.path=encoder")):
        searches.before(run)
    monkeypatch.chdir(DATA.parent)
    assert searches.test_set(run, None, "test") is not None
    monkeypatch.chdir(runs)
    assert searches.before(run) is not None


def test_a_corpus_that_runs_share_is_not_copied_into_one_of_them(runs: Path) -> None:
    art = RunFiles.read(runs / "art")
    assert art.config.data.token_cache == str(runs / "tokens")  # pyright: ignore[reportAttributeAccessIssue]
    assert searches.test_set(art, None, "test") is not None
    assert not (runs / "art/tokens").exists()


def test_the_intervals_are_of_the_means(runs: Path) -> None:
    run = RunFiles.read(runs / "dpr")
    on = searches.test_set(run, None, "test")
    assert on is not None
    found = searches.compare([run], on)
    from jaxretr.training.report.run_report import _rows

    for _, cells in _rows(found):
        for cell, interval in cells:
            low, high = map(float, re.findall(r"[\d.]+", interval))
            assert low <= float(cell.text) <= high
    assert np.isfinite(found.mean(0, "ndcg@10"))
