"""One frame of a traceback: its line, the expression that was evaluated, and what names stood for.

Nothing here runs code of the program: expressions are read from the source, names are looked up in
the frame, and attributes in the dictionaries of objects.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import opcode
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import Tensor, nn

from torchtap.core.source_files import (
    OURS,
    TORCH,
    is_of_library,
    is_of_standard,
    line_text,
    shown_file,
)
from torchtap.failures.parsed_source import expression_at, function_tree, lambda_at, written

LOOPS = (ast.For, ast.While, ast.AsyncFor)
_STATE = ("_parameters", "_buffers", "_modules")
_DISPATCH = "handle_torch_function"
_HISTORY = re.compile(r"_+|_i+|_i?\d+|_[iod]h")
"""Names by which IPython keeps inputs and results of cells; ``_`` is also what nobody reads."""
_RAISES = frozenset({"RAISE_VARARGS", "RERAISE"})

MISSING: Any = object()
"""Stands for the value of an expression that cannot be told without running code."""


class TracebackFrame:
    """A frame of a traceback, and where it stood when the exception passed.

    Attributes:
        depth: number of the frame, from the outermost.
        frame: Python's own.
        code: of its function.
        file: of its source.
        line: number of the line that was running.
        is_torch: whether it runs code of PyTorch.
        is_inner: whether it runs code that PyTorch's own operations are made of.
        is_engine: whether it only starts a backward.
        is_user: whether it runs code of the program itself: of no library.
        raises_itself: whether it stood at a ``raise`` or an ``assert`` of its own.
        is_passed_on: whether it raises again what a worker raised, which was the program's own.
    """

    def __init__(self, trace: TracebackType, depth: int = 0) -> None:
        self.depth = depth
        self.frame: FrameType = trace.tb_frame
        self.code: CodeType = trace.tb_frame.f_code
        self.file = self.code.co_filename
        self.line = trace.tb_lineno
        # Of the traceback: the frame itself may have gone on, as one that handles the exception
        # has.
        self._instruction = at = trace.tb_lasti
        self.is_torch = self.file.startswith(TORCH)
        below = self.file.removeprefix(TORCH) if self.is_torch else ""
        # Tensor.backward stands in torch/_tensor.py and only hands on to autograd/.
        is_started = self.is_torch and self.code.co_name in ("backward", "__deepcopy__")
        self.is_inner = below.startswith("_") and not below.startswith("_tensor.py")
        self.is_engine = below.startswith("autograd/") or is_started
        self.is_user = not is_of_library(self.file)
        self.is_passed_on = self.code.co_name == "reraise" and self.file.endswith("_utils.py")
        # The instruction at which the frame stood tells a raise of its own from an exception that
        # passed by.
        code = self.code.co_code
        self.raises_itself = 0 <= at < len(code) and opcode.opname[code[at]] in _RAISES

    @property
    def is_standard(self) -> bool:
        """Return whether it runs code of Python's own library."""
        return is_of_standard(self.file)

    @property
    def is_our_hook(self) -> bool:
        """Return whether it runs a hook of torchtap."""
        return self.file.startswith(os.path.join(OURS, "hooks"))

    @property
    def owner(self) -> Any:
        """Return the value of ``self`` in the frame; ``None`` without it."""
        code = self.code
        has_self = "self" in (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        # To ask for the local variables makes Python copy them, and keep the copy.
        return self.frame.f_locals.get("self") if has_self else None

    @property
    def module(self) -> nn.Module | None:
        """Return the module whose method this is."""
        owner = self.owner
        # An error in a constructor, before super().__init__(), finds a module without its tables.
        is_made = isinstance(owner, nn.Module) and "_modules" in vars(owner)
        return owner if is_made else None

    @property
    def text(self) -> str:
        """Return the line of source; empty where there is none."""
        return line_text(self.file, self.line, self.frame)

    @cached_property
    def names(self) -> dict[str, Any]:
        """Return the names of the function, and those of the file that the function uses."""
        return self._looked_up()

    @property
    def own_names(self) -> dict[str, Any]:
        """Return the names that the program gave: a note can call nothing by the others.

        Not kept, since all frames are asked: objects that stay make Python collect garbage.
        """
        known = self._looked_up().items()
        return {key: one for key, one in known if not _HISTORY.fullmatch(key)}

    def _looked_up(self) -> dict[str, Any]:
        # Globals first: a local name hides one of the file.
        known = {
            name: self.frame.f_globals[name]
            for name in self.code.co_names
            if name in self.frame.f_globals
        }
        return {**known, **self.frame.f_locals}

    @property
    def expression(self) -> ast.AST | None:
        """Return what was being evaluated (call, operator, attribute); ``None`` if not known."""
        return expression_at(self.code, self._instruction, self.line)

    @property
    def function(self) -> ast.AST | None:
        """Return the source of the function, or of the file where the frame is that of the file."""
        if self.code.co_name == "<lambda>":
            return lambda_at(self.code, self._instruction, self.line)
        return function_tree(self.code, self.line)

    @property
    def loop(self) -> ast.For | ast.While | ast.AsyncFor | None:
        """Return the innermost loop around the line; ``None`` if it stands in none."""
        nodes = ast.walk(self.function) if self.function is not None else ()
        loops = [one for one in nodes if isinstance(one, LOOPS) and is_inside(self.line, one)]
        return loops[-1] if loops else None

    def calls_of(self, *methods: str) -> Iterator[ast.Call]:
        """Yield the calls of methods of some names that stand in the running function."""
        for node in ast.walk(self.function) if self.function is not None else ():
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in methods:
                yield node

    def value_of(self, node: ast.AST) -> Any:
        """Return the value of an expression; :data:`MISSING` where only running it would tell."""
        return value_in(node, self._value_of_name)

    def _value_of_name(self, name: str) -> Any:
        return self.names.get(name, vars(builtins).get(name, MISSING))


def value_in(node: ast.AST, of_name: Callable[[str], Any]) -> Any:
    """Return the value of an expression; :data:`MISSING` where only running it would tell.

    Args:
        node: the expression.
        of_name: gives the value of a variable.
    """
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return of_name(node.id)
        case ast.Attribute():
            return attribute_of(value_in(node.value, of_name), node.attr)
        case ast.Subscript():
            return item_of(value_in(node.value, of_name), value_in(node.slice, of_name))
        case ast.UnaryOp(op=ast.USub()):
            value = value_in(node.operand, of_name)
            return -value if type(value) in (int, float) else MISSING
        case ast.List() | ast.Tuple():
            return [value_in(element, of_name) for element in node.elts]
    return MISSING


def attribute_of(owner: Any, name: str) -> Any:
    """Return an attribute that an object holds; :data:`MISSING` of one that is computed."""
    if isinstance(owner, Tensor):  # Other attributes of tensors are computed.
        return owner.grad if name == "grad" and owner.is_leaf else MISSING
    # Read and never computed: a property of the user's may fail again, or change something.
    held = getattr(owner, "__dict__", {})
    state = _STATE if isinstance(owner, nn.Module) else ()
    tables = (held, *(held.get(table, {}) for table in state))
    return next((table[name] for table in tables if name in table), MISSING)


def is_inside(line: int, statement: ast.stmt) -> bool:
    """Return whether a line stands in a statement."""
    return statement.lineno <= line <= (statement.end_lineno or 0)


def line_of(node: ast.AST, file: str) -> str:
    """Return an expression or statement of a file as ``net.py:12: self.fc(x)``."""
    line = node.lineno  # type: ignore[attr-defined]
    return f"{shown_file(file)}:{line}: {written(node, file)}"


def item_of(value: Any, key: Any) -> Any:
    """Return an item of a container of Python or PyTorch; :data:`MISSING` of any other."""
    if isinstance(value, nn.Sequential | nn.ModuleList) and type(key) is int:
        value = list(value._modules.values())
    elif isinstance(value, nn.ModuleDict):
        value = dict(value._modules)
    if type(value) in (list, tuple) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    if type(value) is dict and type(key) in (int, str):
        return value.get(key, MISSING)
    return MISSING


def frames_of(error: BaseException) -> tuple[TracebackFrame, ...]:
    """Return the frames that an exception passed, outermost first.

    Frames of torchtap, and of PyTorch's dispatch to a recording of writes, are left out.
    """
    frames: list[TracebackFrame] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OURS) and code.co_name != _DISPATCH:
            frames.append(TracebackFrame(trace, len(frames)))
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
