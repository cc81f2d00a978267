"""One frame of a traceback: its line, the expression that was evaluated, and what names stood for.

Nothing here runs code of the program: expressions are read from the source, names are looked up in
the frame, and attributes in the dictionaries of objects.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.failures.source import function_tree, node_at, nodes_around, place_in

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_PACKAGES = ("site-packages", "dist-packages")
_DISPATCH = "handle_torch_function"
_HISTORY = re.compile(r"_+|_i+|_i?\d+|_[iod]h")
"""Names by which IPython keeps inputs and results of cells; ``_`` is also what nobody reads."""
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})

MISSING: Any = object()
"""What an expression stands for whose value cannot be told without running code."""


class Frame:
    """A frame of a traceback, and where it stood when the exception passed.

    Attributes:
        frame: Python's own.
        code: of its function.
        file: of its source.
        line: number of the line that was running.
    """

    def __init__(self, trace: TracebackType) -> None:
        self.frame: FrameType = trace.tb_frame
        self.code: CodeType = trace.tb_frame.f_code
        self.file = self.code.co_filename
        self.line = trace.tb_lineno
        self._instruction = trace.tb_lasti

    @property
    def is_torch(self) -> bool:
        """Return whether it runs code of PyTorch."""
        return self.file.startswith(_TORCH)

    @property
    def is_ours(self) -> bool:
        """Return whether it runs code of torchtap."""
        return self.file.startswith(_OURS)

    @property
    def is_our_hook(self) -> bool:
        """Return whether it runs a hook of torchtap."""
        return self.file.startswith(os.path.join(_OURS, "hooks"))

    @property
    def is_inner(self) -> bool:
        """Return whether it runs code that PyTorch's own operations are made of."""
        below = self.file.removeprefix(_TORCH) if self.is_torch else ""
        return below.startswith("_") and not below.startswith("_tensor.py")

    @property
    def is_engine(self) -> bool:
        """Return whether it only starts a backward."""
        below = self.file.removeprefix(_TORCH) if self.is_torch else ""
        is_named = self.is_torch and self.code.co_name in ("backward", "__deepcopy__")
        return below.startswith("autograd/") or is_named

    @property
    def is_standard(self) -> bool:
        """Return whether it runs code of Python's own library."""
        is_package = any(f"{os.sep}{name}{os.sep}" in self.file for name in _PACKAGES)
        return self.file.startswith((_STANDARD, "<frozen")) and not is_package

    @property
    def is_user(self) -> bool:
        """Return whether it runs code of the program itself: of no library."""
        return not is_of_library(self.file)

    @property
    def owner(self) -> Any:
        """Return the value of ``self`` in the frame; ``None`` without it."""
        return self.frame.f_locals.get("self")

    @property
    def module(self) -> nn.Module | None:
        """The module whose method this is."""
        owner = self.owner
        is_made = isinstance(owner, nn.Module) and "_modules" in vars(owner)
        return owner if is_made else None

    @property
    def text(self) -> str:
        """The line of source; empty where there is none."""
        return linecache.getline(self.file, self.line, self.frame.f_globals).strip()

    @cached_property
    def names(self) -> dict[str, Any]:
        """The names of the function, and those of the file that the function uses."""
        known = {
            name: self.frame.f_globals[name]
            for name in self.code.co_names
            if name in self.frame.f_globals
        }
        return {**known, **self.frame.f_locals}

    @cached_property
    def own_names(self) -> dict[str, Any]:
        """These without the names that nobody gave, by which a note can call nothing."""
        return {key: one for key, one in self.names.items() if not _HISTORY.fullmatch(key)}

    @property
    def raises_itself(self) -> bool:
        """Return whether it stood at a ``raise`` or an ``assert`` of its own."""
        code = self.code.co_code
        at = self._instruction
        import opcode

        return 0 <= at < len(code) and opcode.opname[code[at]] in _RAISES

    @cached_property
    def expression(self) -> ast.AST | None:
        """Return what was being evaluated (call, operator, attribute); ``None`` if not known."""
        place = place_in(self.code, self._instruction)
        tree = self._tree
        return None if tree is None or place is None else node_at(tree, place)

    @cached_property
    def function(self) -> ast.AST | None:
        """The source of the function, or of the file where the frame is that of the file."""
        tree, place = self._tree, place_in(self.code, self._instruction)
        if tree is None or place is None or self.code.co_name != "<lambda>":
            return tree
        inside = [one for one in nodes_around(tree, place) if isinstance(one, ast.Lambda)]
        return inside[-1] if inside else tree

    @cached_property
    def _tree(self) -> ast.AST | None:
        return function_tree(self.code, self.line)

    def value_of(self, node: ast.AST) -> Any:
        """Return the value of an expression; :data:`MISSING` where only running it would tell."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id, vars(builtins).get(node.id, MISSING))
        if isinstance(node, ast.Attribute):
            return attribute_of(self.value_of(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            return _item_of(self.value_of(node.value), self.value_of(node.slice))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.value_of(node.operand)
            return -value if type(value) in (int, float) else MISSING
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value_of(one) for one in node.elts]
        return MISSING


def is_of_library(file: str) -> bool:
    """Return whether code is of PyTorch, torchtap, the standard library or an installed package."""
    if file.startswith((_TORCH, _OURS, _STANDARD, "<frozen")):
        return True
    return any(f"{os.sep}{name}{os.sep}" in file for name in _PACKAGES)


def attribute_of(value: Any, name: str) -> Any:
    """An attribute that can be read without running code of the program."""
    if value is MISSING:
        return MISSING
    if isinstance(value, Tensor):
        return value.grad if name == "grad" and value.is_leaf else MISSING
    if isinstance(value, nn.Module):
        for table in (vars(value), value._parameters, value._buffers, value._modules):
            if name in table:
                return table[name]
        return MISSING
    if inspect.ismodule(value):
        return vars(value).get(name, MISSING)
    try:
        return vars(value).get(name, MISSING)
    except TypeError:  # It has slots, or is built in.
        return MISSING


def _item_of(value: Any, key: Any) -> Any:
    if isinstance(value, nn.Sequential | nn.ModuleList) and type(key) is int:
        value = list(value._modules.values())
    elif isinstance(value, nn.ModuleDict):
        value = dict(value._modules)
    if type(value) in (list, tuple) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    if type(value) is dict and type(key) in (int, str):
        return value.get(key, MISSING)
    return MISSING


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """The frames that an exception passed, outermost first.

    Without those of torchtap, and without PyTorch's dispatch to a recording of writes.
    """
    frames: list[Frame] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(_OURS) and code.co_name != _DISPATCH:
            frames.append(Frame(trace))
        trace = trace.tb_next
    return tuple(frames)


def forget(error: BaseException) -> None:
    """Drop the copies of local variables that looking at frames has made.

    CPython before 3.13 keeps such a copy with the frame. The function that the block stands in goes
    on, so what it deletes or assigns anew would live on in the copy. A function that asks for its
    own ``locals()`` may be using it.
    """
    trace = error.__traceback__
    while trace is not None:
        code, held = trace.tb_frame.f_code, trace.tb_frame.f_locals
        is_copy = bool(code.co_flags & inspect.CO_OPTIMIZED) and type(held) is dict
        if is_copy and not {"locals", "vars", "dir", "eval", "exec"} & set(code.co_names):
            held.clear()
        trace = trace.tb_next


def values_of(frame: Frame) -> Iterator[tuple[str, Any]]:
    """Names and values of a frame, and the attributes of its ``self`` if that is no module."""
    yield from frame.own_names.items()
    owner = frame.owner
    if (
        owner is not None
        and not isinstance(owner, nn.Module | Tensor)
        and hasattr(owner, "__dict__")
    ):
        yield from ((f"self.{name}", value) for name, value in vars(owner).items())


def shown_file(file: str) -> str:
    """A file as it is named in a note: below the current folder, or below those of packages.

    A cell of a notebook is named as IPython names it: ``Cell In[3]``.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = None if shell is None else shell.compile.format_code_name(file)
    if cell:
        return " ".join(cell)
    for name in _PACKAGES:
        _, found, below = file.rpartition(f"{os.sep}{name}{os.sep}")
        if found:
            return below
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def is_interpreter_ending() -> bool:
    """Return whether Python is shutting down, when nothing can be looked up any more."""
    return sys.is_finalizing()
