"""Base class of the handles, also context managers, that public functions put on a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closable(ABC):
    """Open when it is made, closed once; closing it again does nothing.

    Leaving the ``with`` block closes it. If the block raised, errors of our own are not raised:
    they would hide the exception of the user.
    """

    _is_open = True

    @abstractmethod
    def _finish(self, *, raising: bool) -> None:
        """Take everything off the model. Called once.

        Args:
            raising: whether to raise what should be said of what was asked for.
        """

    @abstractmethod
    def _closed(self) -> Exception:
        """The error of using it when it is closed."""

    def close(self) -> None:
        """Take everything off the model."""
        self._close(raising=True)

    def _close(self, *, raising: bool) -> None:
        if self._is_open:
            self._is_open = False
            self._finish(raising=raising)

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise self._closed()

    def __enter__(self) -> Self:
        self._refuse_closed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(raising=error is None)


def abandon(handle: Closable) -> None:
    """Close a handle and raise nothing: another exception is on its way."""
    handle._close(raising=False)


def is_open(handle: Closable) -> bool:
    """Return whether a handle is on still."""
    return handle._is_open
