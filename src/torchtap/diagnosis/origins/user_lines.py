"""The line of a user's code that an operation belongs to."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor

from torchtap.core.source_files import is_of_model, line_text
from torchtap.core.torch_private import RUN_BACKWARD

_TRACEBACK = "traceback_"
"""Name under which anomaly mode keeps the stack of the forward with each node."""
_LOSSES = ("t_outputs", "tensors", "outputs")
"""Parameters of the functions of ``RUN_BACKWARD`` that hold what a backward begins from."""
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

    ``None`` where it began from several tensors or elements, or where the frame that began it is
    one of another thread: the backward of a GPU runs in threads of the engine.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in RUN_BACKWARD:
            held = frame.f_locals
            found = next((held[name] for name in _LOSSES if name in held), None)
            found = found[0] if isinstance(found, list | tuple) and len(found) == 1 else found
            is_number = isinstance(found, Tensor) and found.numel() == 1
            return found.detach() if is_number and isinstance(found, Tensor) else None
        frame = frame.f_back
    return None


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
