"""Copies to host memory, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _FakeTicket:
    def __init__(self, delay: int, copy: Callable[[], Any]) -> None:
        self._left = delay
        self._copy: Callable[[], Any] | None = copy

    def is_done(self) -> bool:
        self._left -= 1
        if self._left < 0:
            self.wait()
        return self._copy is None

    def wait(self) -> None:
        if self._copy is not None:
            self._copy()
            self._copy = None

    def join(self) -> None:
        self.wait()


class FakeStreams:
    """Copies on the CPU that end late, so that code which does not wait for them reads garbage.

    Put them in place of CUDA streams with ``torchtap.saved.copy_streams.use_streams``.

    Args:
        delay: how often a copy answers that it is not done.
    """

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay
        self.num_dropped = 0

    def serves(self, device: torch.device) -> bool:
        """Every device."""
        return True

    def out(self, elements: Tensor) -> tuple[Tensor, _FakeTicket]:
        """A copy that reads its source only when it is done."""
        target = torch.empty_like(elements)
        return target, _FakeTicket(self.delay, lambda: target.copy_(elements))

    def back(self, held: Tensor, like: Tensor) -> _FakeTicket:
        """A copy that fills its target only when it is done."""
        return _FakeTicket(self.delay, lambda: like.copy_(held))

    def drop(self, held: Tensor) -> None:
        """Overwrite the copy, so that a later read is noticed."""
        self.num_dropped += 1
        held.view(torch.uint8).fill_(0xAB)
