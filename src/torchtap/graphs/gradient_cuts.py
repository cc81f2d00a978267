"""Find where the way from a parameter to the end of a forward is cut."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError
from torchtap.graphs.nodes import Operation
from torchtap.graphs.reached_parameters import Doubt, Way

if TYPE_CHECKING:
    from torch import Tensor

INSIDE = "ran inside a custom function"
"""Reason of an operation of which it is not known whether it lets gradients through."""
NO_DERIVATIVE = "has no derivative"
"""Reason of an operation at which a backward raises."""
UNMARKED = "ran inside a custom function, whose result does not require grad"
_FUNCTIONS = (
    " (The graph has custom functions, such as checkpoints: what they use inside gets its "
    "gradients from a backward of their own, which a graph does not show.)"
)
_MOST = 5


@dataclass(frozen=True, slots=True)
class Cuts:
    """The facts from which ``Graph.why_no_grad`` answers.

    Attributes:
        trainable: path of each parameter -> whether it requires grad.
        aliases: further path of a shared parameter -> its first.
        operations: that ran in a watched forward with inputs that require grad; ``None`` where
            none was watched.
        reached: path of each parameter that the autograd graph leads to -> the best way to it.
        refs: path -> weak reference to the parameter.
    """

    trainable: Mapping[str, bool] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    operations: tuple[Operation, ...] | None = None
    reached: Mapping[str, Way] = field(default_factory=dict)
    refs: Mapping[str, weakref.ref[Any]] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cuts, (
            *(dict(self.trainable), dict(self.aliases)),
            *(self.operations, dict(self.reached)),
        )

    def why(self, parameter: str | Tensor, *, is_autograd: bool, has_functions: bool) -> str:
        """Explain why a parameter gets no gradient, for ``Graph.why_no_grad``.

        Args:
            parameter: its path, or itself.
            is_autograd: the graph is one of autograd.
            has_functions: it has custom functions, which may run a backward of their own.
        """
        asked = self._path(parameter)
        path = self.aliases.get(asked, asked)
        if not self.trainable[path]:
            return (
                f"{asked} does not require grad: it is frozen. parameter.requires_grad_(True) "
                f"before the forward lets it train."
            )
        if path in self.reached:
            where = "is in the graph" if is_autograd else "leads to the output"
            return f"{asked} {where}: {self._given(self.reached[path])}"
        if self.operations is None:
            return (
                f"{asked} is not in the graph: no way of differentiable operations leads from it "
                f"to what the graph is of. Where it is cut is not known, since the forward was not "
                f"watched: tt.graph(model, *inputs, autograd=True).why_no_grad({asked!r}) "
                f"tells the line." + (_FUNCTIONS if has_functions else "")
            )
        return self._watched(asked, path, self.operations)

    def _given(self, way: Way) -> str:
        """Return what a backward gives a parameter, by the best way to it."""
        match way.doubt:
            case Doubt.NONE:
                return "a backward gives it a gradient."
            case Doubt.HOOK:
                return f"a backward gives it a gradient, which a hook on {way.node} may change."
            case Doubt.CUSTOM:
                return (
                    f"only the custom function {way.node.removesuffix('Backward')} leads to it, "
                    f"whose own backward decides whether it gets a gradient (none, where it "
                    f"returns None)."
                )
            case Doubt.ZEROS:
                return (
                    f"a backward gives it zeros, since the derivative of {way.node} on the way to "
                    f"it is 0."
                )
        without = [one for one in self.operations or () if one.reason == NO_DERIVATIVE]
        where = f": {_describe(without[0])}" if without else ""
        return f"a backward raises at {way.node} on the way to it, which has no derivative{where}."

    def notes(self) -> Iterator[str]:
        """Yield a sentence on what cuts gradients off in a watched forward."""
        cuts = [one for one in self.operations or () if one.reason not in ("", INSIDE)]
        if cuts:
            several = f", and {len(cuts) - 1} more" if len(cuts) > 1 else ""
            where = replace(cuts[0], line=PurePath(cuts[0].line).name)
            yield (
                f"gradients are cut off: {_describe(where)}{several}; why_no_grad(parameter) "
                f"tells which of them matter"
            )

    def _path(self, parameter: str | Tensor) -> str:
        if not self.trainable:
            raise InputError(
                "The graph knows no parameters by name; give the model: "
                "tt.graph(tensor, model=model)."
            )
        if isinstance(parameter, str):
            if parameter not in self.trainable and parameter not in self.aliases:
                near = did_you_mean(parameter, list(self.trainable))
                raise InputError(f"The model has no parameter {parameter!r}{near}")
            return parameter
        for path, ref in self.refs.items():
            if ref() is parameter:
                return path
        raise InputError(
            "This tensor is no parameter of the model that the graph was made with; expected one "
            "of model.named_parameters(), or its name."
        )

    def _watched(self, asked: str, path: str, operations: tuple[Operation, ...]) -> str:
        reached, cut = self._follow(path, operations)
        if not reached and not cut:
            return f"{asked} is not in the graph: no operation of the forward used it."
        inside = [one for one in cut if one.reason == INSIDE]
        if inside and not any(one.reason == UNMARKED for one in cut):
            return (
                f"{asked} is used inside a custom function (a reentrant checkpoint, for one), "
                f"whose own backward decides whether it gets a gradient: {_describe(inside[0])}."
            )
        cut = [one for one in cut if one.reason != INSIDE]
        if cut:
            said = "; ".join(_describe(one) for one in cut[:_MOST])
            more = f"; and {len(cut) - _MOST} more" if len(cut) > _MOST else ""
            other = "" if reached else " No other way leads on."
            return f"{asked} is cut off: {said}{more}.{other}"
        last = _describe(reached[-1])
        return (
            f"{asked} was used, and no operation that was seen cuts it off; what became of it does "
            f"not lead to the result, or by a shape alone (last: {last})."
        )

    def _follow(
        self, path: str, operations: tuple[Operation, ...]
    ) -> tuple[list[Operation], list[Operation]]:
        """Operations that a parameter led to: those that let gradients through, and the others."""
        marks: set[int | str] = {path}
        reached, cut = [], []
        for number, one in enumerate(operations):
            if marks.isdisjoint(one.sources):
                continue
            if one.has_grad:
                marks.add(number)
                reached.append(one)
            else:
                cut.append(one)
        return reached, cut


def _describe(one: Operation) -> str:
    where = f" in {one.path}" if one.path else ""
    line = f" at {one.line}" if one.line else ""
    why = f" {one.reason}" if one.reason else ""
    return f"{one.name}{where}{line}{why}"
