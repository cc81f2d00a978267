"""Keep a value as it was at the moment of the tap.

Keeping a tensor costs nothing (an alias) unless the program writes into it later; then it must be
copied, and copied before. The writer cannot be known beforehand (``out += x`` stands in the
caller's code), so a site is copied until one whole pass has shown that it does not. An alias
carries the version that autograd gives every tensor: if it was overwritten all the same, the
record says so instead of handing out the wrong number, and the site is copied from then on.

Copy-on-write (``torch._lazy_clone``) would need no learning, but an operator that asks for a
writable pointer inside a parallel region, as ``ctc_loss`` does, then fails: it would break models
that work.
"""

from __future__ import annotations

from collections.abc import Container
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from torchtap.core.distributed import local
from torchtap.core.inference_mode import normal_copy
from torchtap.core.record import UNVERSIONED
from torchtap.hooks.tap import SiteState

COPY_MODES = ("auto", "always", "never")
Kept = tuple[Tensor, int, tuple[str, ...]]
ALIAS = "borrow"
"""Nothing is kept: the sink reads the value inside of the hook."""
_version_of = attrgetter("_version")


class CopyPolicy:
    """Keeps values, and learns which sites are overwritten.

    Args:
        copy: ``auto`` (as above), ``always``, ``never``, or :data:`ALIAS`.

    Attributes:
        witnesses: of the values of a pass, one after the other: its state, an alias, and the
            version that it had. Tuples would be as many objects more for Python's collector.
    """

    def __init__(self, copy: str) -> None:
        self.copy = copy
        self.witnesses: list[Any] = []
        self._known: list[SiteState] = []
        self._empty: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def keep(self, state: SiteState, tensor: Tensor, foreign: Container[int] = ()) -> Kept:
        """Keep a tensor of any kind.

        Args:
            state: where it was seen.
            tensor: what flows.
            foreign: storages (see :func:`storage_id`) that others may write into without torch
                knowing: arguments from outside (numpy aliases), parameters, buffers, gradients
                that the caller of a backward handed in.

        Returns:
            a detached tensor, of a distributed one what this rank holds of it; the version that
            it must still have when it is read (:data:`~torchtap.core.record.UNVERSIONED` if nothing
            can overwrite it); and labels that say which part it is.
        """
        own, labels = local(tensor)
        # The sink has read it before the hook returns, so no writer can come in between.
        if self.copy == ALIAS:
            return own, UNVERSIONED, labels
        if tensor.is_inference() or self._must_copy(state, tensor, foreign):
            return normal_copy(own), UNVERSIONED, labels
        # A gradient is kept itself: were only an alias held, AccumulateGrad would steal the tensor
        # for .grad, since nobody else refers to it, and add later gradients to it in place
        # (torch/csrc/autograd/functions/accumulate_grad.h).
        is_own_gradient = not tensor.requires_grad and state.site.is_gradient
        alias = tensor if is_own_gradient else tensor.detach()
        return alias, alias._version, labels

    def keep_first(
        self, state: SiteState, tensor: Tensor, foreign: Container[int]
    ) -> Tensor | None:
        """Copy the first value of a site, made by an operation: ``keep`` in short.

        Args:
            state: where it was seen.
            tensor: a plain one, and no view.
            foreign: see :meth:`keep`.

        Returns:
            a copy, or ``None`` where :meth:`keep` has to decide.
        """
        is_new = self.copy == "auto" and state.copies is None
        if not is_new or tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if tensor.untyped_storage()._cdata in foreign:
            return None
        alias = tensor.detach()
        try:
            copied = alias.clone()
        except RuntimeError:  # No memory is left, for instance.
            return None
        self._watch_out(state, alias)
        return copied

    def _must_copy(self, state: SiteState, tensor: Tensor, foreign: Container[int]) -> bool:
        if self.copy != "auto":
            state.copies = self.copy == "always"
            return state.copies
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_nested:
            return True  # No storage to tell who shares it.
        if tensor.requires_grad and tensor.grad_fn is None and not state.site.is_gradient:
            return True  # A leaf: a tensor of the program's own.
        # By the address of the storage object: data_ptr() of an empty tensor is 0, and CUDA's
        # allocator hands the same address out again.
        if tensor.untyped_storage()._cdata in foreign:
            return True
        if state.copies is None:
            self._watch_out(state, tensor.detach())
            return True
        return state.copies

    def _watch_out(self, state: SiteState, witness: Tensor) -> None:
        """Keep the version counter of an alias, which counts later writes, but no memory."""
        version = witness._version
        # Setting ``data`` exchanges sizes and storage, and leaves the version counter: so the
        # emptied witness still counts writes into the tensor, and keeps none of its memory.
        witness.data = self.nothing_like(witness)
        self.witnesses.extend((state, witness, version))  # In one piece, for other threads.

    def nothing_like(self, tensor: Tensor) -> Tensor:
        """Return an empty tensor of the same kind."""
        kind = tensor.dtype, tensor.device
        if kind not in self._empty:
            self._empty[kind] = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return self._empty[kind]

    def learn(self) -> None:
        """Conclude from the pass that has ended."""
        # Another thread may still add to the list: what it adds from here on is for the next pass.
        ended, self.witnesses = self.witnesses, []
        ended = ended[:]
        versions = map(_version_of, ended[1::3])
        for state, version, was in zip(ended[::3], versions, ended[2::3], strict=False):
            # Overwritten once, a site is copied for good: which steps write (every tenth, say) is
            # not learned.
            if version != was:
                state.copies = True
            elif state.copies is None:
                state.copies = False
                self._known.append(state)

    def forget(self) -> None:
        """Start again, because the model changed its ways (train to eval)."""
        for state in self._known:
            state.copies = None
        self._known.clear()
