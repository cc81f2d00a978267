"""Notices that this process is a child after a fork, where threads and locks are left behind."""

from __future__ import annotations

import os


class _Forks:
    """
    Attributes:
        count: of the forks that lie between the first process and this one. A look at it is ten
            times as fast as asking the system for the process's number.
    """

    def __init__(self) -> None:
        self.count = 0
        if hasattr(os, "register_at_fork"):  # Not on Windows.
            os.register_at_fork(after_in_child=self._begin_child)

    def _begin_child(self) -> None:
        self.count += 1


forks = _Forks()
