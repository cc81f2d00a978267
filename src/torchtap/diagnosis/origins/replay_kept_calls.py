"""Replays the calls that a guard kept: the forward, and the backward from where the loss stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.distributed import is_distributed
from torchtap.core.equality import same
from torchtap.core.preserved import RandomState, set_mode
from torchtap.core.rebuild import replace_arguments
from torchtap.core.source_files import line_text
from torchtap.core.torch_private import without_autocast, without_modes
from torchtap.diagnosis.origins.kept_calls import Arrived, Kept, KeptCall
from torchtap.diagnosis.origins.origin import BACKWARD, INPUT, Origin
from torchtap.diagnosis.origins.put_back import PutBack
from torchtap.diagnosis.origins.step_trace import Trace
from torchtap.diagnosis.origins.user_lines import Line
from torchtap.diagnosis.origins.values import badness, first_bad, shown, tensors_of
from torchtap.hooks.uncompiled import uncompiled

_REENTRANT = "CheckpointFunctionBackward"
"""Node of a reentrant checkpoint, which needs a backward that fills ``.grad``."""
Cut = Callable[[Tensor], Tensor]
"""Takes some samples out of a tensor."""


def whole(tensor: Tensor) -> Tensor:
    """Return all samples."""
    return tensor


class Replay:
    """The calls of one step, to be run again as they were.

    Args:
        kept: of the guard.
        calls: of the step.
        model: any module.

    Attributes:
        calls: of the step.
        before: the state that is put back.
        needs_all_ranks: whether no rank can run the model alone: all run it, equally often.
    """

    def __init__(self, model: nn.Module, kept: Kept, calls: Sequence[KeptCall]) -> None:
        self._model = model
        self._kept = kept
        self.calls = calls
        self._random = RandomState(kept.every)
        self.before = PutBack(model, [(call.args, call.kwargs) for call in calls])
        self.needs_all_ranks = any(map(is_distributed, model.parameters()))

    def trace(
        self, only: int | None = None, cut: Cut = whole
    ) -> tuple[Origin | None, list[Tensor]]:
        """Run all calls operation by operation.

        Args:
            only: number of the one call that is run.
            cut: takes the samples that are run.

        Returns:
            the origin of what is not finite, if anything is; and the gradients of the parameters,
            summed over the backwards.
        """
        memory = self.before.memory
        trace = Trace(
            self._model,
            before_write=memory.before_write,
            made=memory.made,
            with_optimizers=False,
        )
        outs: list[Tensor] = []
        in_loss: list[Tensor] = []  # Those to which the loss sent a gradient.
        gradients: list[tuple[int, Tensor]] = []
        calls = [one for one in enumerate(self.calls) if only in (None, one[0])]
        with self._put_back(calls[0][1]), trace:
            for number, call in calls:
                trace.events.batch = number
                with without_modes():
                    named = [(f"argument {n}", t) for n, t in enumerate(_arguments(call))]
                    trace.begin_with(named, INPUT, call.path or ".")
                file, line, _ = call.forward
                trace.called_from = Line(file, line, line_text(file, line))
                own = self._run(call, cut)
                sent = partial(self._note_loss, trace, call, number, own)
                gradients += self._backward(call, own, cut, sent=sent)
                outs += own
                in_loss += [
                    own[gradient.place] for gradient in call.gradients if gradient.place < len(own)
                ]
        origin = trace.root(in_loss, [one for _, one in gradients], outs)
        return origin, _summed(gradients)

    # ------------------------------------------------------------------ parts

    @contextmanager
    def _put_back(self, first: KeptCall) -> Iterator[None]:
        try:
            self._restore(first)  # A trace begins with the buffers as they were before.
            with uncompiled(), torch.enable_grad():
                yield
        finally:
            self.before.put_back()

    def _run(self, call: KeptCall, cut: Cut = whole) -> list[Tensor]:
        """Run a forward; returns the tensors that it returned."""
        self._restore(call)
        module = self._kept.modules[call.path]
        enter = _Entering(cut)
        args, kwargs = replace_arguments(call.args, call.kwargs, enter, inside=enter)
        with ExitStack() as around:
            around.enter_context(without_autocast())
            for device, is_on, dtype in call.autocast:
                around.enter_context(torch.autocast(device, dtype, enabled=is_on))
            if call.lent is None:
                return tensors_of(module(*args, **kwargs))
            # Parameters that were lent for the call (a meta-learner's) are lent again.
            return tensors_of(torch.func.functional_call(module, call.lent, args, kwargs))

    def _restore(self, call: KeptCall) -> None:
        self._random.put_back(call.random)
        for module, mode in zip(self._kept.every, call.modes, strict=True):
            set_mode(module, mode)
        with without_modes(), torch.no_grad():
            kept = zip(self._kept.buffers.places, call.buffers.values(), strict=True)
            for (module, name), buffer in kept:
                now = module._buffers.get(name)
                if now is None or buffer is None or same(now, buffer):
                    continue
                self.before.memory.before_write([now])
                now.copy_(buffer)

    def _note_loss(
        self, trace: Trace, call: KeptCall, number: int, outs: Sequence[Tensor], arrived: Arrived
    ) -> None:
        """Note a gradient by the loss that is not finite; it follows from outputs that are not."""
        if trace.events.of(arrived.gradient) is None:
            parents = [event for one in outs if badness(one) and (event := trace.events.of(one))]
            origin = _of_loss(call, arrived, is_last=number == len(self.calls) - 1)
            trace.events.hold(arrived.gradient, trace.events.add(origin, parents))

    def _backward(
        self,
        call: KeptCall,
        outs: Sequence[Tensor],
        cut: Cut = whole,
        *,
        sent: Callable[[Arrived], None] = lambda _: None,
    ) -> list[tuple[int, Tensor]]:
        """Run the backwards of a call, each from the gradients that arrived.

        Args:
            call: whose.
            outs: that the replayed forward returned.
            cut: takes the samples.
            sent: called with a gradient that is not finite, and is not by the call itself.

        Returns:
            number and gradient of each parameter.
        """
        gradients: list[tuple[int, Tensor]] = []
        params = [*(call.lent or {}).values()] or list(self._model.parameters())
        params = [param for param in params if param.requires_grad]
        # Backward by backward, in their order: gradients of one that were sent by several losses.
        for task in dict.fromkeys(one.task for one in call.gradients):
            own = [one for one in call.gradients if one.task == task and one.place < len(outs)]
            ends = [outs[one.place] for one in own]
            given = [cut(one.gradient) for one in own]
            if any(one.shape != two.shape for one, two in zip(ends, given, strict=True)):
                return gradients
            with ExitStack() as hooks:
                for end, one, gradient in zip(ends, own, given, strict=True):
                    put = partial(_put, one, gradient, sent)
                    hooks.callback(end.register_hook(put).remove)  # type: ignore[no-untyped-call]
                # From zeros: the hooks put in what had arrived.
                gradients += _gradients(ends, [torch.zeros_like(one) for one in ends], params)
        return gradients


def _put(
    arrived: Arrived, given: Tensor, sent: Callable[[Arrived], None], brought: Tensor
) -> Tensor | None:
    """Put the gradient that arrived at an output in the place of what the replay brings there.

    It is the sum over all uses of the output, those inside of the model too: to add it would count
    them twice. What the replay brings that is not finite, the model's own backward made: it stays.
    """
    with without_modes():
        if badness(brought):
            return None
        if badness(given):
            sent(arrived)
    return given


def _summed(gradients: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
    sums: dict[int, Tensor] = {}
    for number, gradient in gradients:
        sums[number] = sums[number] + gradient if number in sums else gradient
    return list(sums.values())


def _gradients(
    ends: list[Tensor], given: list[Tensor], params: list[Tensor]
) -> list[tuple[int, Tensor]]:
    """Gradients of parameters; ``.grad`` is left alone unless a checkpoint needs it."""
    if not params or not ends:
        return []
    # FSDP reduces gradients by hooks, and has no graph to the parameters that it shards.
    if any(map(_has_reentrant, ends)) or any(map(is_distributed, params)):
        for one in params:
            one.grad = None
        torch.autograd.backward(ends, given, retain_graph=True)
        got: Sequence[Tensor | None] = [param.grad for param in params]
    else:
        got = torch.autograd.grad(ends, params, given, retain_graph=True, allow_unused=True)
    return [(number, one) for number, one in enumerate(got) if one is not None]


def _has_reentrant(tensor: Tensor) -> bool:
    seen, waiting = set[Any](), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == _REENTRANT:
            return True
        seen.add(node)
        waiting += [one for one, _ in node.next_functions]
    return False


def _arguments(call: KeptCall) -> list[Tensor]:
    return tensors_of((call.args, call.kwargs))


class _Entering:
    """Makes arguments that enter once more, without the graph that made them.

    A tensor that stands at two places stays one, and one that may be written into is no leaf.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self._known: dict[int, Tensor] = {}

    def __call__(self, leaf: str, tensor: Tensor, kind: str = "") -> Tensor:
        """Return the tensor to put in the place of one."""
        if kind:  # Inside of an object that others hold: it cannot be made anew.
            return tensor
        if id(tensor) not in self._known:
            own = self._cut(tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                own = own.detach().requires_grad_().view_as(own)
            self._known[id(tensor)] = own
        return self._known[id(tensor)]


def _of_loss(call: KeptCall, arrived: Arrived, *, is_last: bool) -> Origin:
    index, value = first_bad(arrived.gradient)
    by = "The loss" if is_last else "The loss, or a later call of the model that took it,"
    note = (
        f"{by} sent it to output {arrived.place} of the model: it was made outside of "
        f"{'the model' if is_last else 'this call'}. "
        "tt.locate(model, step, *batch) runs the loss too and names the operation."
    )
    file, line, _ = call.backward
    code = line_text(file, line) if file else ""
    text = f"gradient {shown(arrived.gradient)}"
    return Origin(
        BACKWARD, file=file, line=line, code=code, index=index, value=value, inputs=text, note=note
    )
