"""What is printed, and how: to stdout what was asked for, to stderr what else is to be known."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click

_QUIET_SECONDS = 2.0


def wants_color() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def print_json(value: Any) -> None:
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor Inf: both become null, and their counts stand beside them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return value


def print_written(files: Sequence[str]) -> None:
    click.echo("\n" + "\n".join(f"wrote {file}" for file in files))


def complain(text: str) -> None:
    click.echo(f"torchtap: {text}", err=True)


@contextlib.contextmanager
def working(doing: str) -> Iterator[None]:
    """Say on a terminal that work is going on, once it takes longer than two seconds."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    start = time.monotonic()

    def tick() -> None:
        said = False
        wait = _QUIET_SECONDS
        while not done.wait(wait):
            said, wait = True, 0.5
            seconds = int(time.monotonic() - start)
            click.echo(f"\r\x1b[2Ktorchtap: {doing}, {seconds} s", err=True, nl=False)
        if said:
            click.echo("\r\x1b[2K", err=True, nl=False)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        done.set()
        ticker.join()
