"""The search page with the real service behind it, in a browser."""

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import chromium, new_page
from running import running
from tiny import DATA

from jaxretr.indexes.opening import open_index
from jaxretr.models.dual_encoder import DualEncoder
from jaxretr.serve.app import create_app
from jaxretr.serve.keys import Key, Keys
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings

ATTACK = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def service(encoder: DualEncoder, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with the index `wiki`, and a folder for new ones; not started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXRETR_CACHE", str(tmp_path_factory.mktemp("cache")))
        service = Service(
            encoder,
            {"wiki": open_index(str(store), encoder, DATA, name="wiki")},
            settings=Settings(max_batch_tokens=32),
            data=tmp_path_factory.mktemp("data"),
            make=lambda folder, name: open_index(str(folder), encoder, name=name),
        )
    yield service
    service.close()


def upload(tab: Any, name: str, rows: list[dict[str, Any]]) -> None:
    content = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    tab.click("#add")
    tab.set_input_files(
        "#file", files=[{"name": f"{name}.jsonl.gz", "mimeType": "application/gzip", "buffer": content}]
    )
    tab.click("#upload-start")


def test_the_page_waits_searches_uploads_and_compares(browser: Any, service: Service, encoder: DualEncoder) -> None:
    keys = Keys([Key("reader", frozenset({"write"}), hashlib.sha256(b"s3cret").hexdigest())])
    with running(create_app(service, keys=keys)) as address:
        tab, errors = new_page(browser)
        tab.goto(f"{address}/#q=the+oil+crisis&k=5")
        tab.click("text=Enter a key")
        tab.fill("#key-field", "s3cret")
        tab.press("#key-field", "Enter")
        tab.wait_for_selector("text=The service is not ready")
        service.start()
        tab.click("text=Try now")
        tab.wait_for_selector(".hit")
        headers = {"Authorization": "Bearer s3cret"}
        asked = httpx.post(f"{address}/v1/wiki/search", json={"query": "the oil crisis", "k": 5}, headers=headers)
        hits = asked.json()["results"][0]["hits"]
        assert [item.get_attribute("data-id") for item in tab.locator(".hit").all()] == [hit["id"] for hit in hits]
        assert tab.locator(".hit .text").first.inner_text() == hits[0]["text"]

        rows = [{"_id": f"n/{n}", "title": f"Note {n}", "text": f"About {n}.", "year": n % 7} for n in range(150)]
        rows.append({"_id": "n/1", "title": ATTACK, "text": "Replaced. " + "word " * 1000 + "the very end", "year": 50})
        upload(tab, "notes", rows)
        tab.wait_for_selector("text=150 passages added to notes, 1 replaced", timeout=60_000)
        tab.click("text=Search it")
        tab.click("#add-filter")
        tab.fill("#filters input", "50")
        tab.press("#filters input", "Enter")
        tab.wait_for_selector("text=1 result in notes", state="attached")
        tab.click(".open")
        tab.wait_for_selector("text=the very end")
        assert tab.locator(".open").inner_text() == ATTACK and not tab.locator("main img").count()
        tab.fill("#filters input", "51")
        tab.press("#filters input", "Enter")
        tab.wait_for_selector("text=Nothing found")
        tab.click("text=Remove the filters")
        tab.select_option("#compare", "wiki")
        tab.wait_for_selector("#column-wiki")
        tab.wait_for_selector("text=5 results in notes, 5 results in wiki", state="attached")
        tab.reload()
        tab.wait_for_selector("text=5 results in notes, 5 results in wiki", state="attached")
        assert not errors

        tab.click("#key")
        tab.click("text=Forget it")
        tab.wait_for_selector("text=a key is needed")


def test_the_apis_own_page_runs_under_the_same_policy(browser: Any, service: Service) -> None:
    with running(create_app(service)) as address:
        tab, errors = new_page(browser)
        tab.goto(f"{address}/docs")
        tab.wait_for_selector("summary:has-text('/v1/embeddings')")
        assert not errors
