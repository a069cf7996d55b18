"""Chromium without a window, for tests of the search page."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running browser; skips the test where playwright or Chromium is not installed."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on the path (Debian: apt install chromium); or set CHROMIUM=/path/to/it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def new_page(browser: Any, *, width: int = 1000, height: int = 800, scheme: str = "light") -> tuple[Any, list[str]]:
    """A new tab of its own storage, and the list of errors of its scripts and its policy, which the test checks."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
    return page, errors


def serious_faults(page: Any) -> list[str]:
    """What axe-core finds of serious or critical impact, one line each."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
