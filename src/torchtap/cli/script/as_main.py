"""Runs a Python file as ``python FILE`` does: as ``__main__``, with its arguments and its folder.

So classes of the script can be pickled, processes that it spawns import it again, and its
tracebacks and exit codes are its own.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from threading import ExceptHookArgs
from types import CodeType

from torchtap.cli.raised import shorten
from torchtap.core.blame import own_fault
from torchtap.core.errors import InputError

_PACKAGE = str(Path(__file__).parents[2]) + os.sep


def readable_script(script: str) -> str:
    """Return a script that is there.

    Raises:
        InputError: it is not, or is a folder, or may not be read.
    """
    if os.path.isdir(script):
        inner = os.path.join(script, "__main__.py")
        hint = f" Run {inner}." if os.path.isfile(inner) else ""
        raise InputError(f"SCRIPT is {script}, a folder; expected a Python file.{hint}")
    if not os.path.exists(script):
        raise InputError(
            f"There is no SCRIPT {script}; expected a Python file, after the options of torchtap "
            f"and before its own arguments."
        )
    if not os.access(script, os.R_OK):
        raise InputError(f"SCRIPT {script} cannot be read; expected a file with the right to.")
    return script


def run_as_main(script: str, args: Sequence[str], *, explain: bool = False) -> None:
    """Run a script in this process, in the place of the program that is running.

    Args:
        script: the file.
        args: its arguments.
        explain: add the note of ``tt.explain_errors`` to what PyTorch raises.

    Raises:
        BaseException: what the script raised. It has been printed as Python prints it, and what
            Python prints of it once more, at the end of the process, is nothing.
    """
    path = os.path.join(os.getcwd(), script)
    sys.argv = [script, *args]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    main = types.ModuleType("__main__")
    vars(main).update(
        __annotations__={},
        __builtins__=builtins,
        __cached__=None,
        __file__=path,
        __loader__=SourceFileLoader("__main__", path),
    )
    if explain:
        threading.excepthook = _explaining(threading.excepthook)
    # Or pickle and multiprocessing would look for the script's classes in torchtap's own main
    # module.
    sys.modules["__main__"] = main
    try:
        with io.open_code(path) as file:
            source = file.read()
        # dont_inherit: or the __future__ imports of this file would count for the script.
        exec(compile(source, path, "exec", dont_inherit=True), vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        if explain:
            _explain(error)
        _print(error)
        sys.excepthook = _print_nothing
        raise


def _explain(error: BaseException) -> None:
    """Add the note, or one that says that torchtap failed at it: the exception is the user's."""
    if "torch" not in sys.modules:
        return
    try:
        from torchtap.failures.added_notes import add_notes

        add_notes(error)
    except Exception as fault:  # noqa: BLE001 - the script's own exception is to be seen
        error.add_note(f"torchtap: no explanation, because of {own_fault(fault)}.")


def _explaining(shown: Callable[[ExceptHookArgs], object]) -> Callable[[ExceptHookArgs], None]:
    """Return what adds the note to what a thread raised, and then shows it."""

    def explain_in_thread(raised: ExceptHookArgs) -> None:
        if raised.exc_value is not None:
            _explain(raised.exc_value)
        shown(raised)

    return explain_in_thread


def _print(error: BaseException) -> None:
    """Print an exception as Python prints what no one caught, without the calls of ours."""
    shorten(error, _is_passed_on)
    sys.excepthook(type(error), error, error.__traceback__)


def _is_passed_on(code: CodeType, is_last: bool) -> bool:
    """Return whether code called the script, or is of a hook that only passed the exception on."""
    is_ours = code.co_filename.startswith(_PACKAGE)
    return is_ours and (not is_last or code is run_as_main.__code__)


def _print_nothing(*_: object) -> None:
    """It has been printed."""
