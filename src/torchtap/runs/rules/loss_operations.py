"""The operations of a loss, and how outputs meet its targets, as a watch saw them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torchtap.runs.rules.rule_view import Floats, View

ARRANGE = frozenset(
    {"View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Clone", "Squeeze"}
    | {"Unsqueeze", "ToCopy", "Slice", "Select", "Alias", "Index", "MaskedSelect"}
)
"""Operations that select or arrange elements, and compute nothing."""
ERRORS = frozenset(
    {"NllLoss", "NllLoss2D", "MseLoss", "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits"}
    | {"SmoothL1Loss", "HuberLoss", "SoftMarginLoss", "MultiMarginLoss", "CtcLoss"}
)
"""Operations whose result is the smaller, the better."""

_SCALE = frozenset({"Div", "Mul"})
"""By one number, as a temperature."""
_KEEPS_SIGN = frozenset({"Mul", "Div", "Add", "Mean", "Sum", "Stack", "Cat"}) | ARRANGE


class Operation(NamedTuple):
    """An operation of a loss; the output that it judges has the empty name."""

    name: str
    settings: Mapping[str, Any]
    inputs: list[int]


class Meeting(NamedTuple):
    """Two operations, of which one takes what the other made, arranged at most.

    Attributes:
        upper: takes it.
        lower: made it; of the output itself, what made that.
        settings: of ``lower``.
        is_outside: whether ``lower`` is an operation of the loss, and none of the model.
        is_flattened: whether the dims between them are made others, without being turned.
    """

    upper: str
    lower: str
    settings: Mapping[str, Any]
    is_outside: bool
    is_flattened: bool


class LossOperations:
    """The operations and measurements of losses that a watch saw.

    Args:
        view: of the run.
    """

    def __init__(self, view: View) -> None:
        self._told = view.meta.loss
        self._since = view.since or 0

    @cached_property
    def graphs(self) -> list[list[Operation]]:
        """The operations of each loss that was seen, the loss first."""
        found = self._told.get("graphs", ())
        return [[Operation(*one) for one in graph["operations"]] for graph in found]

    def meetings(self) -> Iterator[Meeting]:
        """Yield each two operations that meet, in all graphs."""
        for graph in self.graphs:
            for operation in graph:
                is_passed = operation.name in ARRANGE | _SCALE
                for place in () if is_passed else operation.inputs:
                    lower, between = graph[place], []
                    while lower.name in ARRANGE | _SCALE and len(lower.inputs) == 1:
                        between.append(lower.name)
                        lower = graph[lower.inputs[0]]
                    name = lower.name or str(lower.settings.get("of", ""))
                    is_flat = bool(between) and set(between) <= {"View", "UnsafeView"}
                    yield Meeting(operation.name, name, lower.settings, bool(lower.name), is_flat)

    @property
    def is_turned(self) -> bool:
        """Return whether the sign of an error is turned in every loss that was seen.

        By an operation, or since a sum of errors that are never below 0 is.
        """
        signs = [_sign(graph) for graph in self.graphs]
        values = self.values[1]
        if not signs or None in signs:
            return False
        is_below = len(values) > 3 and bool((values < 0).all())
        return all(sign == -1 for sign in signs) or (
            is_below and all(_is_never_below_0(graph) for graph in self.graphs)
        )

    @property
    def has_one(self) -> bool:
        """Return whether all backwards began from one kind of loss."""
        return len(self.graphs) == 1

    def _series(self, name: str) -> tuple[list[int], Floats]:
        pairs = zip(self._told.get("steps", ()), self._told.get(name, ()), strict=False)
        known = [(step, value) for step, value in pairs if value is not None]
        known = [(step, value) for step, value in known if step >= self._since]
        return [step for step, _ in known], np.array([value for _, value in known], dtype=float)

    @property
    def values(self) -> tuple[list[int], Floats]:
        """The steps in which a loss was seen, and the mean of those of each."""
        return self._series("values")

    @cached_property
    def agreement(self) -> Floats:
        """The correlation of outputs and targets over the steps in which it is known."""
        return self._series("agreement")[1]

    @cached_property
    def range_of_targets(self) -> tuple[float, float]:
        """The median over the steps of the lowest and of the highest target; NaN for none."""
        low, high = self._series("lowest")[1], self._series("highest")[1]
        return (float(np.median(low)), float(np.median(high))) if len(low) else (np.nan, np.nan)

    @property
    def end(self) -> str:
        """The operation that made the output of the model; empty where that is not known."""
        ends = {str(one.settings.get("of")) for own in self.graphs for one in own if not one.name}
        return ends.pop() if len(ends) == 1 else ""

    @property
    def num_kept(self) -> int:
        """In how many steps gradients of the step before were left."""
        return int(self._told.get("num_kept", 0))

    @property
    def num_steps(self) -> int:
        """How many steps were looked at for that."""
        return int(self._told.get("num_steps", 0))

    @cached_property
    def copied(self) -> Floats:
        """The share of targets that stand in the inputs, over the steps in which it is known."""
        return self._series("copied")[1]

    @cached_property
    def variation(self) -> tuple[Floats, Floats]:
        """The deviation of outputs within a batch, and their size, over the steps."""
        return self._series("deviation")[1], self._series("size")[1]

    @property
    def is_reshaped(self) -> bool:
        """Return whether a view stands where dims are to be turned: [B, T, C] to [B, C, T].

        The sizes are known of what a view was given: before the log softmax, and after it.
        """
        for graph in self.graphs:
            for upper in graph:
                log = graph[upper.inputs[0]] if upper.inputs else upper
                lower = graph[log.inputs[0]] if log.inputs else log
                if (upper.name, log.name, lower.name) != ("View", "LogSoftmax", "View"):
                    continue
                after, before = (one.settings.get("self_sym_sizes", []) for one in (upper, lower))
                if len(before) == len(after) == 3 and before != after:
                    return True
        return False

    @property
    def is_of_policy(self) -> bool:
        """Return whether the likelihood of what was chosen is multiplied by what it earned.

        That of an actor alone: the error of a critic beside it has a share that is gone.
        """
        for graph in self.graphs:
            if {one.name for one in graph} & (ERRORS | {"Pow"}):
                return False
            for operation in graph:
                lower = operation
                while lower.inputs and lower.name in ARRANGE | {"Mul"}:
                    lower = graph[lower.inputs[0]]
                if (
                    operation.name == "Mul"
                    and lower.name == "Gather"
                    and self._is_log(graph, lower)
                ):
                    return True
        return False

    def _is_log(self, graph: list[Operation], operation: Operation) -> bool:
        return any(graph[place].name == "LogSoftmax" for place in operation.inputs)

    @property
    def takes_log_softmax(self) -> bool:
        """Return whether all losses are means of the likelihood of classes, by a log softmax."""
        names = [{one.name for one in graph} for graph in self.graphs]
        nll = [one for graph in self.graphs for one in graph if one.name.startswith("NllLoss")]
        is_mean = bool(nll) and all(one.settings.get("reduction") == 1 for one in nll)
        return is_mean and all("LogSoftmax" in own and "Sum" not in own for own in names)


def _is_never_below_0(graph: list[Operation]) -> bool:
    """Return whether a loss would be a sum of errors that cannot be below 0."""
    names = {operation.name for operation in graph}
    is_log = "NllLoss" not in names or "LogSoftmax" in names
    is_plain = names <= _KEEPS_SIGN | {"MseLoss", "SmoothL1Loss", "HuberLoss", "NllLoss", ""} | {
        "LogSoftmax"
    }
    return is_log and is_plain and bool(names & ERRORS)


def _sign(graph: list[Operation]) -> int | None:
    """Return the sign of the error in a loss; ``None`` where no error or both signs are in it.

    Looks through what keeps or turns a sign alone: the weight of a focal loss depends on its error
    in another way.
    """
    signs: dict[int, set[int]] = {0: {1}}
    found: set[int] = set()
    for place, operation in enumerate(graph):
        own = signs.get(place, set())
        if operation.name in ERRORS:
            found |= own
        elif operation.name in _KEEPS_SIGN | {"Neg"}:
            turned = {-sign for sign in own} if operation.name == "Neg" else own
            for one in operation.inputs:
                signs.setdefault(one, set()).update(turned)
    return found.pop() if len(found) == 1 else None
