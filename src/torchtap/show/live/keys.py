"""Reads single keys from a terminal, as long as it is asked to."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Any, Self

UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"
ENTER, ESCAPE, BACK = "enter", "escape", "back"
_SEQUENCES = {
    "\x1b[A": UP,
    "\x1bOA": UP,
    "\x1b[B": DOWN,
    "\x1bOB": DOWN,
    "\x1b[5~": PAGE_UP,
    "\x1b[6~": PAGE_DOWN,
    "\x1b[H": HOME,
    "\x1b[1~": HOME,
    "\x1b[F": END,
    "\x1b[4~": END,
}
_PLAIN = {"\r": ENTER, "\n": ENTER, "\x1b": ESCAPE, "\x7f": BACK, "\b": BACK}


class Keys:
    """The keys of the terminal that stdin is; it is put back when the ``with`` ends."""

    def __init__(self) -> None:
        self._file = sys.stdin.fileno()
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def read(self, most: float) -> list[str]:
        """Return the keys that were pressed; waits for one, for so many seconds at most."""
        ready, _, _ = select.select([self._file], [], [], max(most, 0.0))
        if not ready:
            return []
        return keys_in(os.read(self._file, 1024).decode("utf-8", "ignore"))


def keys_in(text: str) -> list[str]:
    """Take what a terminal sends apart; sequences that are no known key are left out.

    Example:
        >>> keys_in("q/a"), keys_in(chr(27) + "[B" + chr(27))
        (['q', '/', 'a'], ['down', 'escape'])
    """
    keys = []
    while text:
        known = next((one for one in _SEQUENCES if text.startswith(one)), None)
        if known is not None:
            keys.append(_SEQUENCES[known])
            text = text[len(known) :]
            continue
        if text.startswith("\x1b[") and len(text) > 2:
            ends = (at for at, one in enumerate(text[2:], 2) if "@" <= one <= "~")
            text = text[next(ends, len(text)) + 1 :]
            continue
        first, text = text[0], text[1:]
        if first in _PLAIN:
            keys.append(_PLAIN[first])
        elif first.isprintable():
            keys.append(first)
    return keys
