"""Recognise PyTorch's messages, and tell them from those of a program that says the same."""

from __future__ import annotations

import ast
import inspect
import os
import pickle
import re
from functools import cache, lru_cache
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from torchtap.failures.catalogue.values_given import tensors_in
from torchtap.failures.failure import Failure
from torchtap.failures.gradients_read import gradients_read
from torchtap.failures.messages import PATTERNS
from torchtap.failures.messages_of_arguments import ARGUMENTS
from torchtap.failures.messages_of_checks import CHECKS
from torchtap.failures.messages_of_tools import TOOLS
from torchtap.failures.operands import parts_of_expression
from torchtap.failures.python_messages import CONDITIONS
from torchtap.failures.required_texts import required_texts
from torchtap.failures.traceback_frame import MISSING, TracebackFrame

_ABOUT_NONE = ("attribute of None", "item of None", "operator on None", "None among tensors")
"""Messages that mean something of PyTorch only where what is ``None`` is a gradient."""
_OF_PYTHON = ("arguments of forward", "no such attribute")
"""Messages that Python itself has for other things too."""
_OWN_KINDS = ("bool", "int", "float", "str", "list", "tuple", "dict")
"""Classes of Python, whose attributes are none of PyTorch's."""
_IN_WORKER = re.compile(
    r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback[\s\S]*"
    r'File "(?P<file>[^"]+)", line \d+[^\n]*\n\s*(?P<source>[^\n]*)[\s\S]*?\n\w+: (?P<text>[\s\S]+)'
)
"""Matches an error that a worker of a DataLoader raised, with its traceback as text."""
_OF_DATA = re.compile(r", in __getitem__\n|, in __iter__\n")
"""Matches the traceback of an error that the code of a data set raised."""
_KINDS = (
    *(RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError),
    pickle.PickleError,
    EOFError,
    ImportError,
    NotImplementedError,
    StopIteration,
)
_PREFIX = r"([\w.:<>()]+: )?"
"""Matches the name of an operator, which some releases put before a message (``addmm: ``)."""
MESSAGES = {**PATTERNS, **CHECKS, **ARGUMENTS, **TOOLS}
"""Name -> what a message begins with. The first that fits, and means PyTorch, is taken."""


class KnownMessage(NamedTuple):
    """A message that was recognised: its name, and the parts of its text."""

    name: str
    match: re.Match[str]


def recognise(failure: Failure) -> KnownMessage | None:
    """Return the message of an exception, if it is PyTorch's and known."""
    is_of_torch = type(failure.error).__module__.startswith("torch.")
    if not (is_of_torch or isinstance(failure.error, _KINDS)) or not failure.frames:
        return None
    # A worker of a DataLoader hands its exception over as text, behind a head of its own.
    worker = _IN_WORKER.match(failure.text)
    text = failure.text if worker is None else worker["text"]
    for name in MESSAGES:  # Those in front are the frequent ones: the others are not looked at.
        is_possible = any(one in text for one in _required_texts(name))
        match = _compiled(name).match(text) if is_possible else None
        if match is not None and (
            _means_torch(name, failure) if worker is None else _means_torch_in(worker, name)
        ):
            return KnownMessage(name, match)
    return None


@lru_cache(maxsize=1024)
def _required_texts(name: str) -> tuple[str, ...]:
    """Return texts, of which a message of that name holds one."""
    return required_texts(MESSAGES[name])


@cache
def _compiled(name: str) -> re.Pattern[str]:
    return re.compile(f"{_PREFIX}({MESSAGES[name]})")


def _means_torch_in(worker: re.Match[str], name: str) -> bool:
    """Return whether a text that fits was PyTorch's, in a worker of a DataLoader."""
    # PyTorch's compiled code has no line: the last one is the program's, and raises nothing.
    is_raised = worker["source"].startswith(("raise", "assert"))
    is_torch = f"{os.sep}torch{os.sep}" in worker["file"] or not is_raised
    if name == "error in a worker":
        return not is_raised and bool(_OF_DATA.search(worker.string))
    return is_torch and name not in (*_OF_PYTHON, *_ABOUT_NONE, *CONDITIONS)


def _means_torch(name: str, failure: Failure) -> bool:
    """Return whether a text that fits was PyTorch's, not that of a program that says the same."""
    if name in CONDITIONS:
        return CONDITIONS[name](failure)
    if name in _ABOUT_NONE:
        return bool(gradients_read(failure))
    if name == "graph break":  # What fails inside of a graph has another class, and this text.
        return type(failure.error).__name__ == "Unsupported"
    if name == "arguments of forward":  # Of a call by PyTorch: it is what calls forwards.
        return failure.frames[-1].is_torch and failure.frames[-1].module is not None
    if name == "no such attribute":
        # An attribute that a list lacks is no matter of PyTorch, wherever it was asked for.
        kind = failure.text.partition("' object")[0].strip("'")
        is_other = kind in _OWN_KINDS or (
            not failure.frames[-1].is_torch and kind not in ("Tensor", "Parameter")
        )
        return is_from_torch(failure) and not is_other
    if name == "number without backward":  # No other library's numbers are differentiated so.
        return True
    last = failure.frames[-1]
    if name == "None in a batch":
        return any("collat" in one.file for one in failure.frames if one.is_torch)
    if name == "state of another class":  # The key of a dict that was not there.
        is_of_group = isinstance(last.expression, ast.Subscript)
        return isinstance(failure.error, KeyError) and is_of_group and _steps(last)
    if name == "list of modules":
        return _calls_modules(last)
    if name == "closed to numbers":
        return is_from_torch(failure) and not tensors_in(failure)
    if name == "parameters of an optimizer" and "not iterable" in failure.text:
        return last.is_torch and isinstance(last.owner, Optimizer)
    if name == "file that is none":
        return any(one.file.endswith("serialization.py") for one in failure.frames if one.is_torch)
    if name in ("unknown argument", "step without a closure"):
        return last.is_torch or _calls_method_of_torch(last)
    return not last.is_passed_on if last.is_torch else not last.raises_itself


def _calls_modules(frame: TracebackFrame) -> bool:
    """Return whether what was called is a list, tuple or dict of modules."""
    node = frame.expression
    held: Any = frame.value_of(node.func) if isinstance(node, ast.Call) else None
    if type(held) is dict:
        held = list(held.values())
    return type(held) in (list, tuple) and any(isinstance(one, nn.Module) for one in held)


def _steps(frame: TracebackFrame) -> bool:
    return frame.is_torch and f"{os.sep}optim{os.sep}" in frame.file


def _calls_method_of_torch(frame: TracebackFrame) -> bool:
    """Return whether a call that its function refused is of a function or method of PyTorch."""
    node = frame.expression
    if not isinstance(node, ast.Call):
        return False
    called = frame.value_of(node.func)
    is_kind = isinstance(called, type) and issubclass(called, nn.Module | Optimizer | Dataset)
    if is_kind or _is_of_torch(called):
        return True
    if not isinstance(node.func, ast.Attribute):
        return False
    owner = frame.value_of(node.func.value)
    return owner is not MISSING and _is_of_torch(
        inspect.getattr_static(type(owner), node.func.attr, None)
    )


def is_from_torch(failure: Failure) -> bool:
    """Return whether PyTorch raised it: its Python code, or compiled code called from elsewhere."""
    if not failure.frames or _lacks_of_python(failure):
        return False
    last = failure.frames[-1]
    if last.is_torch:
        return not last.is_passed_on and (
            last.raises_itself or not _calls_others(last, failure.error)
        )
    return not last.raises_itself and _computes(last, failure.error)


def _lacks_of_python(failure: Failure) -> bool:
    """Return whether an attribute was asked of an object of Python, which holds tensors or not."""
    kind = failure.text.partition("' object has no attribute")[0].strip("'")
    return isinstance(failure.error, AttributeError) and kind in (*_OWN_KINDS, "NoneType")


def _calls_others(frame: TracebackFrame, error: BaseException) -> bool:
    """Return whether it called a function that is not PyTorch's, which failed without a frame."""
    node = frame.expression
    called = frame.value_of(node.func) if isinstance(node, ast.Call) else MISSING
    if called is MISSING or isinstance(called, nn.Module) or isinstance(error, RuntimeError):
        return False
    home = getattr(called, "__module__", None)
    return isinstance(home, str) and home.split(".")[0] != "torch"


def _computes(frame: TracebackFrame, error: BaseException) -> bool:
    """Return whether the expression that failed is computed by PyTorch."""
    node = frame.expression
    if isinstance(node, ast.Call):
        called = frame.value_of(node.func)
        if _is_of_torch(called):
            return True
        if inspect.isbuiltin(called) or isinstance(called, type):  # float(x), of a tensor.
            takes = any(_holds_tensor(frame, one) for one in node.args)
            return isinstance(error, RuntimeError) and takes
        return isinstance(node.func, ast.Attribute) and _holds_tensor(frame, node.func.value)
    if isinstance(node, ast.Subscript | ast.Attribute):
        return _holds_tensor(frame, node.value)
    return any(_holds_tensor(frame, part) for part in parts_of_expression(node))


def _is_of_torch(called: Any) -> bool:
    home = getattr(called, "__module__", None)
    if home is None and inspect.isbuiltin(called):
        home = type(called.__self__).__module__
    return isinstance(home, str) and home.split(".")[0] == "torch"


def _holds_tensor(frame: TracebackFrame, node: ast.AST) -> bool:
    """Return whether an expression is a tensor, or is computed from one."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and _is_of_torch(frame.value_of(inner.func)):
            return True
        is_named = isinstance(inner, ast.Name | ast.Attribute | ast.Subscript)
        if is_named and isinstance(frame.value_of(inner), Tensor):
            return True
    return False
