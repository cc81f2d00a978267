"""Parameters and buffers: as they are when a step begins, and the gradients they accumulate."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from torchtap.core.distributed import (
    is_distributed,
    is_part_of_flat,
    is_partial,
    local,
    num_ranks,
    sharded_parameters,
)
from torchtap.core.inference_mode import normal_copy
from torchtap.core.no_grad import why_no_grad
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.tensors import obstacle
from torchtap.core.torch_private import current_task
from torchtap.hooks.backwards import Backwards
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.param_hooks import SWAPPED, ParamHooks, SeenParams, owns
from torchtap.hooks.tap import SiteState, Tap

if TYPE_CHECKING:
    from torchtap.core.module_paths import Places
    from torchtap.core.plan import Plan

USED_UP = (
    "a hook that was on the parameter before ours emptied .grad, as an optimizer that steps inside "
    "the backward does: watch before that hook is put on, or take step_grad"
)
FLAT = (
    "FullyShardedDataParallel gathers it into one flat parameter during the call, where its "
    "shard is out of reach: use fully_shard (FSDP2), or take step_grad and update, which are of "
    "the shard"
)
OTHER_TENSOR = "the call put another tensor in the parameter's place"
_WANTED = frozenset({"param", "buffer", "param_grad"})
LATE = (
    "in step {} no call of the model was seen before the optimizer's step (as where it was "
    "compiled before it was watched), so what came before that step is not available"
)


class State:
    """The ports ``param``, ``buffer`` and ``param_grad``.

    Values are copied unless they are read at once: the optimizer is about to overwrite them, and
    others may hold pointers into them.

    Attributes:
        was_taken: whether they were, in any step.
        places: where the modules stand; one that was replaced is not taken any more.
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
        taps_of_plan = () if _WANTED.isdisjoint(plan.ports) else plan.taps
        self._planned = [one for one in taps_of_plan if not _WANTED.isdisjoint(one.filters)]
        self._wants_buffers = any("buffer" in planned.ports for planned in self._planned)
        self._taps = taps
        self._emit = emit
        self._borrows = borrows
        self._hooks = ParamHooks()
        self._seen = SeenParams(None)
        self._labels: tuple[str, ...] = ()
        self._params: list[tuple[Callable[[], nn.Module | None], list[tuple[SiteState, str]]]] = []
        self.places: Places | None = None
        self._waiting: dict[SiteState, Record] = {}

    def take(self, backwards: Backwards, *, is_late: bool = False) -> None:
        """Keep parameters and buffers as they are now.

        Args:
            backwards: numbers those that bring gradients.
            is_late: an optimizer is about to make its step, and no call was seen: buffers may have
                changed in this step, and gradients have come.
        """
        self.was_taken = True
        had_hooks = bool(self._hooks)
        self._labels = ("local",) if num_ranks() else ()
        shards, step = sharded_parameters(), self.step
        are_kept = self.places is None or self.places.are_kept()
        # FSDP2 puts shards in and out of its parameters, so with it they are looked at each time.
        if shards or not are_kept or not self._seen.are_unchanged():
            self._look_again(backwards, shards, is_settled=are_kept and not shards)
        for ref, wanted_of in self._params:
            module = ref()
            params = {} if module is None else module._parameters
            for state, name in wanted_of:
                param = params.get(name)
                if param is None:
                    continue
                if is_part_of_flat(param):
                    state.reason = FLAT
                else:
                    self._take(state, shards.get(id(param), param) if shards else param, step)
        for tap, module in self._owners if self._wants_buffers else ():
            for name, held in module._buffers.items() if "buffer" in tap.filters else ():
                wanted = None if held is None else tap.state("buffer", name)
                if wanted is not None and is_late:
                    # One more than came: the site counts as lacking a value, however many it has.
                    wanted.expected, wanted.reason = wanted.received + 1, LATE.format(step)
                elif wanted is not None and held is not None:
                    self._take(wanted, held, step)
        if is_late and not had_hooks:
            self._note_late(step)

    def _note_late(self, step: int) -> None:
        """Gradients came in this step before there was a hook that could take them."""
        for tap, module in self._owners:
            for name, param in module._parameters.items() if "param_grad" in tap.filters else ():
                has_gradient = param is not None and param.grad is not None
                state = tap.state("param_grad", name) if has_gradient else None
                if state is not None:
                    state.expected, state.reason = state.received + 1, LATE.format(step)

    def _take(self, state: SiteState, tensor: Tensor, step: int) -> None:
        if state.meter(tensor, step):
            state.seen = True
            if state.expected <= state.received:  # Else an earlier step lacks it.
                state.reason = None
        else:
            self._keep(state, tensor)

    def _keep(self, state: SiteState, tensor: Tensor) -> None:
        reason = obstacle(tensor)
        if reason is not None or state.expected <= state.received:
            state.reason = reason
        if reason is None:
            state.seen = True
            own, labels = local(tensor)
            # A parameter that was made in inference mode must not make its copy one of that mode.
            kept = own if self._borrows else normal_copy(own)
            self._emit(Record(state.site, self.step, 0, FORWARD, -1, labels, kept, UNVERSIONED))

    @property
    def is_wanted(self) -> bool:
        """Return whether any of these ports is wanted."""
        return bool(self._planned)

    @property
    def hooks_params(self) -> bool:
        """Return whether the gradient of any parameter is waited for."""
        return bool(self._hooks)

    def look(self, backwards: Backwards) -> None:
        """See the parameters that a call made or replaced: lazy ones exist only after it."""
        if not self._seen.are_unchanged():
            shards = sharded_parameters()
            are_kept = self.places is None or self.places.are_kept()
            self._look_again(backwards, shards, is_settled=are_kept and not shards)

    def _look_again(
        self, backwards: Backwards, shards: Mapping[int, Tensor], *, is_settled: bool
    ) -> None:
        self._params, owners = [], list(self._owners)
        for tap, module in owners:
            held = {name: param for name, param in module._parameters.items() if param is not None}
            states = ((tap.state("param", name), name) for name in held)
            wanted = [(state, name) for state, name in states if state is not None]
            if wanted:
                self._params.append((weakref.ref(module), wanted))
            for name, param in held.items() if "param_grad" in tap.filters else ():
                own = shards.get(id(param), param)
                # All are hooked, also after one that is not settled.
                is_settled &= self._hook_param(tap, module, name, own, backwards)
        handles = self._hooks.forget_gone()
        modules = [module for _, module in owners] if is_settled else None
        self._seen = SeenParams(modules, handles)

    def _hook_param(
        self, tap: Tap, module: nn.Module, name: str, param: Tensor, backwards: Backwards
    ) -> bool:
        """Hook one parameter; returns whether this tensor need not be looked at again."""
        state = tap.state("param_grad", name)
        if state is None:
            return True
        if self._hooks.has(tap.path, name, param):
            if self._hooks.was_swapped(tap.path, name, param):
                state.reason, state.expected = SWAPPED, state.received + 1
            return True
        if obstacle(param) is not None:
            return False
        if not param.requires_grad:
            state.reason = why_no_grad(param)
            return True
        if not param.is_leaf:
            state.reason = FLAT if is_part_of_flat(param) else OTHER_TENSOR
            return False
        hook = partial(self._take_gradient, backwards, state, weakref.ref(module))
        # Not register_hook: .grad is complete only after accumulation, over all uses of the
        # parameter.
        handle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
        self._hooks.add(tap.path, name, param, handle)
        return True

    def _take_gradient(
        self,
        backwards: Backwards,
        state: SiteState,
        module: Callable[[], nn.Module | None],
        param: Tensor,
    ) -> None:
        gradient = param.grad
        if not self.recording or not owns(module(), state.site.leaf, param):
            return
        if gradient is None:
            state.expected, state.reason = state.received + 1, USED_UP
            return
        labels = self._labels
        if type(gradient) is not Tensor:
            gradient, labels = _own_part(gradient, labels)
        if not labels and state.meter(gradient, self.step):  # A meter knows nothing of labels.
            state.seen = True
            return
        number = backwards.number()
        if self._borrows:
            state.seen = True
            row = (state.site, self.step, number, FORWARD, number, labels, gradient, UNVERSIONED)
            self._emit(Record(*row))
            return
        # Copied here, since other hooks may use it up (an optimizer that runs in backward), but
        # handed on at the end: reentrant checkpoints accumulate several times in one backward.
        kept = normal_copy(gradient)
        row = Record(state.site, self.step, number, FORWARD, number, labels, kept, UNVERSIONED)
        # By site: of several accumulations in one backward the last has the sum.
        self._waiting[state] = row
        if current_task() == -1:  # FSDP2 reduces after the backwards of a pipeline: no end comes.
            self.deliver()

    def deliver(self) -> None:
        """Hand on parameter gradients, now that the backward has ended."""
        # Exchanged first: a sink may run a backward of its own, which waits for its own end.
        waiting, self._waiting = self._waiting, {}
        for state, row in waiting.items():
            state.seen = True
            self._emit(row)

    def release(self) -> None:
        """Take the hooks off."""
        held = (param for _, module in self._owners for param in module._parameters.values())
        self._hooks.release(param for param in held if param is not None)

    @property
    def _owners(self) -> Iterator[tuple[Tap, nn.Module]]:
        for planned in self._planned:
            module = planned.module()
            is_there = self.places is None or self.places.now(planned.path) is not None
            if module is not None and is_there:
                yield self._taps[planned.path], module


def _own_part(gradient: Tensor, labels: tuple[str, ...]) -> tuple[Tensor, tuple[str, ...]]:
    """Return this rank's part of a parameter's gradient, and whether it is its own or of all."""
    own, placed = local(gradient)
    if is_distributed(gradient):
        return own, placed if is_partial(gradient) else ("reduced", *placed)
    return own, (*labels, *placed)


keep_dynamo_out(State._take_gradient)
