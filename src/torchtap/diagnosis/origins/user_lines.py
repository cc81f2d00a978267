"""The line of a user's code that an operation belongs to."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from torchtap.core.source_files import is_of_model, line_text
from torchtap.core.torch_frames import RUN_BACKWARD
from torchtap.hooks.backwards import root_of_backward

_TRACEBACK = "traceback_"
"""Name under which anomaly mode keeps the stack of the forward with each node."""
_REPLAY = str(Path(__file__).with_name("replay_kept_calls.py"))
"""File of the replay: the frames outside of it called the optimizer, and made nothing of a step."""


class Line(NamedTuple):
    """A line of source."""

    file: str = ""
    line: int = 0
    code: str = ""


NOWHERE = Line()


def running_line() -> Line | None:
    """Return the innermost line that runs and is not of PyTorch, Python or torchtap.

    Inside a backward, that is one of what the backward calls: a custom function or a hook. The line
    that began the backward does not count, nor does one that stands outside of a replay.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        # Frames beyond called backward() or the replay: no operation stands on their lines.
        if code in RUN_BACKWARD or code.co_filename == _REPLAY:
            return None
        if is_of_model(code.co_filename):
            line = frame.f_lineno
            return Line(code.co_filename, line, line_text(code.co_filename, line, frame))
        frame = frame.f_back
    return None


def line_of_call() -> Line:
    """Return the line that called the model; its text is not read."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_of_model(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE


def line_of_backward() -> Line:
    """Return the line that began the backward which runs."""
    frame: FrameType | None = sys._getframe(1)
    is_inside = True
    while frame is not None:
        code = frame.f_code
        is_inside = is_inside and code not in RUN_BACKWARD
        if not is_inside and is_of_model(code.co_filename):
            return Line(code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return NOWHERE


def loss_of_backward() -> Tensor | None:
    """Return the number from which the backward that runs began, without its graph.

    ``None`` where it began from several tensors or elements, or where that is not known.
    """
    found = root_of_backward()
    return found.detach() if found is not None and found.numel() == 1 else None


def line_of_node(node: Any) -> Line | None:
    """Return the line of the forward that made a node, as anomaly mode keeps it."""
    # Anomaly mode keeps it there as text (PyAnomalyMetadata in
    # torch/csrc/autograd/python_anomaly_mode.cpp).
    for part in reversed(node.metadata.get(_TRACEBACK, [])):
        for entry in reversed(part.split('  File "')[1:]):
            file, _, rest = entry.partition('"')
            if file == _REPLAY:
                return None
            if is_of_model(file):
                number = rest.partition("line ")[2].partition(",")[0]
                line = int(number) if number.isdecimal() else 0
                return Line(file, line, line_text(file, line))
    return None
