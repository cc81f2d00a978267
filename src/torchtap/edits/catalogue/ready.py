"""A change that is ready to use, and what all of them are made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.core.errors import EditError, InputError
from torchtap.core.record import BACKWARD, Record
from torchtap.core.tensors import kind_of, short
from torchtap.core.user_functions import place, takes_record
from torchtap.edits.catalogue.regions import At, check, region
from torchtap.edits.checked_edit import CheckedEdit
from torchtap.edits.edit_engine import EditEngine, WantsCall

if TYPE_CHECKING:
    from torchtap.core.plan import Plan
    from torchtap.edits.missed_edits import OneEdit

KEEPS = "An edit keeps shape, dtype and device."

Formula = Callable[[Tensor, Record], Tensor]
Value = float | Tensor | Callable[..., Tensor]


class Ready:
    """One ready change. ``repr`` gives the call that made it, and messages the end of that.

    Args:
        name: of the function that made it.
        arguments: what it was given, for messages.
        formula: what it does.
    """

    __slots__ = ("__name__", "_formula", "writes_nothing")

    def __init__(self, name: str, arguments: Mapping[str, Any], formula: Formula) -> None:
        given = ", ".join(
            f"{key}={short(value)}" for key, value in arguments.items() if value is not None
        )
        self.__name__ = f"{name}({given})"
        self._formula = formula
        # No check is needed, but for a function of the user's inside.
        self.writes_nothing = not any(map(callable, arguments.values()))

    def __call__(self, tensor: Tensor, record: Record) -> Tensor:
        return self._formula(tensor, record)

    def prepared(self, model: nn.Module, plan: Plan) -> Ready:
        """Return the edit to attach to this model; may run the model, or another one, first."""
        return self

    def editor(self, plan: Plan, change: CheckedEdit, *, wants_call: WantsCall) -> OneEdit:
        """Make the editor that carries the edit out.

        Args:
            plan: where.
            change: the edit, with the checks of what it returns.
            wants_call: at which calls; ``None`` for all.
        """
        return EditEngine(plan, change, wants_call=wants_call)

    def __repr__(self) -> str:
        return f"tt.edits.{self.__name__}"


# ---------------------------------------------------------------------- arguments


def expect(fits: bool, edit: str, argument: str, value: object, expected: str) -> None:
    if not fits:
        raise InputError(f"tt.edits.{edit} got {argument}={_shown(value)}; expected {expected}.")


def _shown(value: object) -> str:
    """Return an argument in a message: numbers and texts as they are, else what kind it is."""
    if isinstance(value, str | int | float | complex | None):
        return repr(value)
    return short(value)


def expect_value(edit: str, value: object) -> None:
    is_value = isinstance(value, Number | Tensor) or callable(value)
    expect(is_value, edit, "value", value, "a number, a tensor, or a function of the tensor")


def is_number(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


# ---------------------------------------------------------------------- tensors


def within(at: At, formula: Formula, outside: float | None = None) -> Formula:
    """Return the formula, only in a region.

    Args:
        at: the region.
        formula: the edit.
        outside: what the formula gets there instead of the tensor, so that nothing comes back from
            there in a backward either; ``None`` if it is to see the whole tensor.
    """
    check(at)
    if at is None:
        return formula

    def inside(tensor: Tensor, record: Record) -> Tensor:
        here = region(at, tensor, record)
        given = tensor if outside is None else torch.where(here, tensor, outside)
        return torch.where(here, formula(given, record), tensor)

    return inside


def filled(tensor: Tensor, number: float) -> Tensor:
    """Return a constant of the tensor's kind that stands in its graph: the gradient is zero."""
    if (tensor.is_nested or tensor.layout is not torch.strided) and not number:
        return torch.zeros_like(tensor)  # Nothing that could stand in a graph is there.
    return torch.where(_never(tensor), tensor, torch.full_like(tensor.detach(), number))


def put_in_place(tensor: Tensor, new: Tensor, record: Record, hint: str = KEEPS) -> Tensor:
    """Return ``new`` in the place of ``tensor``, in its graph."""
    if new.dtype != tensor.dtype:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} to put in the place of "
            f"{kind_of(tensor)}. {KEEPS}"
        )
    here = expanded(new.detach().to(tensor.device), tensor, record, hint)
    return torch.where(_never(tensor), tensor, here)


def like(tensor: Tensor, new: Tensor) -> Tensor:
    """``new`` in the dtype of ``tensor``; an edit of integers by a fraction stays integer."""
    return new if new.dtype == tensor.dtype else new.to(tensor.dtype)


def _never(tensor: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.bool, device=tensor.device)


def expanded(new: Tensor, tensor: Tensor, record: Record, hint: str = KEEPS) -> Tensor:
    try:
        return new.expand(tensor.shape)
    except RuntimeError as error:
        raise EditError(
            f"The edit at {place(record)} has {kind_of(new)} for {kind_of(tensor)}, to which it "
            f"does not broadcast. {hint}"
        ) from error


def value_of(value: Value, tensor: Tensor, record: Record) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(tensor.device)
    if callable(value):
        return value(tensor, record) if takes_record(value) else value(tensor)
    return torch.as_tensor(value, dtype=tensor.dtype, device=tensor.device)


def seed_of(seed: int, record: Record) -> int:
    """Return a number for one place and time; Python's own hash differs between processes."""
    # A checkpoint that computes again draws the same; other calls in a backward are numbered apart.
    apart = f" {BACKWARD}" if record.phase == BACKWARD else ""
    text = f"{seed} {record.step} {record.site} {record.call}{apart}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
