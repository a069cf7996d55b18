"""The search page over a real service of a combined model (SPAR's kind), a re-ranker and an approximate index, in a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import chromium, new_page
from running import running
from serving import SMALL
from tiny import DATA

from jaxretr.data.readers import read_corpus
from jaxretr.embeddings.fingerprints import model_fingerprint
from jaxretr.indexes.certified.process import scann_problem
from jaxretr.indexes.index import Document
from jaxretr.indexes.live.index import LiveIndex
from jaxretr.indexes.live.settings import LiveSettings
from jaxretr.models.any_scorer import load_scorer
from jaxretr.models.combined_encoder import CombinedEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.service import Service

pytestmark = pytest.mark.skipif(scann_problem() is not None, reason="ScaNN does not work here")

QUESTION = "when did the oil crisis begin?"


@pytest.fixture(scope="module")
def address(
    combined: CombinedEncoder, tiny_cross_encoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Of a service whose live index `wiki` has a ScaNN snapshot of the test passages."""
    passages = list(read_corpus(DATA))
    index = LiveIndex.open(
        tmp_path_factory.mktemp("spar") / "wiki",
        name="wiki",
        model="spar",
        model_fingerprint=model_fingerprint(combined, "passage"),
        dim=combined.config.embedding_size,
        settings=LiveSettings(scann_from=len(passages)),
        background=False,
    )
    documents = [Document(each.id, each.title, each.text) for each in passages]
    index.upsert(documents, combined.encode_passages(passages))
    index.upkeep.compact()
    service = Service(combined, {"wiki": index}, reranker=load_scorer(tiny_cross_encoder), settings=SMALL)
    service.start()
    with running(create_app(service)) as address:
        yield address
    service.close()


class Shown:
    """What the page asked for last, and what it shows."""

    def __init__(self, tab: Any, address: str):
        self.tab, self.address = tab, address
        self.body: dict[str, Any] = {}

    def after(self, action: Any) -> list[dict[str, Any]]:
        """Does something that searches; returns the API's own hits for what that should ask.

        Raises:
          AssertionError: the page shows other hits, ranks or scores than the API gives.
        """
        with self.tab.expect_response("**/v1/wiki/search") as answered:
            action()
        self.body = answered.value.request.post_data_json
        self.tab.wait_for_function("() => !document.querySelector('[aria-busy]')")
        hits = httpx.post(f"{self.address}/v1/wiki/search", json=self.body).json()["results"][0]["hits"]
        items = self.tab.locator(".hit").all()
        assert [item.get_attribute("data-id") for item in items] == [hit["id"] for hit in hits]
        shown = [float(item.locator(".score").inner_text().split()[-1]) for item in items]
        assert shown == pytest.approx([hit["score"] for hit in hits], abs=1e-4)  # It shows four decimals or more.
        return hits

    def bars(self) -> list[list[float]]:
        """The pieces of each hit's bar in percent of its width, below zero where they are drawn so."""
        return self.tab.evaluate(
            """[...document.querySelectorAll('.hit')].map((hit) => [...hit.querySelectorAll('.stack i')].map(
                (piece) => parseFloat(piece.style.width) * (piece.className === 'below' ? -1 : 1)))"""
        )

    @property
    def line(self) -> str:
        """The line above the hits."""
        return self.tab.locator("text=round trip").inner_text()


def assert_bars_add_up(bars: list[list[float]], hits: list[dict[str, Any]], score: str = "score") -> None:
    """The pieces, on the scale of the longest bar, are the API's parts, and their sum is the score."""
    longest = max(sum(map(abs, hit["parts"].values())) for hit in hits)
    for bar, hit in zip(bars, hits, strict=True):
        pieces = [piece * longest / 100 for piece in bar]
        # A width has six digits.
        assert pieces == pytest.approx(list(hit["parts"].values()), abs=1e-4 * longest)
        assert sum(pieces) == pytest.approx(hit[score], abs=2e-4 * longest)


def test_bars_weight_and_switches_do_what_the_api_does(address: str) -> None:
    with chromium() as browser:
        tab, errors = new_page(browser)
        page = Shown(tab, address)
        asked = {"query": QUESTION, "k": 10, "max_chars": 1500}

        hits = page.after(lambda: tab.goto(f"{address}/#q={QUESTION.replace(' ', '+')}"))
        assert page.body == asked and page.line.startswith("approximate")
        assert_bars_add_up(page.bars(), hits)
        orders = [[hit["id"] for hit in hits]]

        # The slider: without the lexical part, with four times its weight, and back.
        tab.locator("#weight").focus()
        for key, weight in (("Home", 0), ("End", 2)):
            hits = page.after(lambda key=key: tab.keyboard.press(key))
            assert page.body == {**asked, "lexical_weight": weight}
            assert_bars_add_up(page.bars(), hits)
            orders.append([hit["id"] for hit in hits])
            assert all((hit["parts"]["lexical"] != 0) == (weight > 0) for hit in hits)
        assert orders[2] not in orders[:2], "the weight changes the order"
        hits = page.after(lambda: tab.click("#weight-own"))
        assert page.body == asked and [hit["id"] for hit in hits] == orders[0]

        page.after(lambda: tab.check("#exact"))
        assert page.body == {**asked, "exact": True} and page.line.startswith("exact")

        hits = page.after(lambda: tab.check("#rerank"))
        assert page.body == {**asked, "exact": True, "rerank": True} and "re-rank" in page.line
        assert_bars_add_up(page.bars(), hits, "first_score")
        assert [hit["id"] for hit in hits] != orders[0]
        before = [float(text.split()[-1]) for text in tab.locator("text=before re-ranking").all_inner_texts()]
        assert before == pytest.approx([hit["first_score"] for hit in hits], abs=1e-4)
        page.after(lambda: tab.uncheck("#exact"))
        assert page.body == {**asked, "rerank": True} and page.line.startswith("approximate")
        assert not errors
