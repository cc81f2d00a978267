"""The tensor of logits in what a model returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.core.tree import leaves

_MOST_NAMES = 4


@dataclass(frozen=True, slots=True)
class Logits:
    """A tensor in an output.

    Attributes:
        name: of its leaf; empty where the output is the tensor.
        values: the tensor.
        note: that the output has others; empty where it has none, or the name says enough.
    """

    name: str
    values: Tensor
    note: str = ""

    @property
    def text(self) -> str:
        """Return the name of the logits as text: ``output``, or ``output[logits]``."""
        return f"output[{self.name}]" if self.name else "output"

    @property
    def code(self) -> str:
        """Return the code by which a function of the output ``out`` reaches the logits."""
        parts = self.name.split(".") if self.name else []
        return "out" + "".join(f"[{one}]" if one.isdigit() else f"[{one!r}]" for one in parts)


def logits_of(output: Any) -> Logits:
    """The logits in a model's output, and where they stand in it.

    They are the tensor called ``logits``, or else the first floating one with dimensions.

    Raises:
        InputError: there is no floating tensor, or each picture has a dict of its own.
    """
    _refuse_detections(output)
    floating = [(name, one) for name, one in leaves(output) if one.is_floating_point()]
    for name, one in floating:
        if name.rpartition(".")[2] == "logits":
            return Logits(name, one)
    if not floating:
        raise InputError(
            f"The model returned {kind_of(output)} without a floating tensor, so no class can have "
            f"won. Give target= a function of the output."
        )
    several = [(name, one) for name, one in floating if one.dim()] or floating
    name, first = several[0]
    if len(several) == 1:
        return Logits(name, first)
    shown = ", ".join(f"{name} ({kind_of(one)})" for name, one in several[1 : 1 + _MOST_NAMES])
    more = ", ..." if len(several) > 1 + _MOST_NAMES else ""
    note = (
        f"the model returned {len(several)} floating tensors, and the target is of the first, "
        f"output[{name}]; a function of the output takes another: {shown}{more}"
    )
    return Logits(name, first, note)


def _refuse_detections(output: Any) -> None:
    """Refuse the output of a detector: a list with a dict of boxes and scores for each picture."""
    if not isinstance(output, list | tuple) or not output:
        return
    if not all(isinstance(one, Mapping) for one in output):
        return
    keys = list(map(str, output[0]))
    key = "scores" if "scores" in keys else next(iter(keys), "scores")
    raise InputError(
        f"The model returned a {type(output).__name__} of {len(output)} dicts ("
        f"{', '.join(keys) or 'empty'}), as detectors do, one for each picture, so there is no "
        f"tensor with a row of logits for each. Give target= a function of the output that makes "
        f"one number for each picture, as in "
        f"target=lambda out: torch.stack([one[{key!r}].sum() for one in out])."
    )
