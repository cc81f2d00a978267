"""Check whether gradients are the same with offloading."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.errors import InputError, OffloadError
from torchtap.core.module_paths import modules_of
from torchtap.core.preserved import preserved
from torchtap.core.printed import Printed
from torchtap.core.printed_page import Page
from torchtap.saved.offload_engine import OffloadEngine
from torchtap.saved.offload_notes import named
from torchtap.saved.offload_report import OffloadReport, show_gradients
from torchtap.saved.suspend import suspend_offload
from torchtap.saved.tiers import CodecTier, Tier


class Gradients(Printed, dict[str, float]):
    """Path of a parameter -> relative error of its gradient. Printing it shows the worst.

    Attributes:
        spoiled: parameters whose gradient is finite without offloading and not with it.
        packed_nbytes: bytes that were taken in hand meanwhile. With 0 nothing is proved.
    """

    def __init__(
        self, errors: Mapping[str, float], *, spoiled: tuple[str, ...], packed_nbytes: int
    ) -> None:
        super().__init__(errors)
        self.spoiled = spoiled
        self.packed_nbytes = packed_nbytes

    @property
    def worst(self) -> float:
        """Return the largest error; 0 where all are equal to the bit."""
        return max(self.values(), default=0.0)

    def _page(self) -> Page:
        return show_gradients(self, packed_nbytes=self.packed_nbytes)


def compare_gradients(
    loss: Callable[[], Tensor],
    model: nn.Module,
    engine: OffloadEngine,
    around: AbstractContextManager[None],
) -> Gradients:
    """Run a step without offloading and with it, and compare the gradients of the parameters.

    Args:
        loss: as in :meth:`Offload.verify <torchtap.saved.offload.Offload.verify>`.
        model: whose parameters to compare.
        engine: what offloads.
        around: what is entered around the forward of the second step.

    Raises:
        InputError: none of the parameters is trainable, or the loss is no single number that
            depends on them.
    """
    trainable = {name: one for name, one in model.named_parameters() if one.requires_grad}
    if not trainable:
        raise InputError(
            f"No parameter of {type(model).__name__} requires a gradient, so there is nothing "
            f"to verify. Verify before freezing, or compare the gradients of inputs yourself."
        )
    modules, _ = modules_of(model)

    def gradients(context: AbstractContextManager[None]) -> tuple[Tensor | None, ...]:
        with preserved(modules):
            with context:
                value = _one_number(loss())
            engine.flush()  # What is still in memory would prove nothing.
            return torch.autograd.grad(value, list(trainable.values()), allow_unused=True)

    # Both run from the same state: preserved() puts buffers and random numbers back after each.
    plain = gradients(suspend_offload())
    before = engine.report()
    moved = gradients(around)
    after = engine.report()
    pairs = list(zip(trainable, plain, moved, strict=True))
    return Gradients(
        {name: _relative(a, b) for name, a, b in pairs},
        spoiled=tuple(name for name, a, b in pairs if _is_finite(a) and not _is_finite(b)),
        packed_nbytes=after.packed_nbytes - before.packed_nbytes,
    )


def check_proof(
    errors: Gradients, tiers: Sequence[Tier], report: Callable[[], OffloadReport]
) -> None:
    """Raise unless gradients are as they must be with these tiers.

    Raises:
        OffloadError: they differ, are no longer finite, or nothing was offloaded.
    """
    if not errors.packed_nbytes:
        notes = "; ".join(report().notes) or "the loss saved nothing in an attached module"
        raise OffloadError(f"verify= proves nothing: nothing was offloaded. {notes}.")
    codecs = [tier.name for tier in tiers if isinstance(tier, CodecTier)]
    if codecs and errors.spoiled:
        way_out = "Leave those modules out with where=."
        if any(not name.startswith("bf16") for name in codecs):
            way_out = (
                "tt.codecs.bf16() reaches as far as float32; or leave modules out with where=."
            )
        raise OffloadError(
            f"With {', '.join(codecs)} the gradients of {named(errors.spoiled)} are infinite or "
            f"NaN, and finite without: a saved value is beyond what the smaller form can hold. "
            f"{way_out}"
        )
    wrong = [name for name, error in errors.items() if error]
    if wrong and not codecs:
        raise OffloadError(
            f"Offloading changed the gradients of {named(wrong)}: relative error up to "
            f"{errors.worst:.3g}. Does the loss do the same each time that it is run?"
        )


def _one_number(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1 and value.requires_grad:
        return value
    what = type(value).__name__
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        what = f"{dtype}{list(value.shape)}" + ("" if value.requires_grad else " without a graph")
    raise InputError(
        f"The loss to verify with returned {what}; expected one number as a tensor that depends "
        f"on the parameters, as in lambda: model(x).mean()."
    )


def _is_finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(_wide(gradient).isfinite().all())


def _relative(plain: Tensor | None, moved: Tensor | None) -> float:
    if plain is None or moved is None:
        return 0.0 if plain is moved else float("nan")
    first, second = _wide(plain), _wide(moved)
    if bool(((first == second) | (first.isnan() & second.isnan())).all()):
        return 0.0
    norm = float(torch.linalg.vector_norm(first))
    difference = float(torch.linalg.vector_norm(second - first))
    return difference / norm if norm else float("inf")


def _wide(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense() if gradient.layout is not torch.strided else gradient
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)
