"""The server's page in a real browser: fixtures, a plug-in of the tests of the page.

Skipped where there is no Chromium, unless SLIPSTREAM_NEED_BROWSER is set: then that fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, sync_playwright

from live import live, smollm2
from pages import LIMIT, Open, priced, toy
from test_report_browser import NAMES


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        if os.environ.get("SLIPSTREAM_NEED_BROWSER"):
            pytest.fail("SLIPSTREAM_NEED_BROWSER is set, and there is no Chromium on PATH")
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")
    with sync_playwright() as p:
        chromium = p.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def open_page(browser: Browser) -> Open:
    """A page in a fresh context. An error in its console, or a request to anything but the server, fails the test."""

    @contextmanager
    def opened(url: str, refused: tuple[int, ...] = (), gone: bool = False, **context: Any) -> Iterator[Page]:
        settings: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **context}
        faults: list[str] = []

        def guard(route: Route) -> None:
            if urlsplit(route.request.url).netloc == urlsplit(url).netloc:
                return route.fallback()
            faults.append(f"asked {route.request.url}")
            return route.abort()

        def heard(kind: str, text: str) -> None:
            expected = any(f"status of {status}" in text for status in refused)
            expected = expected or (gone and ("ERR_CONNECTION_REFUSED" in text or "ERR_INCOMPLETE" in text))
            if kind in ("error", "warning") and not expected:
                faults.append(f"{kind}: {text}")

        made = browser.new_context(**settings)
        made.set_default_timeout(LIMIT)
        made.route("**/*", guard)
        page = made.new_page()
        page.on("console", lambda message: heard(message.type, message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        try:
            page.goto(url)
            yield page
            assert faults == []
        finally:
            made.close()

    return opened


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """SmolLM2 with a fixed draft length: what is drafted does not hang on times."""
    with live(smollm2(draft="suffix,predicted", n_slots=2, k=4)) as url:
        yield url


@pytest.fixture(scope="module")
def toy_server() -> Iterator[str]:
    with live(toy(policy=priced())) as url:
        yield url
