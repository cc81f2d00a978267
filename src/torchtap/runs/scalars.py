"""Numbers that a training logs by step: its loss, its learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, SiteError

if TYPE_CHECKING:
    from torch import Tensor

_MOST_UNREAD = 256
"""Tensors that are logged are read together, so that a training does not wait for each."""


class Scalars:
    """Numbers by name and step; the last one that a step logs under a name counts."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, float | Tensor]] = {}
        self._num_unread = 0

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Keep numbers of a step.

        Raises:
            InputError: a value is neither a number nor a tensor of one element.
        """
        from torch import Tensor

        for name, value in numbers.items():
            if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
                self._by_name.setdefault(name, {})[step] = value.detach().clone()
                self._num_unread += 1
                continue
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise InputError(
                    f"log() got {name}={_shown(value)}; expected a number, or a tensor of one "
                    f"element."
                ) from None
            self._by_name.setdefault(name, {})[step] = number
        if self._num_unread > _MOST_UNREAD:
            for by_step in self._by_name.values():
                _read(by_step)
            self._num_unread = 0

    def at(self, step: int) -> dict[str, float | Tensor]:
        """Return the numbers that were logged in one step, by name; tensors are not read."""
        return {name: own[step] for name, own in self._by_name.items() if step in own}

    @property
    def newest(self) -> int | None:
        """Return the last step in which anything was logged."""
        return max((step for own in self._by_name.values() for step in own), default=None)

    @property
    def names(self) -> list[str]:
        """Return the names, in the order in which they were first logged."""
        return list(self._by_name)

    def of(self, name: str) -> tuple[list[int], list[float]]:
        """Return the steps in which a name was logged, ascending, and its number in each.

        Raises:
            SiteError: nothing was logged under that name.
        """
        if name not in self._by_name:
            near = did_you_mean(name, self.names)
            logged = f"logged are {', '.join(self.names)}{near}" if self.names else "nothing was."
            raise SiteError(f"No number {name!r} was logged: {logged}")
        numbers = _read(self._by_name[name])
        steps = sorted(numbers)
        return steps, [numbers[step] for step in steps]


def _read(by_step: dict[int, float | Tensor]) -> dict[int, float]:
    """Put numbers in the place of tensors."""
    for step, value in by_step.items():
        by_step[step] = float(value)
    return by_step  # type: ignore[return-value]


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value)[:60] if shape is None else f"{type(value).__name__} of shape {list(shape)}"
