"""Norms that are clipped: of each tensor, or of all together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from torchtap.core.errors import EditError
from torchtap.edits.catalogue.ready import Ready, expect, is_real
from torchtap.edits.clipping import Clipping
from torchtap.edits.edit_engine import WantsCall

if TYPE_CHECKING:
    from torchtap.core.plan import Plan
    from torchtap.core.record import Record
    from torchtap.edits.checked_edit import CheckedEdit
    from torchtap.edits.missed_edits import OneEdit


class ClipNorm(Ready):
    """See :func:`clip_norm`.

    Attributes:
        over_all: over all parameters together, at the optimizer step.
    """

    __slots__ = ("max_norm", "over_all", "p")

    def __init__(self, max_norm: float, p: float, over: str) -> None:
        self.max_norm = max_norm
        self.p = p
        self.over_all = over == "all"
        arguments = {
            "max_norm": max_norm,
            "p": None if p == 2 else p,
            "over": None if over == "tensor" else over,
        }
        super().__init__("clip_norm", arguments, self._clipped)

    def editor(self, plan: Plan, change: CheckedEdit, *, wants_call: WantsCall) -> OneEdit:
        """Works at the optimizer step, where the norm is over all parameters."""
        if not self.over_all:
            return super().editor(plan, change, wants_call=wants_call)
        others = {port for planned in plan.taps for port in planned.ports} - {"param_grad"}
        if others:
            raise EditError(
                f"{self!r} works on parameters at the optimizer step; it cannot edit "
                f"{', '.join(sorted(others))}. Select '*:param_grad'."
            )
        return Clipping(plan, self, norm_of)

    def _clipped(self, tensor: Tensor, _: Record) -> Tensor:
        factor = self.factor([norm_of(tensor, self.p)])
        clipped: Tensor = tensor * factor.to(tensor.dtype)
        return clipped

    def factor(self, norms: Sequence[Tensor], scale: float | Tensor = 1.0) -> Tensor:
        """Return the factor to multiply by, given the norms of the parts, each times ``scale``."""
        whole = torch.linalg.vector_norm(torch.stack(list(norms)), self.p) / scale
        # As torch.nn.utils.clip_grad_norm_: the small number keeps a zero norm from dividing.
        factor: Tensor = self.max_norm / (whole + 1e-6)
        return factor.clamp(max=1.0)


def clip_norm(
    max_norm: float, *, p: float = 2.0, over: Literal["tensor", "all"] = "tensor"
) -> ClipNorm:
    """Scale a tensor down to a norm of at most ``max_norm``.

    The formula is that of ``torch.nn.utils.clip_grad_norm_``, with the norm taken in float64.
    A norm that is not finite makes everything NaN, as there.

    Args:
        max_norm: the largest norm.
        p: which norm, as in ``torch.linalg.vector_norm``.
        over: ``tensor``: each by itself, when it comes by. ``all``: all selected parameters as
            one vector, just before the optimizer makes its step; for ``param_grad`` only. There
            gradients are accumulated, averaged over ranks, and free of a ``GradScaler``'s factor
            (it skips the steps whose gradients hold inf or NaN, and so does the clipping).

    With ``over="tensor"`` on gradients, under a ``GradScaler``, give it to ``tt.edit`` too
    (``scaler=``): else the norm, and so ``max_norm``, are in its units.

    Raises:
        InputError: an argument does not fit.

    Example:
        >>> import torch, torchtap as tt
        >>> linear = torch.nn.Linear(2, 1, bias=False)
        >>> with tt.edit(linear, ".:param_grad", tt.edits.clip_norm(1.0)):
        ...     linear(torch.tensor([[3.0, 4.0]])).sum().backward()
        >>> linear.weight.grad
        tensor([[0.6000, 0.8000]])
    """
    is_norm = is_real(max_norm) and max_norm >= 0
    expect(is_norm, "clip_norm", "max_norm", max_norm, "a number from 0 on")
    expect(is_real(p), "clip_norm", "p", p, "a number, as in torch.linalg.vector_norm")
    expect(over in ("tensor", "all"), "clip_norm", "over", over, "'tensor' or 'all'")
    return ClipNorm(float(max_norm), float(p), over)


def norm_of(tensor: Tensor, p: float) -> Tensor:
    """Return the norm of all elements, in float64 where the device has it."""
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor).flatten(-2) if p == 2 else tensor.abs()
    norm: Tensor = torch.linalg.vector_norm(tensor, p, dtype=wide)
    return norm
