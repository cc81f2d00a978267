"""Traces one step, operation by operation, and follows what is not finite to where it was made."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from torchtap.core.record import RECOMPUTE
from torchtap.core.torch_private import current_node, without_modes
from torchtap.diagnosis.origins.events import Event, Events
from torchtap.diagnosis.origins.module_calls import ModuleCalls
from torchtap.diagnosis.origins.operation import Operation, Result, Taken
from torchtap.diagnosis.origins.origin import BACKWARD, FORWARD, INPUT, OPTIMIZER, PARAMETER, Origin
from torchtap.diagnosis.origins.user_lines import NOWHERE, Line, line_of_node, running_line
from torchtap.diagnosis.origins.values import (
    INFINITE,
    NAN,
    badness,
    first_bad,
    is_mask,
    shown,
    tensors_of,
)
from torchtap.hooks.optimizer_hooks import listen_to_optimizers

_UNSEEN = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
    | {"isfinite", "isnan", "isinf", "isposinf", "isneginf", "is_nonzero", "is_same_size"}
)
"""Operations that make nothing, or nothing but truth values."""
_LITERALS = frozenset({"lift_fresh", "lift", "lift_fresh_copy", "scalar_tensor"})
"""Operations by which a number that stands in the program becomes a tensor."""
_READ = "_local_scalar_dense"
_MAKES_GRADIENTS = "_make_grads"
"""Function of PyTorch by which a backward makes the gradient 1 of a loss."""
_NEAR = 8
Write = Callable[[Sequence[Tensor]], None]


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode under which a step runs.

    Args:
        model: whose modules are named.
        before_write: called with tensors that are about to be written into.
        made: called with tensors of new memory.
        with_optimizers: whether steps of optimizers run under it. From inside of a step they do
            not, and the table of hooks that PyTorch iterates over there has to stay as it is.

    Attributes:
        events: what is not finite.
        losses: the tensors from which a backward began, and those that were read as one number.
        calls: of the modules of the model.
        called_from: the line that called the model in training, where a replay calls it now: the
            line of what PyTorch's own modules do.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        before_write: Write = lambda _: None,
        made: Write = lambda _: None,
        with_optimizers: bool = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._with_optimizers = with_optimizers
        self.events = Events()
        self.losses: list[Tensor] = []
        self.calls = ModuleCalls(model)
        self.called_from: Line = NOWHERE
        self._model = model
        self._before_write = before_write
        self._made = made
        self._phase = FORWARD
        self._read: Event | None = None
        self._found: list[Origin] = []
        self._opened = ExitStack()

    # ------------------------------------------------------------------ on, off

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self.calls.attach()
            opened.callback(self.calls.detach)
            for handle in listen_to_optimizers(self) if self._with_optimizers else ():
                opened.callback(handle.remove)
            # Anomaly mode keeps the traceback of the forward with each node, which is the line of a
            # backward operation; its own check for NaN would end the step before provenance is
            # known.
            opened.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
            self._begin()
            super().__enter__()  # type: ignore[no-untyped-call]
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)  # type: ignore[no-untyped-call]
        finally:
            self._opened.close()

    def _begin(self) -> None:
        for kind, named in (
            ("parameter", self._model.named_parameters),
            ("buffer", self._model.named_buffers),
        ):
            for name, tensor in named():
                path = name.rpartition(".")[0] or "."
                self.begin_with([(f"{kind} {name}", tensor)], PARAMETER, path)
                if kind == "parameter" and tensor.grad is not None:
                    self.begin_with([(f"gradient of {name}", tensor.grad)], BACKWARD, path)

    def begin_with(
        self, named: Iterable[tuple[str, Tensor]], phase: str, module: str | None
    ) -> Event | None:
        """Note tensors that are not finite before anything runs; returns the last event."""
        event = None
        for name, tensor in named:
            for one in tensors_of(tensor):
                if badness(one) and self.events.of(one) is None:
                    event = self._source(one, phase, module, name)
        return event

    def _source(self, tensor: Tensor, phase: str, module: str | None, name: str) -> Event:
        index, value = first_bad(tensor)
        text = f"{name} {shown(tensor)}".strip()
        origin = Origin(phase, module=module, index=index, value=value, inputs=text)
        may_be_meant = phase in (INPUT, PARAMETER) and not isinstance(tensor, nn.Parameter)
        may_be_meant = may_be_meant or not tensor.requires_grad
        event = self.events.add(origin, is_meant=may_be_meant and is_mask(tensor))
        self.events.hold(tensor, event)
        return event

    # ------------------------------------------------------------------ optimizers

    def before_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """A step of an optimizer begins: what its gradients are now may be overwritten."""
        # What is asked of the optimizer here would otherwise come back to this mode as operations
        # of the step.
        with without_modes():
            self._note_optimizer(optimizer)
        self._phase = OPTIMIZER
        inner = {key: self._outside(one) for key, one in kwargs.items() if callable(one)}
        others = (self._outside(arg) if callable(arg) else arg for arg in args[1:])
        return (*args[:1], *others), {**kwargs, **inner}

    def _note_optimizer(self, optimizer: Optimizer) -> None:
        params = [one for group in optimizer.param_groups for one in group["params"]]
        gradients = [one.grad for one in params if one.grad is not None]
        named = (("gradient as the optimizer begins", gradient) for gradient in gradients)
        self.begin_with(named, BACKWARD, None)  # What no operation made, a reducer of DDP did.
        root = self.events.root_of(tensors_of(gradients))
        if root is not None:
            self._found.append(root)
        state = [one for param in params for one in optimizer.state.get(param, {}).values()]
        kind = type(optimizer).__name__
        self.begin_with([(f"state of {kind}", one) for one in state], OPTIMIZER, None)

    def after_step(self, optimizer: Optimizer) -> None:
        """It ended."""
        self._phase = FORWARD

    def _outside(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._phase = FORWARD
            try:
                return closure(*args, **kwargs)
            finally:
                self._phase = OPTIMIZER

        return run

    # ------------------------------------------------------------------ operations

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            self.calls.note_node(current_node())
        operation = Operation(func, args, kwargs)
        if operation.written:
            self._before_write(operation.written)
        returned = func(*args, **kwargs)
        if operation.name == _READ:
            self._note_read(args[0])
            return returned
        # backward() makes the gradient of a scalar loss by it: so the loss is known, without a word
        # of the program's.
        if operation.name == "ones_like" and _is_called_by(_MAKES_GRADIENTS):
            self.losses.append(args[0])
        for result in operation.results(returned):
            if operation.is_new(result.tensor):
                self._made([result.tensor])
            if operation.name in _UNSEEN:
                self.events.forget(result.tensor)
            else:
                self._judge(operation, result)
        return returned

    def _note_read(self, tensor: Tensor) -> None:
        if badness(tensor):
            self._read = self._event_of(tensor)
            self.losses.append(tensor)

    def _judge(self, operation: Operation, result: Result) -> None:
        now = badness(result.tensor)
        if not now:
            self.events.forget(result.tensor)
            return
        taken = operation.taken_for(result)
        bad = [(tensor, level) for tensor, level in taken if level]
        parents = list(dict.fromkeys(self._event_of(tensor, operation) for tensor, _ in bad))
        worst = max((level for _, level in bad), default=0)
        numbers = operation.numbers()
        # A number that Python computed from item() has lost its tensor: what was read last is the
        # likely one.
        if numbers and not parents and self._read is not None:
            parents, worst = [self._read], NAN
        # A result is not worse than its operands (an Inf stays an Inf): it was passed on, and not
        # made here.
        if parents and now <= worst:
            own = self._passed_on(operation, result, taken, parents)
        else:
            # masked_fill(mask, -inf): the program wrote the infinity down itself.
            inside = any(map(math.isinf, numbers)) and now == INFINITE
            origin = self._describe(operation, result.tensor, taken)
            if operation.is_collective and not parents:
                note = f"It came from another rank, by {operation.name}."
                origin = replace(origin, operation="", inputs="", note=note)
            own = self.events.add(origin, parents, is_meant=inside and not parents)
        self.events.hold(result.tensor, own)

    def _event_of(self, tensor: Tensor, operation: Operation | None = None) -> Event:
        known = self.events.of(tensor)
        if known is not None:
            return known
        if operation is not None and operation.name in _LITERALS:
            origin = self._describe(operation, tensor, [])
            return self.events.add(origin, is_meant=badness(tensor) == INFINITE)
        running = self.calls.running()
        return self._source(tensor, INPUT, "." if running is None else running.module, "")

    def _passed_on(
        self, operation: Operation, result: Result, taken: list[Taken], parents: list[Event]
    ) -> Event:
        """Note that a bad value went on; a pointwise operation may have made more of it."""
        if operation.is_pointwise and all(parent.root().is_meant for parent in parents):
            place = _unexplained(
                result.tensor, [tensor for tensor, level in taken if level], operation
            )
            if place is not None:
                origin = self._describe(operation, result.tensor, taken, place)
                return self.events.add(origin, [*parents, self.events.add(origin)], is_new=False)
        return self.events.add(self._here(operation), parents, is_new=False)

    def _describe(
        self, operation: Operation, tensor: Tensor, taken: list[Taken], place: int | None = None
    ) -> Origin:
        index, value = first_bad(tensor)
        if place is not None:
            index = tuple(
                int(one) for one in torch.unravel_index(torch.tensor(place), tensor.shape)
            )
            value = tensor.detach().reshape(-1)[place].item()
        there = index if operation.is_pointwise else None
        made_of = [shown(operation.before.get(id(one), one), there) for one, _ in taken[:4]]
        made_of += [f"{number}" for number in operation.numbers()]
        text = ", ".join(made_of) or "no tensor"
        return replace(self._here(operation), index=index, value=value, inputs=text)

    def _here(self, operation: Operation) -> Origin:
        """Return the origin of what an operation makes now, without what that is."""
        node = current_node() if self._phase != OPTIMIZER else None
        running = self.calls.running()
        if node is None:
            phase = FORWARD if running is not None else self._phase
            place = running
            line = running_line()
        else:
            # A checkpoint runs forwards inside a backward, under a node.
            is_again = running is not None and running.phase == RECOMPUTE
            phase = FORWARD if is_again else BACKWARD
            place = running or self.calls.of_node(node)
            line = running_line() or line_of_node(node)
        module, call = (None, 0) if place is None else (place.module, place.call)
        file, number, code = line or self.called_from
        return Origin(phase, operation.name, module, call, file, number, code)

    # ------------------------------------------------------------------ what came of it

    def root(self, *groups: Iterable[Tensor]) -> Origin | None:
        """Return the first origin that reached any tensor, of the first group that has some."""
        for group in groups:
            event = self.events.root_of(group)
            if event is not None:
                return event
        return self._found[0] if self._found else None


def _is_called_by(name: str) -> bool:
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False


def _unexplained(result: Tensor, bad: Sequence[Tensor], operation: Operation) -> int | None:
    """Return the place of an element that is not finite although it was made of finite ones."""
    if result.layout is not torch.strided or result.is_nested:
        return None
    wrong = ~torch.isfinite(result.detach())
    for tensor in bad:
        before = operation.before.get(id(tensor), tensor)
        if before.layout is not torch.strided or before.ndim > wrong.ndim:
            return None
        # Places that every bad operand explains elementwise are passed on; one that none does is
        # new.
        wrong = wrong & torch.isfinite(before.detach())
    return int(wrong.reshape(-1).int().argmax()) if bool(wrong.any()) else None
