"""The page of one run, kept up to date for those that ask a server for it."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run
from torchtap.show.live.run_state import RunState, state_of
from torchtap.show.page.build import page_data, page_html

LEAST_PAUSE = 1.0
"""Seconds from one building to the next, at least."""
_SHARE = 4.0
"""How many times as long as a building takes the next one comes: it takes a fifth of a core."""
_LEAST_ZIPPED = 1024
NOTHING_ELSE = "default-src 'none'; frame-ancestors 'none'"
"""The policy of what is no page."""


@dataclass(frozen=True, slots=True)
class Body:
    """An answer to a request.

    Attributes:
        content: plain.
        zipped: the same by gzip; ``None`` of what is short.
        kind: its media type.
        tag: changes whenever the content does.
        policy: the content security policy.
    """

    content: bytes
    zipped: bytes | None
    kind: str
    tag: str
    policy: str


def body_of(text: str, kind: str, policy: str) -> Body:
    """Return a text as a body."""
    content = text.encode("utf-8", "backslashreplace")
    zipped = gzip.compress(content, 6, mtime=0) if len(content) >= _LEAST_ZIPPED else None
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return Body(content, zipped, f"{kind}; charset=utf-8", tag, policy)


class ServedRun:
    """One run whose page is served. Several threads may ask.

    Args:
        path: of the run, which is opened when it is asked for first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._run: Run | None = None
        self._state = RunState("")
        self._version = 0
        self._looked = -1.0
        self._built: dict[str, tuple[int, Body]] = {}

    @property
    def state(self) -> RunState:
        """Return the state of the run."""
        return state_of(self.path)

    def page(self) -> Body:
        """Return the page, as HTML.

        Raises:
            RunError: the run cannot be read.
            OSError: it is gone.
        """
        return self._body("page", self._page)

    def data(self) -> Body:
        """Return the data of the page, as JSON; raises as :meth:`page` does."""
        return self._body("data", self._data)

    def _body(self, name: str, build: Callable[[Run], Body]) -> Body:
        with self._lock:
            now = time.monotonic()
            if now >= self._looked:
                self._look()
                self._looked = time.monotonic() + LEAST_PAUSE
            version, body = self._built.get(name, (-1, None))
            if body is None or version != self._version:
                assert self._run is not None
                began = time.monotonic()
                body = build(self._run)
                self._built[name] = self._version, body
                took = time.monotonic() - began
                self._looked = time.monotonic() + max(LEAST_PAUSE, _SHARE * took)
            return body

    def _look(self) -> None:
        """See whether anything is new."""
        if self._run is None:
            self._run, is_news = open_run(self.path), True
        else:
            is_news = self._run.refresh()
        state = self.state
        if is_news or state.name != self._state.name:
            self._version += 1
        self._state = state

    def _page(self, run: Run) -> Body:
        text = page_html(run, live=True)
        return body_of(text, "text/html", _policy_in(text))

    def _data(self, run: Run) -> Body:
        data = page_data(run)
        data["subtitle"] = f"{self._state.name}: {data['subtitle']}"
        text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
        return body_of(text, "application/json", NOTHING_ELSE)


def _policy_in(page: str) -> str:
    """The policy that a page says itself: a header says it too, which also forbids frames."""
    said = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    return f"{said}; frame-ancestors 'none'" if said else NOTHING_ELSE
