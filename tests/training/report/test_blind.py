"""`jaxretr judge`: a page that shows two systems without their names, and tests the votes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, new_page, serious_faults
from scipy import stats
from tiny import DATA

from jaxretr import cli
from jaxretr.data.corpus import Corpus, Passage
from jaxretr.data.readers import read_beir
from jaxretr.evaluate.searches import bm25_search
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.training.report.blind import BlindPage, judge

BEIR = read_beir(DATA, "train")
IDS = [question.id for question in BEIR.questions]
HOSTILE = "<script>document.title = 'taken'</script>"


def run_file(path: Path, ranked: dict[str, list[str]]) -> Path:
    """A TREC run of these passages, best first."""
    lines = [f"{id} Q0 {doc} {rank} {-rank} x\n" for id, docs in ranked.items() for rank, doc in enumerate(docs, 1)]
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> BlindPage:
    """Two runs that agree on the first question, over passages of which one is no friend."""
    folder, docs = tmp_path_factory.mktemp("blind"), list(BEIR.corpus.ids)
    first = {id: docs[n : n + 3] for n, id in enumerate(IDS)}
    second = {id: docs[n : n + 3] if n == 0 else docs[n + 1 : n + 4] for n, id in enumerate(IDS)}
    rows = [BEIR.corpus[row] for row in range(len(docs))]
    rows[4] = Passage(docs[4], HOSTILE, f"{HOSTILE} {BEIR.questions[3].text}")
    corpus = Corpus.from_passages(rows)
    # Ids that are names of every object in JavaScript.
    odd = dict(zip(IDS, ["constructor", "__proto__", *IDS[2:]], strict=True))
    first, second = ({odd[id]: ids for id, ids in run.items()} for run in (first, second))
    questions = [dataclasses.replace(question, id=odd[question.id]) for question in BEIR.questions]
    runs = [run_file(folder / "first.trec", first), run_file(folder / "second.trec", second)]
    return judge(*runs, corpus=corpus, queries=questions, out=folder / "page.html", hits=3)


def test_questions_on_which_the_systems_differ_are_shown(page: BlindPage) -> None:
    assert sorted(page.shown) == sorted(["__proto__", *IDS[2:]]) and (page.same, page.asked) == (1, len(IDS))
    assert 0 < page.overlap < 1
    text = page.out.read_text(encoding="utf-8")
    assert "http" not in text, "nothing to fetch"
    lefts = {text.split(f'data-id="{id}" data-left="')[1][0] for id in page.shown}
    assert lefts == {"0", "1"}, "each system is on both sides"


def test_nothing_on_the_page_tells_which_is_which(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    docs = list(BEIR.corpus.ids)
    copies = Corpus.from_passages(
        [*(BEIR.corpus[row] for row in range(20)), dataclasses.replace(BEIR.corpus[0], id="copy")]
    )
    long = run_file(tmp_path / "long.trec", dict.fromkeys(IDS, docs[:6]))
    others = {id: docs[n + 1 : n + 3] for n, id in enumerate(IDS[2:])}
    short = run_file(tmp_path / "short.trec", {IDS[1]: ["copy", docs[1]], **others})
    found = judge(long, short, corpus=copies, queries=BEIR.questions, out=tmp_path / "page.html")
    text = found.out.read_text(encoding="utf-8")
    assert text.count("<li>") == 2 * 2 * len(found.shown), "as many passages of both"
    assert "<mark>" not in text, "BM25's passages have more of the question's words"
    assert sorted(found.shown) == sorted(IDS[2:]) and found.same == 1, "a copy is no other passage"
    assert found.asked == len(IDS) - 1 and f"finds nothing for 1 of {len(IDS)} questions" in caplog.text


def test_a_repeated_question_is_judged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    docs, questions = list(BEIR.corpus.ids), list(BEIR.questions)
    again = [dataclasses.replace(each, id=f"{each.id}-again", text=f" {each.text.upper()}") for each in questions]
    runs = [
        run_file(tmp_path / f"{start}.trec", {each.id: docs[start : start + 3] for each in [*questions, *again]})
        for start in (0, 1)
    ]
    found = judge(*runs, corpus=BEIR.corpus, queries=[*questions, *again], out=tmp_path / "page.html")
    assert sorted(found.shown) == sorted(IDS) and found.asked == len(IDS)
    assert f"{len(IDS)} questions repeat" in caplog.text


def test_votes_are_counted_tested_and_kept(page: BlindPage) -> None:
    with chromium() as browser:
        tab, errors = new_page(browser)
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.goto(page.out.as_uri())
        assert "first.trec" not in tab.locator("body").inner_text() and not serious_faults(tab)
        for number in range(len(page.shown)):
            left = tab.locator("article:visible").get_attribute("data-left")
            # The first system wins all but the last two, of which one is lost and one is a tie.
            wanted = len(page.shown) - number
            key = "0" if wanted == 1 else {True: "ArrowLeft", False: "ArrowRight"}[(left == "0") == (wanted > 2)]
            tab.keyboard.press(key)
            if number == 2:
                tab.reload()
                # Held keys and Shift do not vote; a vote can be changed.
                tab.keyboard.down("Shift")
                tab.keyboard.press("ArrowLeft")
                tab.keyboard.up("Shift")
                tab.click("#back")
                assert "; 3 judged" in tab.locator("#place").inner_text()
                tab.keyboard.press(key)
        assert "; all judged" in tab.locator("#place").inner_text()
        tab.click("#end")
        rows = [row.split("\t") for row in tab.locator("#tally").inner_text().splitlines()]
        won = len(page.shown) - 2
        assert [count for _, count in rows] == [str(won), "1", "1"] and rows[0][0].endswith("first.trec")
        p = float(tab.locator("#test").inner_text().removeprefix("p = "))
        assert p == pytest.approx(stats.binomtest(1, won + 1).pvalue, rel=0.06)
        tab.reload()
        tab.keyboard.press("ArrowLeft")
        assert (
            tab.locator("#tally").inner_text().count(str(won)) >= 1 and tab.locator("[data-vote]:enabled").count() == 0
        )
        with tab.expect_download() as download:
            tab.click("#save")
        saved: Any = json.loads(Path(download.value.path()).read_text())
        better = [vote["better"] for vote in saved["votes"]]
        assert better.count(None) == 1 and better.count(saved["systems"][0]) == won
        assert tab.title() != "taken" and not errors
        tab.click("#again")
        assert "; 0 judged" in tab.locator("#place").inner_text() and not tab.locator("#result").is_visible()


def test_where_the_browser_keeps_nothing_votes_count_and_can_be_forgotten(page: BlindPage) -> None:
    with chromium() as browser:
        tab, errors = new_page(browser)
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('denied'); } })")
        tab.goto(page.out.as_uri())
        tab.keyboard.press("0")
        assert "; 1 judged; this browser keeps nothing" in tab.locator("#place").inner_text()
        tab.click("#again")
        assert "; 0 judged" in tab.locator("#place").inner_text() and not errors


@pytest.mark.parametrize("a, b", [(0, 0), (1, 0), (0, 5), (7, 3), (20, 31), (400, 450)])
def test_the_sign_test_is_exact(page: BlindPage, a: int, b: int) -> None:
    with chromium() as browser:
        tab, _ = new_page(browser)
        tab.goto(page.out.as_uri())
        p = stats.binomtest(a, a + b).pvalue if a + b else 1.0
        assert tab.evaluate(f"signTest({a}, {b})") == pytest.approx(p, rel=1e-9)


def test_what_cannot_be_judged_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = list(BEIR.corpus.ids)
    one = run_file(tmp_path / "one.trec", dict.fromkeys(IDS, docs[:2]))
    other = run_file(tmp_path / "other.trec", {id: ["nowhere"] for id in IDS})
    foreign = run_file(tmp_path / "foreign.trec", {"another": docs[:2]})
    same = run_file(tmp_path / "same.trec", dict.fromkeys(IDS, docs[:2]))
    given = {"corpus": DATA, "queries": BEIR.questions, "out": tmp_path / "page.html"}
    for second, error, words in (
        (one, UsageError, "named twice"),
        (other, UserError, "other.trec: passage 'nowhere' is not in the corpus"),
        (foreign, UserError, "foreign.trec: has none of the questions"),
        (same, UserError, "the same first 5 passages for every question"),
    ):
        with pytest.raises(error, match=words):
            judge(one, second, **given)
    monkeypatch.chdir(tmp_path)
    one.with_name("BM25").write_text(one.read_text())
    with pytest.raises(UsageError, match="both systems are called BM25"):
        judge("BM25", "bm25", **given)
    with pytest.raises(UsageError, match="hits=0: must be at least 1"):
        judge(one, other, **given, hits=0)
    with pytest.raises(UsageError, match="no other file is replaced"):
        judge(one, "bm25", **{**given, "out": one})
    assert not (tmp_path / "page.html").exists()
    words = ["judge", one, "bm25", "--corpus", DATA, "--queries", DATA, "--out", tmp_path / "page.html", "--count", 2]
    assert cli.main([str(word) for word in words]) == 0
    assert f"page.html: 2 of {len(IDS)} questions to judge" in capsys.readouterr().out
    found = bm25_search(BEIR.corpus)(BEIR.questions, 1)[1]
    assert any(
        BEIR.corpus.texts[BEIR.corpus.row(hits[0])][:20] in (tmp_path / "page.html").read_text() for hits in found
    )
