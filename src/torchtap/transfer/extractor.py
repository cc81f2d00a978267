"""Takes tensors out of the middle of a forward, and stops it when the last one is there."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtap.core.errors import CaptureError
from torchtap.core.plan import Filter
from torchtap.core.site import Site
from torchtap.core.tree import Leaf, argument_leaves, leaves
from torchtap.hooks.call_follower import CallFollower
from torchtap.hooks.checkpoint_calls import is_in_reentrant_checkpoint
from torchtap.hooks.marks import open_editors
from torchtap.hooks.module_hook import NEEDED, VALUES, Keywords, ModuleHook, keep_dynamo_out
from torchtap.transfer.buffer_copies import settle_stand_ins

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

LAST = -1
Place = tuple[str, str]
"""Path and port."""


class _Enough(BaseException):
    """The last one is there. No ``Exception``, so that no model takes it for one of its own."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor


class Extractor:
    """Hears one forward, in this thread, and keeps what was asked for.

    Args:
        plan: what is wanted (ports ``input`` and ``output``, and marks).
        call: which call of a module, or :data:`LAST`.
        may_stop: whether the forward may be left in the middle.

    Attributes:
        found: site -> tensor, in the order of arrival.
        counts: how often each place came by.
        marks: names of the marks that came by.
    """

    def __init__(self, plan: Plan, call: int, *, may_stop: bool) -> None:
        self.serial = -1
        self.found: dict[Site, Tensor] = {}
        self.counts: Counter[Place] = Counter()
        self.marks: set[str] = set()
        self._plan = plan
        self._call = call
        # Which call is the last is known only when the forward has ended.
        self._may_stop = may_stop and call != LAST
        self._waiting: set[Any] = {(tap.path, port) for tap in plan.taps for port in tap.ports}
        self._waiting |= set(plan.unmatched)
        self._thread = threading.get_ident()
        self._wants_graph = False
        self._running: dict[Site, tuple[Tensor, int]] = {}

    def run(
        self, model: nn.Module, modules: Mapping[str, nn.Module], args: Any, kwargs: Any
    ) -> None:
        """Call the model as far as needed.

        Raises:
            CaptureError: a feature is asked for where a graph is wanted and is not available.
        """
        follower: CallFollower[Any] = CallFollower()
        self._wants_graph = torch.is_grad_enabled()
        try:
            for tap in self._plan.taps:
                for port, wanted in tap.filters.items():
                    place = tap.path, port
                    is_input = port == "input"
                    before = _Entered(self, place, wanted) if is_input else None
                    after = None if is_input else _Left(self, place, wanted)
                    follower.put_on(modules[tap.path], pre_hook=before, post_hook=after)
            self.serial = next(_last)  # After all edits.
            open_editors.add(self)
            model(*args, **kwargs)
        except _Enough as enough:
            if enough.extractor is not self:
                raise
            # PyTorch calls no forward hook after a BaseException (_call_impl in
            # torch/nn/modules/module.py), so those that give buffers back were not called.
            settle_stand_ins()
        finally:
            open_editors.discard(self)
            follower.release()
        self._settle()

    def mark(self, tensor: Tensor, name: str) -> Tensor:
        """Take an intermediate tensor that was marked."""
        self.marks.add(name)
        wanted = self._plan.mark_filters(name).get("output")
        is_taken = name in self._plan.types or name in self._plan.aliases
        if wanted is not None and not is_taken and threading.get_ident() == self._thread:
            for pattern in self._plan.unmatched:
                if pattern.matches_module(name):
                    self._waiting.discard(pattern)
            self.take((name, "output"), wanted, [("", tensor)])
        return tensor

    def take(self, place: Place, wanted: Filter, found: list[Leaf]) -> None:
        """Keep a tensor that came by, if it was asked for.

        Raises:
            _Enough: it was the last.
            CaptureError: a graph is wanted, and a reentrant checkpoint makes none.
        """
        # Another thread may run the same model now, whose tensors are none of ours.
        if threading.get_ident() != self._thread:
            return
        number = self.counts[place]
        self.counts[place] += 1
        if self._call not in (number, LAST):
            return
        if self._wants_graph and not torch.is_grad_enabled() and is_in_reentrant_checkpoint():
            raise CaptureError(
                f"{Site(*place)} is inside a reentrant checkpoint, which runs it without a graph, "
                f"so the feature could not be differentiated. Use checkpoint(use_reentrant=False), "
                f"or take features under torch.no_grad()."
            )
        self._waiting.discard(place)
        is_enough = self._may_stop and not self._waiting
        for leaf, tensor in found:
            if wanted.accepts(leaf):
                site = Site(*place, leaf)
                self._running.pop(site, None)
                if is_enough:
                    self.found[site] = tensor
                    continue
                self.found[site] = tensor.clone()  # What runs from here on might overwrite it.
                if tensor.grad_fn is not None:
                    self._running[site] = tensor, tensor._version
        if is_enough:
            raise _Enough(self)

    def _settle(self) -> None:
        """Clone what was not overwritten at the end of the forward, and not in the middle.

        Autograd runs what was made last first, and adds gradients in that order: so those of the
        features are added as if the tensors themselves had been used, to the bit.
        """
        running, self._running = self._running, {}
        if torch.is_grad_enabled():
            for site, (tensor, version) in running.items():
                if tensor._version == version:
                    self.found[site] = tensor.clone()


_last = itertools.count(1 << 62)


class _Entered(ModuleHook[Extractor]):
    """Forward pre-hook: an input comes by.

    Args:
        place: path and port.
        wanted: which of its leaves are.
    """

    __slots__ = ("place", "wanted")

    with_kwargs = True

    def __init__(self, owner: Extractor, place: Place, wanted: Filter) -> None:
        super().__init__(owner, NEEDED)
        self.place = place
        self.wanted = wanted

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        self.owner.take(self.place, self.wanted, argument_leaves(args, kwargs or {}))


class _Left(_Entered):
    """Forward hook: an output comes by."""

    __slots__ = ()

    with_kwargs = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        self.owner.take(self.place, self.wanted, leaves(output))


keep_dynamo_out(_Entered.__call__, _Left.__call__, reason=VALUES)
