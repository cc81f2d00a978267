"""A real Chromium, where there is one, and what a page says to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Start Chromium; a machine without one skips the test and says so."""
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next((one for one in found if one), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    playwright: Any = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=list(_QUIET))
        yield browser
        browser.close()


class Visit:
    """A page in a browser of its own, with all that it asked for and complained of.

    Args:
        browser: of :func:`chromium`.
        address: of the page: a file, or an address of a server.
        settings: of Playwright's ``new_context``.
    """

    def __init__(self, browser: Any, address: Path | str, **settings: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1360, "height": 900}, **settings)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.requests.append(one.url))
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.on("dialog", lambda one: self.complaints.append(f"dialog {one.message}"))
        self.address = address.as_uri() if isinstance(address, Path) else address
        self.page.goto(self.address)
        if settings.get("java_script_enabled", True):
            self.page.wait_for_selector("html[data-ready]")

    def _hear(self, said: Any) -> None:
        if said.type == "error":
            self.complaints.append(said.text)

    def sites(self) -> list[str]:
        """The sites whose rows are seen, from top to bottom."""
        rows = "rows => rows.filter(one => !one.hidden).map(one => one.dataset.site)"
        found: list[str] = self.page.eval_on_selector_all("#sites tbody tr", rows)
        return found

    def goto(self, part: str) -> None:
        """Change the part of the address behind ``#``, as a link does."""
        self.page.evaluate("part => { location.hash = part; }", part)
        self.page.wait_for_timeout(100)

    def wait_until(self, condition: str) -> None:
        """Wait for up to 10 seconds until an expression of JavaScript is true.

        Playwright's ``wait_for_function`` evaluates text in the page, which its policy forbids.
        """
        for _ in range(200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"it did not come true within 10 seconds: {condition}")

    def close(self) -> None:
        """Close it; it asked for nothing but itself, and complained of nothing."""
        self.context.close()
        assert not self.complaints
        if self.address.startswith("file:"):
            assert {one.partition("#")[0] for one in self.requests} <= {self.address}
