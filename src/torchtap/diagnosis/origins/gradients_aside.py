"""Gradients that are taken away while an optimizer makes a step that is to change nothing."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


class GradientsAside:
    """Holds gradients until the step of the optimizer ended, or another one begins."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor | None]] = []

    def put(self, params: Iterable[Tensor]) -> None:
        """Take the gradients of parameters away."""
        for one in params:
            self._held.append((one, one.grad))
            one.grad = None

    def give_back(self) -> None:
        """Give the very tensors back."""
        while self._held:
            param, gradient = self._held.pop()
            param.grad = gradient
