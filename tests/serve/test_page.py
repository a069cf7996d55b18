"""The search page as it is sent, and one search in a browser. The other tests in a browser: test_page_in_browser.py."""

import asyncio
import base64
import hashlib
import re

import pytest
from browser import chromium, new_page
from page_routes import ORIGIN, Routes, found, hit
from serving import client_of
from starlette.requests import Request
from starlette.responses import Response

from jaxretr.serve import server
from jaxretr.serve.logs import RequestLog
from jaxretr.serve.page import PAGE, answer_page, read_page
from jaxretr.serve.settings import Settings


def test_the_policy_allows_the_pages_own_scripts_and_nothing_from_elsewhere() -> None:
    content, headers = read_page(PAGE)
    assert content == PAGE.read_bytes()
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for kind in ("script", "style"):
        inline = re.findall(rf"<{kind}[^>]*>(.*?)</{kind}>", content.decode(), re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inline]
        assert policy[f"{kind}-src"] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert not re.findall(rb"https?://(?!www\.w3\.org/2000/svg)", content), "the page names another origin"
    assert "no-cache" in headers["cache-control"] and re.fullmatch(r'"[0-9a-f]{32}"', headers["etag"])


def test_a_browser_that_has_the_page_is_not_sent_it_again() -> None:
    def ask(**headers: str) -> Response:
        sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return answer_page(PAGE, Request({"type": "http", "headers": sent}))

    content, headers = read_page(PAGE)
    first = ask()
    assert (first.status_code, first.body) == (200, content) and headers.items() <= dict(first.headers).items()
    again = ask(if_none_match=f'"other", W/{headers["etag"]}')
    assert (again.status_code, again.body) == (304, b"")
    assert ask(if_none_match='"other"').status_code == 200


def test_a_service_that_starts_sends_the_page_already() -> None:
    door = server._Door(lambda: pytest.fail("nothing starts it"), Settings(), None, RequestLog(False), "http://test")

    async def asked() -> None:
        async with client_of(door) as client:
            assert (await client.get("/")).content == read_page(PAGE)[0]
            assert (await client.get("/v1/indexes")).status_code == 503, "which the page shows, and asks again"

    asyncio.run(asked())


def test_a_search_shows_titles_marked_words_scores_and_times() -> None:
    with chromium() as browser:
        tab, errors = new_page(browser)
        routes = Routes(tab)
        routes.search = lambda index, body: found(
            hit("p7", 0.71234, "Public service", "The president appoints the chairman."), hit("p9", 0.5, "", "Another.")
        )
        tab.goto(f"{ORIGIN}/")
        tab.fill("#query", "Who appoints the CHAIRMAN?")
        tab.press("#query", "Enter")
        tab.wait_for_selector(".hit")
        assert tab.locator(".open").all_inner_texts() == ["Public service", "p9"]
        assert tab.locator(".hit mark").all_inner_texts() == ["appoints", "chairman"]
        assert "0.7123" in tab.locator(".hit").first.inner_text()
        line = tab.locator(".column header p").inner_text()
        assert "4.5 ms" in line and "round trip" in line
        assert tab.locator("#status").inner_text() == "2 results in news"
        assert routes.seen[-1][2] == {"query": "Who appoints the CHAIRMAN?", "k": 10, "max_chars": 1500}
        assert "Who" in tab.title() and not errors
