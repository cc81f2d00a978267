"""``tt.explain_errors(everywhere=True)``: notes on what nothing in the program catches.

Python hands an exception that nothing caught to ``sys.excepthook``, one of a thread to
``threading.excepthook``, and IPython shows one of a cell by itself. Each of them is told the note
first and then does what it did before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import nn

from torchtap.failures.added_notes import add_notes


class ExplainedEverywhere:
    """The result of ``tt.explain_errors(everywhere=True)``: a handle and a context manager.

    Closing it twice is fine. Where another package has put a hook of its own on top of these since,
    that one stays, and these do nothing more.

    Args:
        model: whose modules are named; by default those that the frames hold.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.notes: list[str] = []
        self._model = model
        self._is_open = True
        self._before, self._hook = sys.excepthook, self._explain_uncaught
        self._before_in_thread, self._thread_hook = threading.excepthook, self._explain_in_thread
        sys.excepthook = self._hook
        threading.excepthook = self._thread_hook
        self._leave_shell = self._enter_shell()

    def close(self) -> None:
        """Explain no more, and put the hooks back that were there before."""
        if not self._is_open:
            return
        self._is_open = False
        if sys.excepthook is self._hook:
            sys.excepthook = self._before
        if threading.excepthook is self._thread_hook:
            threading.excepthook = self._before_in_thread
        self._leave_shell()

    def __enter__(self) -> list[str]:
        return self.notes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._explain(error)  # The hooks are gone when it gets there.
        self.close()

    def _explain(self, error: BaseException | None) -> None:
        if self._is_open and error is not None:
            self.notes += add_notes(error, self._model)

    def _explain_uncaught(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        self._explain(error)
        self._before(kind, error, trace)

    def _explain_in_thread(self, raised: threading.ExceptHookArgs) -> None:
        self._explain(raised.exc_value)
        self._before_in_thread(raised)

    def _enter_shell(self) -> Callable[[], None]:
        """Explain what cells raise, where the program is a notebook; return what undoes it."""
        ipython = sys.modules.get("IPython")
        shell: Any = None if ipython is None else ipython.get_ipython()
        if shell is None:
            return _nothing
        before: tuple[Any, Any] = shell.custom_exceptions, shell.CustomTB

        def explain_cell(
            shell: Any,
            kind: type[BaseException],
            error: BaseException,
            trace: TracebackType,
            tb_offset: int | None = None,
        ) -> Any:
            self._explain(error)
            if before[0] and isinstance(error, before[0]):
                return before[1](kind, error, trace, tb_offset=tb_offset)
            return shell.showtraceback((kind, error, trace), tb_offset, running_compiled_code=True)

        shell.set_custom_exc((Exception,), explain_cell)
        ours = shell.CustomTB

        def leave() -> None:
            if shell.CustomTB == ours:
                shell.custom_exceptions, shell.CustomTB = before

        return leave


def _nothing() -> None:
    """There is nothing to undo outside of IPython."""


_of_shells: dict[int, ExplainedEverywhere] = {}
"""Id of a shell -> handle of the explaining that ``%load_ext torchtap`` turned on there."""


def enter_shell(shell: Any) -> None:
    """Explain what the cells of a shell raise; twice is fine."""
    if id(shell) not in _of_shells:
        _of_shells[id(shell)] = ExplainedEverywhere()


def leave_shell(shell: Any) -> None:
    """Undo :func:`enter_shell`."""
    explained = _of_shells.pop(id(shell), None)
    if explained is not None:
        explained.close()
