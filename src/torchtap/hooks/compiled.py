"""Watching inside a compiled graph, without breaking it.

A hook that the compiler traces cannot run Python on values. It leaves an operator in the graph
instead, which the compiler must keep in its place (it says that it writes into ``order``) and
cannot look into; when the graph runs, the operator hands the value to the engine. For sinks that
read at once: what flows in a compiled graph is memory that the compiler uses again.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.effects import _EffectType as EffectType, _register_effectful_op

from torchtap.hooks.callbacks import Count, Enter, Leave
from torchtap.hooks.spots import RETURNED, TAKEN, Spot, Tap
from torchtap.record import FORWARD, UNVERSIONED, Record
from torchtap.tree import Unseen, argument_leaves, leaves

if TYPE_CHECKING:
    from torchtap.hooks.engine import Engine

NO_GRAD_INPUT = (
    "inside torch.compile there are no autograd nodes to hear grad_input from; watch the "
    "grad_output of the module before"
)

_library: Any = torch.library.Library("torchtap", "DEF")  # type: ignore[no-untyped-call]
_library.define("emit(Tensor value, int engine, int spot) -> ()")
_ENTERED = -2
"""In place of a spot's number: the model is entered, and no value of a spot flows."""
# An operator has nothing but numbers to find its engine by. They are never used again: the graph
# of a backward may outlive its engine.
_numbers = itertools.count()
_engines: weakref.WeakValueDictionary[int, Compiled] = weakref.WeakValueDictionary()


class Compiled:
    """What one engine sees of compiled graphs.

    Attributes:
        key: number of the engine in the operators' arguments.
        was_traced: whether the model was traced with our hooks on it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = weakref.ref(engine)
        self.key = next(_numbers)
        self.was_traced = False
        self._spots: list[Spot] = []
        _engines[self.key] = self

    def number(self, tap: Tap, port: str, leaf: str) -> int:
        """The number of a spot, or -1 if it is not wanted."""
        tap.has_run = True
        spot = tap.spot(port, leaf)
        if spot is None:
            return -1
        if spot not in self._spots:
            self._spots.append(spot)
        return self._spots.index(spot)

    def emit(self, value: Tensor, number: int) -> None:
        """The graph runs, and a value flows."""
        engine = self.engine()
        if engine is None or not engine.recording:
            return
        engine.take_state()  # A compiled model does not say when it is entered.
        if number == _ENTERED:
            return
        spot = self._spots[number]
        spot.seen = True
        backward = -1
        if spot.site.is_gradient:
            spot.armed += 1
            spot.arrived += 1
            backward = engine.gradients.backwards.number()
        if not spot.meter(value, engine.step):
            row = (spot.site, engine.step, 0, FORWARD, backward, (), value, UNVERSIONED)
            engine.emit(Record(*row))


class CompilableEnter(Enter):
    """Forward pre-hook that can be traced."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.engine.recording:
            return
        if not torch.compiler.is_compiling():
            self.engine.enter(self.tap, module, args, kwargs)
        elif not torch.compiler.is_exporting():
            tells = self.begin()
            unseen: Unseen = {}
            for leaf, tensor in argument_leaves(args, kwargs, unseen):
                if tells:
                    torch.ops.torchtap.emit(tensor.detach(), self.engine.compiled.key, _ENTERED)
                    tells = False
                _leave_behind(self, "input", leaf, tensor)
            for leaf, what in unseen.items():
                self.pass_over(leaf, what)

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def begin(self) -> bool:
        """Run once, while the graph is traced; says whether each run must tell of its beginning."""
        self.engine.traced(self.tap)
        return self.tap is self.engine.root and self.engine.wants_state

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def pass_over(self, leaf: str, what: str) -> int:
        """Noted while the graph is traced."""
        self.tap.unseen[TAKEN][leaf] = what
        return 0

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def number(self, port: str, leaf: str) -> int:
        """Asked while the graph is traced."""
        return self.engine.compiled.number(self.tap, port, leaf)


class CompilableCount(Count):
    """Forward pre-hook that can be traced: a compiled graph numbers no calls."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            Count.__call__(self, module, args)


class CompilableLeave(Leave):
    """Forward hook that can be traced."""

    __slots__ = ()

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        if not torch.compiler.is_compiling():
            Leave.__call__(self, module, args, kwargs, output)
        elif self.engine.recording and not torch.compiler.is_exporting():
            unseen: Unseen = {}
            for leaf, tensor in leaves(output, unseen):
                _leave_behind(self, "output", leaf, tensor)
                _leave_behind_gradient(self, leaf, tensor)
            for leaf, what in unseen.items():
                self.pass_over(leaf, what)

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def pass_over(self, leaf: str, what: str) -> int:
        """Noted while the graph is traced."""
        self.tap.unseen[RETURNED][leaf] = what
        return 0

    @torch._dynamo.assume_constant_result  # type: ignore[untyped-decorator]
    def number(self, port: str, leaf: str) -> int:
        """Asked while the graph is traced."""
        return self.engine.compiled.number(self.tap, port, leaf)


def _leave_behind(hook: Any, port: str, leaf: str, tensor: Tensor) -> None:
    number = hook.number(port, leaf)
    if number >= 0:
        compiled = hook.engine.compiled
        torch.ops.torchtap.emit(tensor.detach(), compiled.key, number)


def _leave_behind_gradient(hook: Any, leaf: str, tensor: Tensor) -> None:
    number = hook.number("grad_output", leaf)
    if number >= 0 and tensor.requires_grad:
        key = hook.engine.compiled.key

        def arrive(gradient: Tensor) -> None:
            torch.ops.torchtap.emit(gradient.detach(), key, number)

        tensor.register_hook(arrive)  # type: ignore[no-untyped-call]


def _emit(value: Tensor, engine: int, spot: int) -> None:
    compiled = _engines.get(engine)
    if compiled is not None:
        compiled.emit(value, spot)


def _emit_nothing(value: Tensor, engine: int, spot: int) -> None:
    """While the compiler traces, nothing flows."""


_library.impl("emit", _emit, "CompositeExplicitAutograd")
torch.library.register_fake("torchtap::emit", _emit_nothing, lib=_library)
# The compiler must neither drop nor move what has an effect that it cannot see.
_register_effectful_op(torch.ops.torchtap.emit.default, EffectType.ORDERED)
