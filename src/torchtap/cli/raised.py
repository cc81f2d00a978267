"""Tracebacks as they are printed: without the calls that only lead to what is of interest."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType

import click

_PACKAGE = str(Path(__file__).parents[1])
_CLICK = str(Path(click.__file__).parent)
_IMPORTS = "<frozen importlib"


def print_raised(error: BaseException, *, whole: bool = False) -> None:
    """Print an exception as Python does, without the calls that led into the user's code.

    Args:
        error: the exception.
        whole: keep the calls of torchtap, which failed itself.
    """
    dropped = (_CLICK, _IMPORTS) if whole else (_CLICK, _IMPORTS, _PACKAGE)

    def passed_on(code: CodeType, is_last: bool) -> bool:
        return code.co_filename.startswith(dropped) and not is_last

    shorten(error, passed_on)
    traceback.print_exception(error, file=sys.stderr)


def shorten(error: BaseException, drops: Callable[[CodeType, bool], bool]) -> None:
    """Take frames out of the traceback of an exception, and of all that led to it.

    Args:
        error: the exception.
        drops: says of the code of a frame, and of whether none stays below it, if it goes.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = _kept(one.__traceback__, drops)
            waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _kept(
    trace: TracebackType | None, drops: Callable[[CodeType, bool], bool]
) -> TracebackType | None:
    below: TracebackType | None = None
    for frame in reversed(_frames(trace)):
        if not drops(frame.tb_frame.f_code, below is None):
            below = TracebackType(below, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return below


def _frames(trace: TracebackType | None) -> list[TracebackType]:
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    return frames
