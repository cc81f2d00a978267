"""Tell whose fault an exception is, and word one that is torchtap's own. Needs no torch."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from torchtap.core.errors import TorchtapError
from torchtap.core.installation import versions

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_TORCH = f"{os.sep}torch{os.sep}"
_INSTALLED = ("site-packages", "dist-packages")
_STANDARD = os.path.dirname(os.__file__) + os.sep
_SAMPLES = os.path.join(_PACKAGE, "testing", "")
_RUNS_OTHERS = ("nn/modules/module.py", "autograd/__init__.py", "autograd/graph.py", "utils/data/")
"""Files of PyTorch through which a model, its backward or a data set of the user's is run."""
_PASSES_ON = ("__torch_dispatch__", "__torch_function__")
"""Methods of torchtap through which operations of the model go: what these raise is the model's."""
_SLIPS = (AttributeError, NameError, ImportError, AssertionError)
"""Exceptions that no operation of PyTorch raises."""
_DOORS = frozenset(
    {
        ("cli/batch.py", "Batch.run"),
        ("cli/data.py", "load_data"),
        ("cli/loss_option.py", "_called"),
        ("cli/model.py", "_call"),
        ("cli/model.py", "_import_file"),
        ("cli/model.py", "_import_name"),
        ("cli/model.py", "load_object"),
    }
)
"""Functions of torchtap that run code of the user's, by file and name: a test holds them true."""


def is_own_fault(error: BaseException) -> bool:
    """Return whether torchtap raised an exception that it does not raise on purpose.

    A refusal of the system (a full disk, too little memory) is nobody's fault.

    Example:
        >>> try:
        ...     1 / 0
        ... except ZeroDivisionError as error:
        ...     is_own_fault(error)
        False
    """
    is_on_purpose = isinstance(error, TorchtapError | OSError | MemoryError)
    return not is_on_purpose and is_raised_by_torchtap(error)


def is_raised_by_torchtap(error: BaseException) -> bool:
    """Return whether an exception came out of torchtap, and not out of what it was asked to run.

    The frames are read from the innermost one on. Code of torchtap, or code of a library that
    torchtap called, makes it torchtap's; a file of the user's, or PyTorch running a model, theirs.
    """
    for trace in reversed(_traces(error)):
        code = trace.tb_frame.f_code
        file = code.co_filename
        if file.startswith(_SAMPLES):
            return False  # A model that torchtap ships is run as one of the user's.
        if code.co_name in _PASSES_ON and not isinstance(error, _SLIPS):
            continue
        if file.startswith(_PACKAGE):
            inside = file.removeprefix(_PACKAGE).replace(os.sep, "/")
            return (inside, code.co_qualname) not in _DOORS
        below = file.rpartition(_TORCH)[2].replace(os.sep, "/") if _TORCH in file else ""
        if below.startswith(_RUNS_OTHERS) or not _is_of_a_library(file):
            return False
    return True


def _is_of_a_library(file: str) -> bool:
    """Return whether code is of Python itself or of an installed package."""
    installed = any(f"{os.sep}{name}{os.sep}" in file for name in _INSTALLED)
    return installed or file.startswith((_STANDARD, "<frozen"))


def own_fault(error: BaseException) -> str:
    """Return the text for a fault of torchtap itself: the error, its place and the versions."""
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}: {text}" if text else type(error).__name__
    ours = [
        trace for trace in _traces(error) if trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
    ]
    where = ""
    if ours:
        file = ours[-1].tb_frame.f_code.co_filename.removeprefix(_PACKAGE)
        where = f" (torchtap{os.sep}{file}:{ours[-1].tb_lineno})"
    return (
        f"a fault of torchtap itself: {said}{where}; this is {versions()}. `torchtap selfcheck` "
        f"says what of torchtap works here"
    )


def _traces(error: BaseException) -> list[TracebackType]:
    """Return the traceback entries of an exception, from the outermost to the innermost."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found
