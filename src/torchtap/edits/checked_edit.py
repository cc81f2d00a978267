"""A function that is to change what flows, called with care: its result is looked at."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from torchtap.core.distributed import local
from torchtap.core.errors import EditError
from torchtap.core.record import Record
from torchtap.core.site import Site
from torchtap.core.tensors import kind_of, same_bits, same_shape
from torchtap.core.user_functions import Function, name_of, place, takes_record

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class Scaler(Protocol):
    """Interface of a ``torch.amp.GradScaler``, as far as it is needed."""

    def get_scale(self) -> float:
        """Return the factor that gradients carry now."""


class CheckedEdit:
    """Calls a user's function on one tensor, and looks at what it did.

    Args:
        function: see :data:`Function`.
        scaler: gradients carry its factor; the function sees them without.
        name: what messages call it; by default the function's own name.

    Attributes:
        name: what messages call it.
    """

    __slots__ = ("_function", "_is_known", "_proven", "_scaler", "_takes_record", "name")

    def __init__(
        self, function: Function, scaler: Scaler | None = None, name: str | None = None
    ) -> None:
        self.name = name or name_of(function)
        self._function = function
        self._takes_record = takes_record(function)
        self._is_known = getattr(function, "writes_nothing", False)
        self._scaler = scaler
        # By id, which is cheap to ask for; the site itself, so that no other gets its id.
        self._proven: dict[int, Site] = {}

    def __call__(self, tensor: Tensor, record: Record) -> Tensor | None:
        """Return the tensor to go on with; ``None`` if the function left it as it is.

        Raises:
            EditError: it wrote into the tensor, or returned something that does not fit.
        """
        if self._scaler is not None and record.site.is_gradient:
            return self._in_true_units(tensor, record, self._scaler.get_scale())
        return self._checked(tensor, record)

    def _in_true_units(self, tensor: Tensor, record: Record, factor: float) -> Tensor | None:
        # In half precision the true gradient may be too small to stand there.
        true = tensor.to(_WIDE.get(tensor.dtype, tensor.dtype)) / factor
        new = self._checked(true, record._replace(kept=true))
        return None if new is None or new is true else (new * factor).to(tensor.dtype)

    def _checked(self, tensor: Tensor, record: Record) -> Tensor | None:
        # Inference tensors have no version counter, and asking raises.
        version = -1 if tensor.is_inference() else tensor._version
        # requires_grad_() changes no version, and would make a leaf of a tensor of the model's.
        is_tracked = tensor.requires_grad
        before = None
        if not self._is_known and (version < 0 or id(record.site) not in self._proven):
            # A write through .data or numpy leaves no version: seen the first time at each site.
            before = local(tensor)[0].detach().clone()
        try:
            new = self._function(tensor, record) if self._takes_record else self._function(tensor)
        except BaseException as error:
            error.add_note(f"In edit {self.name!r} at {place(record)}.")
            raise
        if (version >= 0 and tensor._version != version) or tensor.requires_grad is not is_tracked:
            raise self._wrote(record)
        if before is not None:
            if not same_bits(before, tensor):
                raise self._wrote(record)
            self._proven[id(record.site)] = record.site
        if new is not None and new is not tensor:
            self._check(new, tensor, record)
        return new

    def _check(self, new: object, tensor: Tensor, record: Record) -> None:
        fits = (
            isinstance(new, Tensor)
            and same_shape(new, tensor)
            and new.dtype == tensor.dtype
            and new.device == tensor.device
            and new.layout == tensor.layout
        )
        if not fits:
            came = "had arrived" if record.site.is_gradient else "was there"
            raise EditError(
                f"Edit {self.name!r} at {place(record)} returned {kind_of(new)} where "
                f"{kind_of(tensor)} {came}. An edit keeps shape, dtype and device; None leaves "
                f"the tensor as it is."
            )

    def _wrote(self, record: Record) -> EditError:
        harm = (
            "may share that memory with other gradients"
            if record.site.is_gradient
            else "gives right values and wrong gradients"
        )
        return EditError(
            f"Edit {self.name!r} at {place(record)} wrote into the tensor that it was given, which "
            f"{harm}: write into tensor.clone() and return it."
        )
