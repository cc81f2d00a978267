"""The facts of one exception: its frames, its modules, its operation and its operands."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtap.core.source_files import shown_file
from torchtap.failures.graph_reading import Node, nodes_of
from torchtap.failures.module_names import Names
from torchtap.failures.operands import Operand, Origin, operands_of, origin_of, shape_text
from torchtap.failures.parsed_source import written
from torchtap.failures.traceback_frame import MISSING, TracebackFrame, frames_of

UNNAMED = "<tensor>"
"""Stands for the name of a tensor that has none, or whose name is not known."""
Details = tuple[tuple[str, str], ...]
"""Label and text of each row of a note, beside the place."""
_MOST_CHARACTERS = 90
_NO_TENSORS = (bool, int, float, complex, str, torch.dtype, torch.device, Enum)


class Explanation(NamedTuple):
    """The explanation of a failure by its situation.

    Attributes:
        what: what happened, in one sentence.
        ways: the ways out, best first.
        details: label -> text, of what the situation found beside the place.
        module: where it happened, if that is not the module that was running.
    """

    what: str
    ways: tuple[str, ...]
    details: Details = ()
    module: str = ""


class Failure:
    """One exception, and the questions that situations ask of it.

    Args:
        error: it, with its traceback.
        model: whose modules are named; by default those that the frames hold.

    Attributes:
        error: it.
        text: its message.
        frames: that it passed, outermost first.
        user: the innermost frame of the program, or else of a library that is not torch.
        known: answers that are asked for several times, by their question.
    """

    def __init__(self, error: BaseException, model: nn.Module | None = None) -> None:
        self.error = error
        self.text = str(error)
        self.frames: Sequence[TracebackFrame] = frames_of(error)
        self.known: dict[object, Any] = {}
        self._model = model
        self._origins: dict[tuple[str, int, int], Origin] = {}
        inwards = self.frames[::-1]
        by_user = [one for one in inwards if one.is_user]
        self.user = next(iter(by_user or [one for one in inwards if not one.is_torch]), None)

    @cached_property
    def names(self) -> Names:
        """Return the names of modules and parameters."""
        return Names(self.frames, self._model)

    # ------------------------------------------------------------------ where

    @cached_property
    def running(self) -> TracebackFrame | None:
        """Return the frame of the innermost module that was running."""
        return next((frame for frame in reversed(self.frames) if frame.module is not None), None)

    @property
    def module(self) -> nn.Module | None:
        """Return the innermost module that was running."""
        return None if self.running is None else self.running.module

    @property
    def module_text(self) -> str:
        """Return the module's name in a sentence, or ``the operation``."""
        return self.names.module(self.module) or "the operation"

    @property
    def call(self) -> str:
        """The call of the running module, as the program wrote it; empty if it is not there."""
        module = self.module
        for frame in reversed(self.frames[: self.running.depth] if self.running else ()):
            if frame.module is module or frame.is_torch:
                continue
            node = frame.expression
            if not isinstance(node, ast.Call):
                return ""
            is_shown = frame.is_user or isinstance(frame.value_of(node.func), nn.Module)
            return _short(written(node, frame.file)) if is_shown else ""
        return ""

    @property
    def operation(self) -> str:
        """The operation that failed, as it stands in the source; empty if it is not known."""
        if not self.tensors:
            return ""
        frame = self.frames[self.tensors[0].depth]
        node = frame.expression
        return "" if node is None else _short(written(node, frame.file))

    # ------------------------------------------------------------------ what was computed with

    @cached_property
    def operands(self) -> list[Operand]:
        """Return the operands of the operation."""
        return operands_of(self.frames)

    @property
    def tensors(self) -> list[Operand]:
        """Return the tensors among the operands."""
        return [operand for operand in self.operands if isinstance(operand.value, Tensor)]

    def operand(self, name: str, otherwise: str = UNNAMED) -> Operand:
        """The operand of a name in its expression, or of a local name of the innermost frames.

        One of no known value, whose name is ``otherwise``, where there is none.
        """
        for one in self.operands:
            if one.text == name:
                return one
        for frame in reversed(self.frames):
            value = frame.frame.f_locals.get(name, MISSING)
            # PyTorch's own functions call an argument as their documentation does: input, target,
            # weight.
            if value is not MISSING:
                return Operand(name, value, frame.depth)
            if frame.is_user:
                break
        return Operand(otherwise)

    def origin(self, operand: Operand) -> Origin:
        """Return the origin of an operand: what made it."""
        # The origin reads files and walks graphs; a note asks for it several times.
        key = operand.text, id(operand.value), operand.depth
        if key not in self._origins:
            self._origins[key] = origin_of(operand, self.frames, self.names)
        return self._origins[key]

    def name_of(self, operand: Operand) -> str:
        """Return the name of an operand in the program."""
        return self.origin(operand).name

    @property
    def candidates(self) -> list[Operand]:
        """Return the operands that may be tensors: no numbers, and nothing that torch computes.

        An expression of unknown value is one where the program wrote it: PyTorch's own call gives
        flags and options besides, and the name of one would mean nothing to the reader.
        """
        return [
            one
            for one in self.operands
            if not isinstance(one.value, _NO_TENSORS)
            if one.value is not MISSING or not self.frames[one.depth].is_torch
        ]

    @property
    def pair(self) -> list[Operand]:
        """Return the two operands of an operator: its tensors, or else its expressions."""
        return (self.tensors if len(self.tensors) > 1 else self.candidates)[:2]

    def details(self, *chosen: Operand) -> Details:
        """Lines that describe operands; all tensors of the operation by default.

        Each with its name, shape, dtype and origin; none of those whose value is not known.
        """
        tensors = [one for one in chosen or self.tensors if one.value is not MISSING]
        lines = []
        for tensor in tensors[:6]:
            text, name, *_ = self.origin(tensor)
            shown = name if name == tensor.text else f"{tensor.text} is {name}"
            lines.append(
                ("operand", ", ".join(filter(None, (shown, shape_text(tensor.value), text))))
            )
        return tuple(lines)

    def argument(self, otherwise: str = UNNAMED) -> Operand:
        """Return what was handed to the operation: its first tensor that is no parameter.

        The text of the program's expression stands for it where that was not a name. One of no
        known value, whose name is ``otherwise``, where there is none.
        """
        given = (tensor for tensor in self.tensors if not self.origin(tensor).is_state)
        return next(given, next(iter(self.candidates), Operand(otherwise)))

    # ------------------------------------------------------------------ backward

    @cached_property
    def differentiated(self) -> list[Tensor]:
        """Return the tensors that the running backward began at."""
        for frame in self.frames:
            if frame.is_torch and frame.file.endswith("autograd/__init__.py"):
                held = frame.frame.f_locals
                # backward() names its roots tensors, grad() names them outputs
                # (torch/autograd/__init__.py).
                tensors = held.get("tensors", held.get("outputs"))
                values = tensors if isinstance(tensors, tuple | list) else (tensors,)
                return [value for value in values if isinstance(value, Tensor)]
        return [
            frame.owner
            for frame in self.frames
            if frame.code.co_name == "backward" and isinstance(frame.owner, Tensor)
        ][:1]

    @cached_property
    def nodes(self) -> list[Node]:
        """Return the nodes of the graph that the running backward began to go through."""
        return nodes_of(self.differentiated)

    def called(self, wanted: object, otherwise: str = "") -> str:
        """Return what the program calls a value: the innermost of its variables that hold it."""
        held = [
            name
            for frame in self.frames
            if not frame.is_torch and not frame.is_standard
            for name, value in frame.own_names.items()
            if value is wanted
        ]
        return held[-1] if held and wanted is not None else otherwise


def raised_by_a_hook_of_ours(error: BaseException) -> bool:
    """Return whether a hook of torchtap raised it, inside the innermost module that ran."""
    found, trace = False, error.__traceback__
    while trace is not None:
        frame = TracebackFrame(trace)
        # A module that runs below our hook starts anew: what is raised in it is its own.
        found = (found or frame.is_our_hook) and frame.module is None
        trace = trace.tb_next
    return found


def place_of(frame: TracebackFrame) -> str:
    """Return a frame as ``net.py:12, in forward: return self.fc(x)``."""
    name = frame.code.co_name
    inside = "" if name == "<module>" else f", in {name}"
    text = f": {_short(frame.text)}" if frame.text else ""
    return f"{shown_file(frame.file)}:{frame.line}{inside}{text}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
