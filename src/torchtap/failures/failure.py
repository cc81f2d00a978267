"""The facts of one exception: its frames, its modules, its operation and its operands."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchtap.core.text import plural
from torchtap.failures.call_numbers import num_in_input, numbered_call, ordinal
from torchtap.failures.frame import MISSING, Frame, frames_of, shown_file
from torchtap.failures.graph_reading import Node, nodes_of
from torchtap.failures.names import Names
from torchtap.failures.operands import Operand, Origin, operands_of, origin_of, shape_of
from torchtap.failures.source import written

UNNAMED = "<tensor>"
"""In place of the name of a tensor that has none, or whose name is not known."""
_MOST_CHARACTERS = 90


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
    details: tuple[tuple[str, str], ...] = ()
    module: str = ""


class Failure:
    """One exception, and the questions that situations ask of it.

    Args:
        error: it, with its traceback.
        model: whose modules are named; by default those that the frames hold.
    """

    def __init__(self, error: BaseException, model: nn.Module | None = None) -> None:
        self.error = error
        self.text = str(error)
        self.frames: Sequence[Frame] = frames_of(error)
        self._model = model
        self._origins: dict[tuple[str, int, int], Origin] = {}

    @cached_property
    def names(self) -> Names:
        """The names of modules and parameters."""
        return Names(self.frames, self._model)

    # ------------------------------------------------------------------ where

    @property
    def is_of_torchtap(self) -> bool:
        """Return whether a hook of torchtap raised it, inside the innermost module that ran."""
        found, trace = False, self.error.__traceback__
        while trace is not None:
            frame = Frame(trace)
            found = (found or frame.is_our_hook) and frame.module is None
            trace = trace.tb_next
        return found

    @cached_property
    def depth(self) -> int | None:
        """Number of the frame of the innermost module that was running."""
        for depth in range(len(self.frames) - 1, -1, -1):
            if self.frames[depth].module is not None:
                return depth
        return None

    @property
    def module(self) -> nn.Module | None:
        """The innermost module that was running."""
        return None if self.depth is None else self.frames[self.depth].module

    @property
    def module_text(self) -> str:
        """Return the module's name in a sentence, or ``the operation``."""
        return "the operation" if self.module is None else self.names.module(self.module)

    @cached_property
    def user_depth(self) -> int | None:
        """Number of the innermost frame of the program, or else of a library that is not torch."""
        numbers = range(len(self.frames) - 1, -1, -1)
        for depth in numbers:
            if self.frames[depth].is_user:
                return depth
        return next((one for one in numbers if not self.frames[one].is_torch), None)

    @property
    def user(self) -> Frame | None:
        """The innermost frame of the program."""
        return None if self.user_depth is None else self.frames[self.user_depth]

    @property
    def call(self) -> str:
        """The call of the running module, as the program wrote it; empty if it is not there."""
        depth = self.depth
        module = self.module
        while depth is not None and depth > 0:
            depth -= 1
            frame = self.frames[depth]
            if frame.module is module or frame.is_torch:
                continue
            node = frame.expression
            if not isinstance(node, ast.Call):
                return ""
            is_shown = frame.is_user or isinstance(frame.value_of(node.func), nn.Module)
            return _short(written(node, frame.file)) if is_shown else ""
        return ""

    @property
    def call_number(self) -> str:
        """Return which call of the module failed, of several; empty where that is not known."""
        found = numbered_call(self.frames, self.depth)
        if found is not None:
            inner = self.names.module(found.module)
            whose = "its" if found.module is self.module else f"inside {inner}, in its"
            caller = self.names.module(found.caller).removesuffix(" itself")
            return f"{whose} {ordinal(found.number)} call in this forward of {caller}"
        num = 0 if self.module is None else num_in_input(self.module, self.frames)
        return f"on a result of {plural(num, 'earlier call')} of it" if num else ""

    @property
    def variable(self) -> str:
        """The running module as the program would write it."""
        return "module" if self.module is None else self.names.variable(self.module)

    @property
    def operation(self) -> str:
        """The operation that failed, as it stands in the source; empty if it is not known."""
        if not self.tensors:
            return ""
        frame = self.frames[self.tensors[0].depth]
        node = frame.expression
        return "" if node is None else _short(written(node, frame.file))

    def place(self, frame: Frame) -> str:
        """A frame as ``net.py:12, in forward: return self.fc(x)``."""
        name = frame.code.co_name
        inside = "" if name == "<module>" else f", in {name}"
        text = f": {_short(frame.text)}" if frame.text else ""
        return f"{shown_file(frame.file)}:{frame.line}{inside}{text}"

    # ------------------------------------------------------------------ what was computed with

    @cached_property
    def operands(self) -> list[Operand]:
        """Return the operands of the operation."""
        return operands_of(self.frames)

    @property
    def tensors(self) -> list[Operand]:
        """The tensors among the operands."""
        return [one for one in self.operands if isinstance(one.value, Tensor)]

    def operand(self, name: str) -> Operand | None:
        """The operand of a name in its expression, or of a local name of the innermost frames."""
        for one in self.operands:
            if one.text == name:
                return one
        for depth in range(len(self.frames) - 1, -1, -1):
            value = self.frames[depth].frame.f_locals.get(name, MISSING)
            if value is not MISSING:
                return Operand(name, value, depth)
            if self.frames[depth].is_user:
                break
        return None

    def origin(self, operand: Operand) -> Origin:
        """Return the origin of an operand: what made it."""
        key = operand.text, id(operand.value), operand.depth
        if key not in self._origins:
            self._origins[key] = origin_of(operand, self.frames, self.names)
        return self._origins[key]

    def name_of(self, operand: Operand) -> str:
        """Return the name of an operand in the program."""
        return self.origin(operand).name

    def described(self, operand: Operand) -> str:
        """An operand with its name, shape, dtype and origin."""
        origin = self.origin(operand)
        name = origin.name
        if name != operand.text:
            name = f"{operand.text} is {name}"
        return ", ".join(one for one in (name, shape_of(operand.value), origin.text) if one)

    @property
    def pair(self) -> list[Operand]:
        """The two operands of an operator: its tensors, or else its expressions."""
        return (self.tensors if len(self.tensors) > 1 else self.operands)[:2]

    def details(self, *chosen: Operand | None) -> tuple[tuple[str, str], ...]:
        """Lines that describe operands; all tensors of the operation by default."""
        found = [one for one in chosen if one is not None] if chosen else self.tensors
        found = [one for one in found if one.value is not MISSING]
        return tuple(("operand", self.described(one)) for one in found[:6])

    def argument(self) -> Operand | None:
        """Return what was handed to the operation: its first tensor that is no parameter.

        The text of the program's expression stands for it where that was not a name.
        """
        for one in self.tensors:
            if not self.origin(one).is_state:
                return one
        return self.operands[0] if self.operands else None

    # ------------------------------------------------------------------ backward

    @cached_property
    def differentiated(self) -> list[Tensor]:
        """The tensors that the running backward began at."""
        for frame in self.frames:
            if frame.is_torch and frame.file.endswith("autograd/__init__.py"):
                held = frame.frame.f_locals
                found = held.get("tensors", held.get("outputs"))
                values = found if isinstance(found, tuple | list) else (found,)
                return [one for one in values if isinstance(one, Tensor)]
        return [
            frame.owner
            for frame in self.frames
            if frame.code.co_name == "backward" and isinstance(frame.owner, Tensor)
        ][:1]

    @cached_property
    def nodes(self) -> list[Node]:
        """The nodes of the graph that the running backward began to go through."""
        return nodes_of(self.differentiated)

    def holders(self, wanted: Any) -> list[str]:
        """The names under which frames of the program hold a value."""
        return [
            name
            for frame in self.frames
            if not frame.is_torch and not frame.is_standard
            for name, value in frame.own_names.items()
            if value is wanted
        ]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
