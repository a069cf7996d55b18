"""The search page in a browser, with the answers of page_routes.py; with the real service: test_page_with_service.py."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from browser import chromium, new_page, serious_faults
from page_routes import ORIGIN, Routes, error, facts, found, hit

from jaxretr.serve.requests import MAX_CHARACTERS, MAX_FIELDS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def opened(browser: Any, address: str = "", **options: Any) -> tuple[Any, Routes, list[str]]:
    """A tab with routes that are set up by the caller before `tab.goto(ORIGIN + "/" + address)`."""
    tab, errors = new_page(browser, **options)
    return tab, Routes(tab), errors


def ten(index: str, body: Any) -> Any:
    """Ten hits, in another order in the index `other`."""
    hits = [hit(f"d{n}", 0.9 - n / 20, f"Title {n}", f"Passage number {n}. " * 40) for n in range(10)]
    if index == "other":
        hits = [*hits[1:4], hits[0], *hits[4:9], hit("new", 0.1, "New one", "Elsewhere.")]
    return found(*hits[: body["k"]])


# ---- passages --------------------------------------------------------------------------------------------------------


def test_a_hostile_passage_stays_text(browser: Any) -> None:
    tab, routes, errors = opened(browser)
    attack = '<img src=x onerror="document.title=1"><script>document.title=2</script>&amp;'
    routes.indexes = [facts("news", engine=attack, fields=[attack])]
    routes.info["model"]["name"] = attack
    routes.search = lambda index, body: found(
        hit(attack, 1.0, attack, attack, metadata={attack: attack}, parts={attack: 1.0})
    )
    tab.goto(f"{ORIGIN}/#q=script")
    tab.click(".open")
    assert tab.locator(".open").inner_text() == attack and attack in tab.locator(".text").inner_text()
    assert [tab.locator(f".facts {tag}").inner_text() for tag in ("dt", "dd")] == [attack, attack]
    assert not tab.locator("main img, main script, header img").count()
    assert tab.title().startswith("script ") and not errors
    routes.search = lambda index, body: error(422, attack)
    tab.press("#query", "Enter")
    assert attack in tab.locator(".fault").inner_text()
    assert not tab.locator("main img").count()


@pytest.mark.parametrize(
    "question, text, marks",
    [
        ("the café of Zürich", "A CAFE in Zurich; the cafeteria.", ["CAFE", "Zurich"]),
        ("where is it", "It is where it was.", ["It is where it"]),
        ("don't panic", "Don't PANIC: panicking is no use", ["Don't PANIC"]),
        ("東京", "東京都は京の東", ["東京"]),
        ("水", "水道と海水", ["水", "水"]),
        ("Straße 7", "straße 7, 77 STRASSE", ["straße 7"]),
        ("c++ (x)", "C, x, cx", ["C", "x"]),
        ("कि", "की कि", ["कि"]),
        ("", "", []),
    ],
)
def test_whole_words_of_the_question_are_marked(browser: Any, question: str, text: str, marks: list[str]) -> None:
    tab, _, _ = opened(browser)
    tab.goto(f"{ORIGIN}/")
    parts = tab.evaluate(
        "([question, text]) => marked(text, wanted(question)).map((part) => typeof part === 'string' ? part : [part.textContent])",
        [question, text],
    )
    assert [part[0] for part in parts if isinstance(part, list)] == marks
    assert "".join(part if isinstance(part, str) else part[0] for part in parts) == text


def test_a_long_text_opens_and_a_cut_one_is_fetched(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.search = lambda index, body: found(
        hit("a/b c", 1.0, "Long", "word " * 300, truncated=True, metadata={"year": 1999}),
        hit("s", 0.5, "Short", "short"),
    )
    routes.document = {"id": "a/b c", "title": "Long", "text": "word " * 300 + "the very end", "metadata": {}}
    tab.goto(f"{ORIGIN}/#q=end")
    tab.wait_for_selector(".hit")
    first, second = tab.locator(".hit").all()
    assert first.locator(".more").is_visible() and not second.locator(".more").is_visible()
    closed = first.bounding_box()["height"]
    first.locator(".open").click()
    tab.wait_for_selector("text=the very end")
    assert routes.seen[-1][1] == "/v1/news/doc?id=a%2Fb%20c"
    assert first.locator("mark").inner_text() == "end"
    assert first.bounding_box()["height"] > 2 * closed
    assert "1999" in first.inner_text()
    first.locator(".more").click()
    assert first.bounding_box()["height"] == closed


def test_parts_of_a_combined_model_are_a_bar_and_words(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.info["model"] = {"name": "spar", "parts": {"dense": 1.0, "lexical": 0.7}}
    routes.search = lambda index, body: found(
        hit("a", 0.8, "A", "a", parts={"dense": 0.6, "lexical": 0.2}),
        hit("b", 0.2, "B", "b", parts={"dense": 0.3, "lexical": -0.1}),
    )
    tab.goto(f"{ORIGIN}/#q=x")
    tab.wait_for_selector(".stack")
    widths = tab.evaluate("[...document.querySelectorAll('.stack i')].map((part) => part.style.width)")
    assert [float(width[:-1]) for width in widths] == pytest.approx(
        [75, 25, 37.5, 12.5], abs=0.01
    )  # of the longest, .8
    assert tab.locator(".parts").last.inner_text().split() == ["dense", "0.3000", "lexical", "-0.1000"]
    tab.locator("#weight").focus()
    with tab.expect_response("**/search"):  # The address changes before.
        tab.keyboard.press("ArrowRight")
    assert "weight=0.75" in tab.url
    assert routes.seen[-1][2]["lexical_weight"] == 0.75
    with tab.expect_response("**/search"):
        tab.click("#weight-own")
    assert "weight" not in tab.url
    assert "lexical_weight" not in routes.seen[-1][2]


# ---- what is asked ---------------------------------------------------------------------------------------------------


def test_controls_appear_where_the_service_has_what_they_need(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    tab.goto(f"{ORIGIN}/")
    tab.wait_for_selector("text=3 passages to search")
    for control in ("#exact", "#rerank", "#weight", "#add-filter", "#compare"):
        assert not tab.locator(control).is_visible(), control
    routes.indexes = [facts("news", targets=[0.9], fields=["year", "language"]), facts("other")]
    routes.info["reranker"] = {"name": "cross-encoder"}
    routes.search = lambda index, body: found(hit("a", 7.5, "A", "a", first_score=0.4), exact=body.get("exact", False))
    tab.reload()
    tab.fill("#query", "x")
    tab.check("#exact")
    tab.check("#rerank")
    tab.fill("#k", "25")
    tab.click("#add-filter")
    tab.select_option("#filters select", "year")
    tab.fill("#filters input", "2003")
    tab.press("#filters input", "Enter")
    tab.wait_for_selector("text=before re-ranking 0.4000")
    assert routes.seen[-1][2] == {
        "query": "x", "k": 25, "max_chars": 1500, "exact": True, "rerank": True, "where": {"year": ["2003", 2003]},
    }  # fmt: skip
    with tab.expect_response("**/search"):
        tab.click("text=Remove")
    assert "where" not in tab.url
    assert "where" not in routes.seen[-1][2]


def test_the_address_holds_the_search_and_the_back_button_returns(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.indexes = [facts("news", fields=["a=b%"]), facts("other")]
    routes.search = ten
    tab.goto(f"{ORIGIN}/")
    tab.fill("#query", "first & foremost = 100 %")
    tab.press("#query", "Enter")
    tab.wait_for_selector(".hit")
    tab.fill("#query", "second")
    tab.click("#add-filter")
    tab.fill("#filters input", "x=y&z")
    tab.select_option("#compare", "other")
    tab.wait_for_selector(".compared")
    shared = tab.url
    tab.go_back()
    tab.wait_for_selector("body:not(.compared)")
    assert tab.input_value("#query") == "first & foremost = 100 %" and tab.input_value("#compare") == ""
    tab.go_forward()
    tab.wait_for_selector(".compared")
    other, routes, _ = opened(browser)
    routes.indexes = [facts("news", fields=["a=b%"]), facts("other")]
    routes.search = ten
    other.goto(shared)
    other.wait_for_selector(".hit")
    assert other.input_value("#query") == "second" and other.input_value("#compare") == "other"
    assert routes.seen[-1][2]["where"] == {"a=b%": ["x=y&z"]}
    other.goto(f"{ORIGIN}/#q=x&index=gone")
    other.wait_for_selector("text=No index is called gone")


def test_searching_while_typing_waits_for_a_pause(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.search = ten
    tab.clock.install(time=0)
    tab.goto(f"{ORIGIN}/")
    tab.clock.pause_at(3_600_000)  # A key may take a loaded machine longer than the pause.

    def searched() -> list[str]:
        return [body["query"] for _, path, body, _ in routes.seen if path.endswith("/search")]

    tab.type("#query", "abc")
    tab.clock.run_for(10_000)
    assert not searched(), "it is off by default"
    tab.check("#typing")
    tab.press("#query", "End")
    for letter in "defgh":
        tab.type("#query", letter)
        tab.clock.run_for(20)
    tab.clock.run_for(220)
    assert not searched()
    tab.clock.run_for(20)
    tab.wait_for_selector(".hit")
    assert searched() == ["abcdefgh"]


def test_what_is_typed_while_the_service_starts_stays(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.search = ten
    starting = routes.list
    routes.list = lambda: error(503, "loading", **{"Retry-After": "1"})
    tab.goto(f"{ORIGIN}/#q=first")
    tab.wait_for_selector(".fault")
    tab.press("#query", "End")
    tab.type("#query", " and ")
    routes.list = starting
    tab.wait_for_selector(".hit")
    assert tab.input_value("#query") == "first and "
    assert routes.seen[-1][2]["query"] == "first", "the search of the address, which is shared"
    tab.press("#query", "Enter")
    tab.wait_for_url(lambda url: url.endswith("#q=first+and&index=news"))
    tab.go_back()
    tab.wait_for_url(lambda url: url.endswith("#q=first"))
    assert tab.input_value("#query") == "first"


def test_two_indexes_side_by_side_say_how_ranks_differ(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.indexes = [facts("news"), facts("other")]
    routes.search = ten
    tab.goto(f"{ORIGIN}/#q=title&compare=other")
    tab.wait_for_selector(".moved")
    first, second = (column.locator(".hit").all() for column in tab.locator(".column").all())
    assert "1 rank higher than in news" in second[0].text_content()
    assert "3 ranks lower than in news" in second[3].text_content()
    assert "same rank as in news" in second[5].text_content()
    assert "not found in news" in second[9].text_content() and "not found in other" in first[9].text_content()
    assert "9 of 10 in both" in tab.locator(".column header p").first.inner_text()
    assert tab.locator("#status").inner_text() == "10 results in news, 10 results in other"
    left, right = (column.bounding_box() for column in tab.locator(".column").all())
    assert left["y"] == right["y"] and left["x"] + left["width"] <= right["x"]


# ---- the keyboard alone ----------------------------------------------------------------------------------------------


def test_the_keyboard_alone_is_enough(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.indexes = [facts("news"), facts("other")]
    routes.search = ten

    def focused() -> str:
        return tab.evaluate("document.activeElement.id || document.activeElement.textContent")

    def press(*keys: str) -> str:
        for key in keys:
            tab.keyboard.press(key)
        return focused()

    tab.goto(f"{ORIGIN}/")
    tab.wait_for_selector("text=3 passages to search")
    assert press("Tab") == "skip"
    assert tab.locator("#skip").bounding_box()["y"] >= 0, "the skip link shows when it is focused"
    assert press("Enter") == "query"
    tab.keyboard.type("a/b jk title")  # In the box these keys are text.
    press("Home", "ArrowRight", "x", "ArrowLeft", "Delete")
    assert tab.input_value("#query") == "a/b jk title"
    press("Enter")
    tab.wait_for_selector(".hit")
    assert press("ArrowDown") == "Title 0"
    assert press("j", "ArrowDown") == "Title 2"
    assert press("k") == "Title 1"
    press("Enter")
    assert tab.locator(".opened .open").inner_text() == "Title 1"
    assert tab.locator(".opened .open").get_attribute("aria-expanded") == "true"
    press("Escape")
    assert not tab.locator(".opened").count() and focused() == "Title 1"
    assert press("Escape") == "query"
    assert press("ArrowDown", "ArrowUp") == "query"
    tab.evaluate("document.activeElement.blur()")
    assert press("/") == "query"
    assert tab.evaluate("getSelection().toString()") == "a/b jk title", "the old question is selected, to be typed over"
    outline = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "the focus shows"
    tab.select_option("#compare", "other")
    tab.wait_for_selector(".moved")
    press("/")
    assert press("ArrowDown", "ArrowDown", "ArrowRight") == "Title 2", "the other column's second"
    assert press("ArrowLeft") == "Title 1"


# ---- nothing, waiting, errors ----------------------------------------------------------------------------------------


def test_nothing_found_and_nothing_there_say_what_to_do(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.indexes = [facts("news", fields=["year"])]
    tab.goto(f"{ORIGIN}/#q=x&where=year=1")
    tab.wait_for_selector("text=No passage passes the filters")
    assert tab.locator("#status").inner_text() == "0 results in news"
    tab.click("text=Remove the filters")
    tab.wait_for_selector("text=This index has no passages")
    routes.indexes = [facts("empty", passages=0)]
    tab.goto(f"{ORIGIN}/")
    tab.reload()
    tab.wait_for_selector("text=This index is empty")
    routes.indexes = []
    tab.reload()
    tab.wait_for_selector("text=No index yet")
    tab.click("main button:has-text('Add passages')")
    assert tab.locator("#upload").is_visible()


@pytest.mark.parametrize(
    "status, title",
    [(404, "Not found"), (422, "The request was refused"), (500, "The service failed"), (507, "disk is full")],
)
def test_an_error_is_shown_as_the_service_words_it(browser: Any, status: int, title: str) -> None:
    tab, routes, _ = opened(browser)
    routes.search = lambda index, body: error(status, "k: what happened; what to do")
    tab.goto(f"{ORIGIN}/#q=x")
    tab.wait_for_selector("#columns [role=alert]")
    said = tab.locator("#columns [role=alert]").inner_text()
    assert title in said and "k: what happened; what to do" in said
    routes.search = ten
    tab.click("text=Try again")
    tab.wait_for_selector(".hit")
    assert not tab.locator("#columns [role=alert] strong").count()


def test_a_lost_connection_and_a_proxys_page_are_errors_too(browser: Any) -> None:
    tab, _, errors = opened(browser)
    tab.goto(f"{ORIGIN}/")
    tab.wait_for_selector("text=to search")
    tab.route("**/search", lambda route: route.abort())
    tab.fill("#query", "x")
    tab.press("#query", "Enter")
    tab.wait_for_selector("text=No answer from the service")
    tab.route("**/search", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
    tab.click("text=Try again")
    tab.wait_for_selector("text=The service answered 502")
    assert not errors


def test_a_busy_service_is_asked_again_after_the_time_it_names(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    answers = [error(429, "the queue is full", **{"Retry-After": "1"}), error(429, "full", **{"Retry-After": "60"})]
    routes.search = lambda index, body: answers.pop(0) if answers else ten(index, body)
    tab.goto(f"{ORIGIN}/#q=x")
    tab.wait_for_selector("text=Trying again in 1 s")
    assert "The service is busy" in tab.locator("#columns [role=alert]").inner_text()
    tab.wait_for_selector("text=Trying again in 60 s")
    tab.click("text=Try now")
    tab.wait_for_selector(".hit")


def test_a_starting_service_is_waited_for(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    starting = error(503, "the service is starting", **{"Retry-After": "1"})
    answers = [starting, starting]
    routes.list = lambda: answers.pop(0) if answers else (200, {"indexes": routes.indexes})
    routes.search = ten
    tab.goto(f"{ORIGIN}/#q=x&k=3")
    tab.wait_for_selector("text=The service is not ready")
    tab.fill("#query", "typed meanwhile")
    tab.press("#query", "Enter")
    tab.wait_for_selector(".hit")
    assert routes.seen[-1][2]["query"] == "typed meanwhile" and tab.locator(".hit").count() == 3


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(browser: Any) -> None:
    tab, routes, _ = opened(browser)

    def lists() -> Any:
        allowed = routes.seen[-1][3].get("authorization") == "Bearer s3cret"
        return (200, {"indexes": routes.indexes}) if allowed else error(401, "no key or a wrong one; send a key")

    routes.list = lists
    routes.search = ten
    tab.goto(f"{ORIGIN}/#q=x")
    tab.wait_for_selector("text=This service needs an API key")
    tab.click("text=Enter a key")
    tab.fill("#key-field", "schlüssel")
    tab.press("#key-field", "Enter")
    assert tab.locator("#key-dialog").is_visible(), "a header cannot hold it"
    tab.fill("#key-field", "wrong")
    tab.press("#key-field", "Enter")
    tab.wait_for_selector("text=The API key was not accepted")
    tab.click("text=Enter a key")
    tab.fill("#key-field", " s3cret ")
    tab.press("#key-field", "Enter")
    tab.wait_for_selector(".hit")
    assert "s3cret" not in tab.url and "s3cret" not in tab.content()
    assert tab.evaluate("[Object.values(sessionStorage).join(), Object.values(localStorage).join()]") == ["s3cret", ""]
    tab.click("#key")
    tab.click("text=Forget it")
    tab.wait_for_selector("text=This service needs an API key")


# ---- uploads ---------------------------------------------------------------------------------------------------------


def choose(tab: Any, lines: list[str] | bytes, name: str = "My Notes.jsonl") -> None:
    content = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
    if not tab.locator("#upload").is_visible():
        tab.click("#add")
    tab.set_input_files("#file", files=[{"name": name, "mimeType": "application/jsonl", "buffer": content}])


def written(routes: Routes) -> list[list[str]]:
    """The ids of each write."""
    return [[row["id"] for row in body["documents"]] for _, path, body, _ in routes.seen if path.endswith("/upsert")]


def test_a_file_becomes_an_index_in_batches_with_progress(browser: Any) -> None:
    tab, routes, errors = opened(browser)
    routes.search = ten
    busy = [error(429, "full", **{"Retry-After": "1"})]
    routes.write = lambda index, rows: (
        busy.pop(0) if busy and rows[0]["id"] == "64" else (200, {"sequence": 1, "added": len(rows), "replaced": 0})
    )
    tab.goto(f"{ORIGIN}/")
    rows = [json.dumps({"_id": n, "title": f"T{n}", "text": "x\u2028y", "year": 2000, "tags": [1]}) for n in range(130)]
    choose(
        tab,
        [
            *rows[:100],
            "",
            *rows[100:],
            json.dumps({"docid": "129", "contents": "again", "metadata": {"a": None, "__proto__": 1}}),
        ],
    )
    assert (
        tab.input_value("#into") == "my-notes" and "Creates the index my-notes" in tab.locator("#upload").inner_text()
    )
    tab.evaluate("""() => {
        window.seen = [];
        const bar = document.querySelector("#upload-bar");
        new MutationObserver(() => window.seen.push([bar.hidden, bar.value, bar.max])).observe(bar, {attributes: true});
    }""")
    tab.click("#upload-start")
    tab.wait_for_selector("text=trying again in 1 s")
    tab.wait_for_selector("text=130 passages added to my-notes, 1 replaced")
    assert tab.locator("#upload-text").inner_text().endswith("were left out: tags.")
    assert tab.evaluate("window.seen.filter(([hidden]) => !hidden)")[-1] == [False, 131, 131]
    assert [len(ids) for ids in written(routes)] == [64, 64, 64, 2], "the refused batch was sent again"
    assert [path for method, path, _, _ in routes.seen if method == "PUT"] == ["/v1/indexes/my-notes"]
    sent = [row for _, path, body, _ in routes.seen if path.endswith("/upsert") for row in body["documents"]]
    assert sent[0] == {"id": "0", "title": "T0", "text": "x\u2028y", "metadata": {"year": 2000}}
    assert sent[-1] == {"id": "129", "title": "", "text": "again", "metadata": {"a": None, "__proto__": 1}}, (
        "the last of an id stays"
    )
    tab.click("text=Search it")
    tab.wait_for_url(lambda url: "index=my-notes" in url)
    assert not tab.locator("#upload").is_visible() and not errors


@pytest.mark.parametrize(
    "line, reason",
    [
        ('{"_id": "2", "text": ', "line 3: not valid JSON"),
        ('["2"]', "line 3: not a JSON object"),
        ('{"text": "x"}', 'line 3: no "_id"'),
        ('{"_id": "2", "text": 7}', 'line 3: "text" is not a string'),
        ('{"_id": "2", "title": ""}', 'line 3: neither "text" nor "title"'),
        (b'{"_id": "2", "text": "\xff"}', "line 3: not UTF-8"),
        ('{"_id": "2", "text": "\\ud83d"}', 'line 3: "text" holds half of a surrogate pair'),
        (json.dumps({"_id": "🦉" * 513, "text": "x"}), 'line 3: "id" has more than 512 characters'),
        (
            json.dumps({"_id": "2", "text": "x" * (MAX_CHARACTERS + 1)}),
            'line 3: "text" has more than 200,000 characters',
        ),
        (
            json.dumps({"_id": "2", "text": "x", "abstract": "x" * 4097}),
            'line 3: "abstract" has more than 4,096 characters',
        ),
        (
            json.dumps({"_id": "2", "text": "x"} | dict.fromkeys(map(str, range(MAX_FIELDS + 1)), 1)),
            "line 3: more than 32 fields",
        ),
        (json.dumps({"_id": "2", "text": "x", "tweet": 2**53 + 1}), 'line 3: "tweet" is a larger number'),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_sent(browser: Any, line: str | bytes, reason: str) -> None:
    tab, routes, _ = opened(browser)
    tab.goto(f"{ORIGIN}/")
    most = {"_id": "🦉" * 512, "text": "x" * MAX_CHARACTERS, "n": 2**53 - 1} | dict.fromkeys(
        map(str, range(MAX_FIELDS - 1)), 1
    )
    good = json.dumps(most).encode() + b"\n\n"
    choose(tab, good + (line if isinstance(line, bytes) else line.encode()) + b"\n" + good)
    tab.click("#upload-start")
    tab.wait_for_selector("#upload-fault strong")
    assert f"My Notes.jsonl, {reason}" in tab.locator("#upload-fault").inner_text()
    assert not [method for method, path, _, _ in routes.seen if method == "PUT" or path.endswith("upsert")]
    choose(tab, good)  # The corrected file goes through.
    tab.click("#upload-start")
    tab.wait_for_selector("text=1 passage added to my-notes")


def test_an_upload_keeps_to_the_services_limit_of_bytes(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.info["limits"] = {"body_bytes": 1000}
    tab.goto(f"{ORIGIN}/")
    rows = [json.dumps({"_id": str(n), "text": "日" * 50, "tag": "é\n" * 20}, ensure_ascii=False) for n in range(9)]
    choose(tab, [*rows, json.dumps({"_id": "long", "text": "é" * 500})])
    tab.click("#upload-start")
    tab.wait_for_selector("text=line 10: more than the 1,000 bytes that the service takes at a time")
    assert written(routes) == []
    choose(tab, rows)
    tab.click("#upload-start")
    tab.wait_for_selector("text=9 passages added to my-notes")
    sizes = [
        len(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
        for _, path, body, _ in routes.seen
        if path.endswith("/upsert")
    ]
    assert len(sizes) > 1 and max(sizes) <= 1000


def test_an_upload_names_the_lines_that_the_service_refused(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.write = lambda index, rows: (
        (200, {"sequence": 1, "added": 0, "replaced": len(rows)})
        if rows[0]["id"] == "0"
        else error(507, "the disk is full")
    )
    tab.goto(f"{ORIGIN}/")
    choose(tab, [json.dumps({"_id": str(n), "text": "x"}) for n in range(100)])
    tab.fill("#into", "news")
    assert "Adds to news, which has 3 passages" in tab.locator("#into-hint").inner_text()
    tab.click("#upload-start")
    tab.wait_for_selector("text=lines 65 to 100: the disk is full")
    assert "64 passages before them were added" in tab.locator("#upload-fault").inner_text()


def test_an_upload_can_be_cancelled(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.write = lambda index, rows: (
        (200, {"sequence": 1, "added": len(rows), "replaced": 0})
        if rows[0]["id"] == "0"
        else error(429, "full", **{"Retry-After": "60"})
    )
    tab.goto(f"{ORIGIN}/")
    choose(tab, [json.dumps({"_id": str(n), "text": "x"}) for n in range(100)])
    tab.click("#upload-start")
    tab.wait_for_selector("text=trying again in 60 s")
    tab.keyboard.press("Escape")
    assert tab.locator("#upload").is_visible(), "Escape does not hide an upload that goes on"
    tab.click("#upload-cancel")
    tab.wait_for_selector("text=Cancelled; 64 passages of the file are in my-notes")
    tab.click("#upload-cancel")
    assert not tab.locator("#upload").is_visible()


def test_an_upload_checks_the_name(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.indexes = [facts("fixed", writable=False)]
    tab.goto(f"{ORIGIN}/")
    tab.click("#add")
    tab.click("#upload-start")
    tab.wait_for_selector("text=Choose a file first")
    choose(tab, ['{"_id": "1", "text": "x"}'], name="fixed.jsonl")
    tab.click("#upload-start")
    tab.wait_for_selector("#upload-fault >> text=fixed is read-only")
    tab.fill("#into", "../etc")
    tab.click("#upload-start")
    tab.wait_for_selector("text=Give the index a name")
    assert not [method for method, *_ in routes.seen if method != "GET"]


def test_a_compressed_file_and_a_dropped_one_are_read(browser: Any) -> None:
    import gzip

    tab, routes, _ = opened(browser)
    tab.goto(f"{ORIGIN}/")
    choose(tab, gzip.compress(b'{"_id": "1", "text": "x"}'), name="packed.jsonl.gz")
    tab.click("#upload-start")
    tab.wait_for_selector("text=1 passage added to packed")
    tab.click("#upload-cancel")
    tab.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File(['{"_id": "2", "text": "y"}'], "dropped.jsonl"));
        document.querySelector("main").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
    }""")
    assert tab.input_value("#into") == "dropped"
    tab.click("#upload-start")
    tab.wait_for_selector("text=1 passage added to dropped")
    assert written(routes) == [["1"], ["2"]]


# ---- looks -----------------------------------------------------------------------------------------------------------


def test_the_theme_follows_the_system_until_it_is_chosen(browser: Any) -> None:
    tab, _, _ = opened(browser, scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    tab.goto(f"{ORIGIN}/")
    dark = tab.evaluate(background)
    tab.click("#theme")
    light = tab.evaluate(background)
    assert sum(map(int, re.findall(r"\d+", dark))) < 150 < 600 < sum(map(int, re.findall(r"\d+", light)))
    tab.reload()
    assert tab.evaluate(background) == light and tab.locator("#theme").inner_text() == "Dark"


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_axe_finds_no_serious_fault_and_nothing_is_wider_than_the_screen(browser: Any, look: str) -> None:
    size = {"width": 320, "height": 640} if look == "narrow" else {}
    tab, routes, errors = opened(browser, scheme="dark" if look == "dark" else "light", **size)
    routes.indexes = [
        facts("news", fields=["year"], targets=[0.9]),
        facts("other-index-with-a-very-long-name-that-needs-room"),
    ]
    routes.info = {
        "model": {"name": "a/long/path/of/a/model" * 3, "parts": {"dense": 1.0, "lexical": 0.7}},
        "reranker": {},
    }
    routes.search = lambda index, body: found(
        hit(
            "w" * 90,
            0.9,
            "T" * 90,
            "x" * 200 + " title",
            parts={"dense": 0.5, "lexical": 0.4},
            metadata={"f" * 60: "v" * 90},
        ),
        *ten(index, body)[1]["results"][0]["hits"],
    )

    def check(state: str) -> None:
        assert not serious_faults(tab), state
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{state}: scrolls sideways"

    tab.goto(f"{ORIGIN}/")
    tab.wait_for_selector("text=3 passages to search")
    check("no question yet")
    tab.goto(f"{ORIGIN}/#q=title&compare={routes.indexes[1]['name']}&where=year=2000")
    tab.wait_for_selector(".hit")
    tab.locator(".open").first.click()
    check("two indexes and a filter")
    tab.click("#add")
    check("the upload")
    tab.click("#upload-start")
    check("the upload, refused")
    tab.keyboard.press("Escape")
    tab.click("#key")
    check("the key")
    tab.keyboard.press("Escape")
    routes.search = lambda index, body: error(429, "the queue is full" + "!" * 90, **{"Retry-After": "50"})
    tab.press("#query", "Enter")
    tab.wait_for_selector("text=Try now")
    check("an error")
    routes.search = lambda index, body: found()
    tab.press("#query", "Enter")
    tab.wait_for_selector("text=Nothing found")
    check("nothing found")
    assert not errors


def test_paper_has_every_word_and_no_controls(browser: Any) -> None:
    tab, routes, _ = opened(browser)
    routes.search = ten
    tab.goto(f"{ORIGIN}/#q=title")
    tab.wait_for_selector(".hit")
    tab.emulate_media(media="print")
    assert not tab.locator("#index").is_visible() and not tab.locator("#add").is_visible()
    shown, whole = tab.evaluate(
        "(() => { const text = document.querySelector('.text'); return [text.clientHeight, text.scrollHeight]; })()"
    )
    assert shown == whole
