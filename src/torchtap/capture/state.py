"""Parameters and buffers: as they are when a step begins, and the gradients they accumulate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torchtap.core.lasting import lasting_copy
from torchtap.core.local import is_distributed, is_partial, local, sharded_parameters
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.tensors import obstacle
from torchtap.hooks.backwards import Backwards
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.no_grad import why_no_grad
from torchtap.hooks.param_hooks import ParamHooks, owns
from torchtap.hooks.spots import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.plan import Plan


class State:
    """The ports ``param``, ``buffer`` and ``param_grad``.

    Values are copied unless they are read at once: the optimizer is about to overwrite them, and
    others may hold pointers into them.

    Attributes:
        was_taken: whether they were, in any step.
    """

    def __init__(
        self,
        plan: Plan,
        taps: Mapping[str, Tap],
        emit: Callable[[Record], None],
        *,
        borrows: bool,
    ) -> None:
        self.step = 0
        self.recording = self.was_taken = False
        wanted = {"param", "buffer", "param_grad"}
        self._planned = [planned for planned in plan.taps if wanted & set(planned.ports)]
        self._taps = taps
        self._emit = emit
        self._borrows = borrows
        self._hooks = ParamHooks()
        self._waiting: dict[SiteState, Record] = {}

    def take(self) -> None:
        """Keep parameters and buffers as they are now."""
        self.was_taken = True
        step, shards = self.step, sharded_parameters()
        for tap, module in self._owners():
            for port, held in (("param", module._parameters), ("buffer", module._buffers)):
                for name, tensor in held.items() if port in tap.filters else ():
                    spot = None if tensor is None else tap.spot(port, name)
                    if spot is None or tensor is None:
                        continue
                    tensor = shards.get(id(tensor), tensor)
                    if spot.meter(tensor, step):
                        spot.seen, spot.reason = True, None
                    else:
                        self._keep(spot, tensor)

    def _keep(self, spot: SiteState, tensor: Tensor) -> None:
        spot.reason = obstacle(tensor)
        if spot.reason is None:
            spot.seen = True
            own, labels = local(tensor)
            kept = own if self._borrows else lasting_copy(own)
            self._emit(Record(spot.site, self.step, 0, FORWARD, -1, labels, kept, UNVERSIONED))

    @property
    def is_wanted(self) -> bool:
        """Whether any of these ports is."""
        return bool(self._planned)

    @property
    def hooks_params(self) -> bool:
        """Whether any parameter's gradient is waited for."""
        return bool(self._hooks)

    def hook_params(self, backwards: Backwards) -> None:
        """Hook parameters that are new: replaced since the last step, or lazy until now."""
        shards = sharded_parameters()
        has = self._hooks.has  # True of nearly every parameter, at each call of the model.
        for tap, module in self._owners():
            for name, held in module._parameters.items() if "param_grad" in tap.filters else ():
                if held is None:
                    continue
                param = shards.get(id(held), held)
                if has(tap.path, name, param):
                    continue
                spot = tap.spot("param_grad", name)
                if spot is None or obstacle(held) is not None:
                    continue
                if not param.requires_grad:
                    spot.reason = why_no_grad(param)
                    continue
                if not param.is_leaf:
                    spot.reason = "the call put another tensor in the parameter's place"
                    continue
                hook = partial(self._take_gradient, backwards, spot, weakref.ref(module))
                handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooks.add(tap.path, name, param, handle)

    def _take_gradient(
        self,
        backwards: Backwards,
        spot: SiteState,
        module: Callable[[], nn.Module | None],
        param: Tensor,
    ) -> None:
        gradient = param.grad
        if gradient is None or not self.recording or not owns(module(), spot.site.leaf, param):
            return
        gradient, labels = _own_part(gradient)
        if not labels and spot.meter(gradient, self.step):  # A meter knows nothing of labels.
            spot.seen = True
            return
        number = backwards.number()
        if self._borrows:
            spot.seen = True
            row = (spot.site, self.step, number, FORWARD, number, labels, gradient, UNVERSIONED)
            self._emit(Record(*row))
            return
        # Copied here, since other hooks may use it up (an optimizer that runs in backward), but
        # handed on at the end: reentrant checkpoints accumulate several times in one backward.
        kept = lasting_copy(gradient)
        row = Record(spot.site, self.step, number, FORWARD, number, labels, kept, UNVERSIONED)
        self._waiting[spot] = row

    def deliver(self) -> None:
        """Hand on parameter gradients, now that the backward has ended."""
        waiting, self._waiting = self._waiting, {}
        for spot, row in waiting.items():
            spot.seen = True
            self._emit(row)

    def release(self) -> None:
        """Take the hooks off."""
        self._hooks.release()

    def _owners(self) -> Iterator[tuple[Tap, nn.Module]]:
        for planned in self._planned:
            module = planned.module()
            if module is not None:
                yield self._taps[planned.path], module


def _own_part(gradient: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """What this rank holds of a parameter's gradient, and whether that is its own or of all."""
    own, labels = local(gradient)
    if is_distributed(gradient):
        return own, labels if is_partial(gradient) else ("reduced", *labels)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return own, ("local", *labels)
    return own, labels


keep_dynamo_out(State._take_gradient)
