"""The result of a comparison: rows, the first that matters, and what it could not see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page


@dataclass(frozen=True, slots=True)
class Row:
    """One value that is not the same, to the bit, on both sides.

    Attributes:
        path: of the module in the reference, ``.`` for the model.
        other: its path in the candidate.
        port: ``output``, ``grad_input``, ``param_grad`` and so on.
        call: which execution of the module, in the reference, from 0.
        phase: ``forward``, ``backward``, ``optimizer``, ``parameter`` (state when the step began)
            or ``eval``.
        total: distance of the two values, ``|x - y| / max(|x|, |y|)`` over all elements (Euclidean,
            in float64): 0 for equal ones, at most 2, the same from both sides. ``inf`` where shapes
            differ, or where one is finite and the other is not. Of measured statistics it is a
            lower bound.
        inherited: distance of the inputs that the call got (of its incoming gradients, in the
            backward); NaN where they are not known.
        added: distance that the call adds: of the candidate's module, given the inputs of the
            reference, to the output of the reference. Of two runs it is ``total`` where nothing
            is inherited. NaN where it is not known.
        tolerance: the distance that rounding explains.
        cause: one of ``weights buffers mode input computation dtype random missing order``; empty
            where the row is within rounding or only inherits. ``computation`` is what is left:
            the call computes something else, and nothing that is known explains it.
        text: a sentence.
        step: of the reference; 0 of modules.
    """

    path: str
    other: str
    port: str
    call: int
    phase: str
    total: float
    inherited: float
    added: float
    tolerance: float
    cause: str = ""
    text: str = ""
    step: int = 0

    @property
    def is_beyond(self) -> bool:
        """Return whether the distance is more than rounding explains."""
        return not self.total <= self.tolerance

    @property
    def name(self) -> str:
        """Return the paths, where they differ with an arrow between them."""
        return self.path if self.path == self.other else f"{self.path} → {self.other}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Printed):
    """The result of ``tt.compare``. ``bool()`` is ``same``; printing it shows a table.

    Attributes:
        same: nothing differs beyond what rounding explains.
        rows: what is not equal to the bit, in the order of execution: forward, then backward, then
            state.
        first: the row where the difference begins; ``None`` if there is none.
        only_a: paths that only the reference has, of modules that ran or were recorded.
        only_b: likewise, of the candidate.
        notes: what was compared, and what could not be seen.
        pairs: how calls were aligned: ``(path, path in the candidate, call)`` each.
        names: of the reference and the candidate, in texts.
        steps: those of the reference that were compared; none of two modules.
        steps_alone: how many steps the reference has without a partner, and the candidate.

    Example:
        >>> import torch, torchtap as tt
        >>> one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        >>> tt.compare(one, two, torch.ones(1, 2)).first.cause
        'weights'
    """

    same: bool
    rows: Sequence[Row] = ()
    first: Row | None = None
    only_a: Sequence[str] = ()
    only_b: Sequence[str] = ()
    notes: Sequence[str] = ()
    pairs: Sequence[tuple[str, str, int]] = field(default=(), compare=False)
    names: tuple[str, str] = ("a", "b")
    steps: Sequence[int] = ()
    steps_alone: tuple[int, int] = (0, 0)

    def __bool__(self) -> bool:
        return self.same

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data for JSON."""
        return {
            "same": self.same,
            "names": list(self.names),
            "first": None if self.first is None else asdict(self.first),
            "rows": [asdict(row) for row in self.rows],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "notes": list(self.notes),
            "pairs": [list(pair) for pair in self.pairs],
            "steps": list(self.steps),
            "steps_alone": list(self.steps_alone),
        }

    def _page(self) -> Page:
        from torchtap.diagnosis.comparison.show_comparison import show_comparison

        return show_comparison(self)
