"""Watching inside a compiled graph, without breaking it.

A hook that the compiler traces cannot run Python on values. It leaves an operator in the graph
instead, which the compiler must keep in its place (it has an ordered effect) and cannot look into;
when the graph runs, the operator hands the value to the engine. For sinks that read at once: what
flows in a compiled graph is memory that the compiler uses again.

The compiler runs the graph of one module for every other that its guards cannot tell from it:
equal blocks, and other models of the class. So whose value it is must be data of the graph, not a
constant in it: each hook has a ticket, a tensor which the compiler makes an input of the graph.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from torchtap.capture.callbacks import Begin, Listener, PostForward, PreForward
from torchtap.capture.evaluation import Evaluations
from torchtap.capture.graph_reasons import IN_TRANSFORM
from torchtap.capture.inductor_code import write_hand_overs
from torchtap.core.after_import import after_import
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.record import EVAL, FORWARD, UNVERSIONED, Record
from torchtap.core.shared_state import members
from torchtap.core.torch_private import (
    DYNAMO,
    is_backward_compiled,
    keep_operator_in_order,
    transform_running,
)
from torchtap.core.tree import Unseen, argument_leaves, leaves
from torchtap.hooks.marks import open_engines
from torchtap.hooks.module_hook import Keywords, run_as_it_is
from torchtap.hooks.tap import RETURNED, TAKEN, Tap
from torchtap.hooks.tap_follower import CallCounter
from torchtap.stats.kernels import native

if TYPE_CHECKING:
    from torchtap.core.plan import Filter

IN_COMPILED_AUTOGRAD = (
    "compiled autograd is on, which traces the backward of a compiled graph once more and cannot "
    "have hooks inside of it: turn it off (torch._dynamo.config.compiled_autograd = False)"
)
_AWAITED = "awaited"
"""In place of the reason why a gradient cannot come: it can."""

_ENTERS, _EVALUATES, _LEAVES = "enters", "enters in eval mode", "leaves"
"""In place of a port: the graph enters and leaves the model, and hands over no value."""
# An operator has nothing but the ticket to find its part by. Numbers are never used again: the
# graph of a backward may outlive its engine.
_numbers = itertools.count()
_parts: weakref.WeakValueDictionary[int, Part] = weakref.WeakValueDictionary()
_filters: dict[str, Mapping[str, Filter]] = {}


class GraphListener(Listener, Protocol):
    """Interface of the engine to hooks that can be traced, beyond that to all hooks."""

    evaluations: Evaluations

    def phase_in_graph(self, tap: Tap, *, trains: bool) -> str:
        """Return the phase of a value that a compiled graph computes in a forward."""


class Part:
    """The part of one hook in compiled graphs.

    Attributes:
        ticket: the number of this part, in the operators' arguments.
        asks: what is wanted, as text: a graph serves all hooks that ask for the same.
        tells: whether each run must tell of itself, because it hands over no value in forward.
    """

    __slots__ = ("__weakref__", "_native", "asks", "engine", "tap", "tells", "ticket")

    def __init__(self, engine: GraphListener, tap: Tap, *, tells: bool) -> None:
        self.engine = engine
        self.tap = tap
        self.asks = repr(tap.filters)
        self.tells = tells
        self._native: Any = None
        number = next(_numbers)
        with outside_inference_mode():  # A graph saves it for backward.
            # A tensor: a number would become a constant of the graph, which would then serve one
            # hook alone and be compiled again for each module.
            self.ticket = torch.tensor(number, device="cpu")
        _filters[self.asks] = tap.filters
        _parts[number] = self

    def take(self, value: Tensor | None, port: str, leaf: str, note: str, *, trains: bool) -> None:
        """The graph runs, and a value flows.

        Args:
            value: none if the graph only tells that it runs, and for a gradient that is none.
            port: of the value.
            note: ``awaited`` if a gradient will come, or why none will; without a value, what
                stands at that port and was not looked into, or why no value of this module can be
                had at all.
            trains: whether gradients were enabled as this call was traced, and the model was not
                in eval mode. They are always off while the graph runs.
        """
        engine, tap = self.engine, self.tap
        if not engine.recording:
            return
        if value is None:
            self._hear(port, leaf, note, trains=trains)
            return
        if self._native is None and _can_hand_over:
            self._native = self._new_native()
        # A compiled model does not say when it is entered.
        engine.begin(tap, trains=trains)
        if not tap.is_in_graph:
            self._note_run()
        is_gradient = port == "grad_output"
        phase = FORWARD if is_gradient else engine.phase_in_graph(tap, trains=trains)
        if phase is EVAL and engine.options.skips_evaluation:
            return
        if note:
            self._expect(leaf, note)
        state = tap.state(port, leaf) if port else None
        if state is None:
            return
        state.seen = True
        backward = -1
        if is_gradient:
            state.received += 1
            backward = engine.gradients.backwards.number()
        # Inductor plans the memory of a graph and writes into it again: a value is read at once.
        if phase is not FORWARD or not state.meter(value, engine.step):
            row = (state.site, engine.step, 0, phase, backward, (), value, UNVERSIONED)
            engine.emit(Record(*row))

    def _new_native(self) -> Any:
        """Make what takes plain values from now on, before anything is asked here."""
        engine, tap = self.engine, self.tap
        graph, backwards = engine.evaluations.graph, engine.gradients.backwards
        return native.kernel().GraphPart(
            int(self.ticket),
            engine,
            engine.hooks.running,
            graph,
            tap,
            tap.states,
            backwards.numbers,
        )

    def _hear(self, port: str, leaf: str, note: str, *, trains: bool) -> None:
        """The graph tells of itself, and hands over no value."""
        engine, tap = self.engine, self.tap
        if note and port:
            # A note with a port is of a value that was not looked into; without one, of the whole
            # module.
            tap.unseen[TAKEN if port == "input" else RETURNED][leaf] = note
        elif note:
            tap.reason = note
        elif port == _LEAVES:
            engine.evaluations.end_graph()
        else:
            engine.begin(tap, trains=trains)
            self._note_run()
            if port in (_ENTERS, _EVALUATES):
                engine.evaluations.begin_graph(trains=trains, evaluates=port == _EVALUATES)

    def _note_run(self) -> None:
        tap = self.tap
        tap.is_in_graph = True
        if not tap.has_run:
            tap.note_first_call()

    def _expect(self, leaf: str, note: str) -> None:
        """A gradient will come, or it is said why none will."""
        awaited = self.tap.state("grad_output", leaf)
        if awaited is not None and note == _AWAITED:
            awaited.expected += 1
        elif awaited is not None:
            awaited.reason = note


class CompilableBegin(Begin):
    """Forward pre-hook that can be traced.

    Attributes:
        part: of this hook in compiled graphs, made by :meth:`prepare`.
    """

    __slots__ = ()

    owner: GraphListener
    part: Part

    def prepare(self) -> None:
        """Make the part, before anything is traced."""
        self.part = Part(self.owner, self.tap, tells=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            Begin.__call__(self, module, args)
        elif self.owner.recording and _can_leave_behind(self.part):
            _tell(self.part)


class CompilablePreForward(PreForward):
    """Forward pre-hook that can be traced. See :class:`CompilableBegin`."""

    __slots__ = ()

    owner: GraphListener
    is_root: bool
    part: Part

    def prepare(self) -> None:
        """Make the part, before anything is traced."""
        self.is_root = self.tap is self.owner.hooks.root
        ports = self.tap.filters.keys()
        is_told = not ports.isdisjoint(("input", "output", "grad_output"))
        self.part = Part(self.owner, self.tap, tells=bool(ports) and not is_told)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        if not self.owner.recording:
            return
        if not torch.compiler.is_compiling():
            self.owner.enter(
                self.tap, module, args, kwargs or {}
            )  # Looks at the frame of its caller.
        elif _can_leave_behind(self.part):
            if self.is_root:
                is_training = bool(getattr(module, "training", True))
                trains = is_training and torch.is_grad_enabled()
                _tell(self.part, _ENTERS if is_training else _EVALUATES, trains=trains)
            elif self.part.tells:
                _tell(self.part)
            unseen: Unseen = {}
            for leaf, tensor in argument_leaves(args, kwargs or {}, unseen):
                if _is_wanted(self.part.asks, "input", leaf):
                    _emit(tensor, self.part, "input", leaf)
            _pass_over(self.part, "input", unseen)


class CompilableCallCounter(CallCounter):
    """Forward pre-hook that can be traced: a compiled graph numbers no calls."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            CallCounter.__call__(self, module, args)


class CompilablePostForward(PostForward):
    """Forward hook that can be traced. See :class:`CompilableBegin`."""

    __slots__ = ()

    owner: GraphListener
    is_root: bool
    part: Part

    def prepare(self) -> None:
        """Make the part, before anything is traced."""
        self.is_root = self.tap is self.owner.hooks.root
        self.part = Part(self.owner, self.tap, tells=False)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None
    ) -> None:
        if not torch.compiler.is_compiling():
            PostForward.__call__(self, module, args, kwargs, output)
        elif self.owner.recording and _can_leave_behind(self.part):
            unseen: Unseen = {}
            for leaf, tensor in leaves(output, unseen):
                _leave_behind(self.part, leaf, tensor)
            _pass_over(self.part, "output", unseen)
            if self.is_root:
                _tell(self.part, _LEAVES)


KINDS: dict[type[Any], type[Any]] = {
    PreForward: CompilablePreForward,
    PostForward: CompilablePostForward,
    CallCounter: CompilableCallCounter,
    Begin: CompilableBegin,
}
"""Kind of a hook -> the one that can be traced, with the same attributes."""


def make_traceable(hook: Any) -> None:
    """Let the compiler trace a hook, before it traces anything.

    A ticket is a tensor, which takes as long as all else of a hook.
    """
    kind = KINDS.get(type(hook))
    if kind is not None:
        hook.__class__ = kind
        if kind is not CompilableCallCounter:
            hook.prepare()


def _can_leave_behind(part: Part) -> bool:
    if torch.compiler.is_exporting():
        return False
    if _is_in_transform():
        _tell(part, note=IN_TRANSFORM)
        return False
    return True


def _leave_behind(part: Part, leaf: str, tensor: Tensor) -> None:
    gradient = ""
    if _is_wanted(part.asks, "grad_output", leaf):
        is_awaited = tensor.requires_grad and not _is_backward_compiled()
        gradient = _AWAITED if is_awaited else _why_no_grad(tensor)
    port = "output" if _is_wanted(part.asks, "output", leaf) else ""
    if port or gradient:
        _emit(tensor, part, port, leaf, gradient)
    if gradient == _AWAITED:
        ticket = part.ticket

        def arrive(gradient: Tensor | None) -> None:
            # Autograd calls hooks of tensors that get no gradient too, also as it is traced.
            torch.ops.torchtap.emit(gradient, ticket, "grad_output", leaf, "", True)

        tensor.register_hook(arrive)  # type: ignore[no-untyped-call]


def _why_no_grad(tensor: Tensor) -> str:
    if tensor.requires_grad:
        return IN_COMPILED_AUTOGRAD
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return "its dtype carries no gradient"
    return "it does not require grad" if torch.is_grad_enabled() else "grad mode was off"


def _emit(tensor: Tensor, part: Part, port: str, leaf: str, gradient: str = "") -> None:
    trains = torch.is_grad_enabled()
    torch.ops.torchtap.emit(tensor.detach(), part.ticket, port, leaf, gradient, trains)


def _pass_over(part: Part, port: str, unseen: Unseen) -> None:
    trains = torch.is_grad_enabled()
    for leaf, what in unseen.items():
        torch.ops.torchtap.emit(None, part.ticket, port, leaf, what, trains)


def _tell(part: Part, port: str = "", note: str = "", *, trains: bool | None = None) -> None:
    trains = torch.is_grad_enabled() if trains is None else trains
    torch.ops.torchtap.emit(None, part.ticket, port, "", note, trains)


def _is_wanted(asks: str, port: str, leaf: str) -> bool:
    """Asked while a graph is traced, which then serves every hook that asks for the same."""
    for engine in members(open_engines):
        engine.hold_dynamo_setting()
    found = _filters[asks].get(port)
    return found is not None and found.accepts(leaf)


def _is_in_transform() -> bool:
    """Asked while a graph is traced, which then serves no call outside of the transform."""
    return transform_running() is not None


def _is_backward_compiled() -> bool:
    return is_backward_compiled()


# What torch.compiler.assume_constant_result does; that would import all of the compiler.
_is_wanted._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_in_transform._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_backward_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _run(
    value: Tensor | None, ticket: Tensor, port: str, leaf: str, note: str, trains: bool
) -> None:
    # Nothing, where the watch was closed and the graph lives on: compiled code outlives hooks.
    part = _parts.get(int(ticket))
    if part is not None:
        part.take(value, port, leaf, note, trains=trains)


def _hand_over(
    value: Tensor | None, tickets: Iterable[Tensor], port: str, leaf: str, note: str, trains: bool
) -> None:
    for ticket in tickets:
        torch.ops.torchtap.emit(value, ticket, port, leaf, note, trains)


def _run_nothing(
    value: Tensor | None, ticket: Tensor, port: str, leaf: str, note: str, trains: bool
) -> None:
    """While the compiler traces, nothing flows."""


hand_over: Callable[[Tensor | None, Iterable[Tensor], str, str, str, bool], None] = _hand_over
"""Called by the code that inductor writes, where a value flows: for the owners of all tickets."""
_can_hand_over = native.takes_calls() and hasattr(native.kernel(), "hand_over")
"""Else the binary is an older one."""
_library: Any = None


def _define_operator() -> None:
    """Make the operator; most programs have no compiler, and it takes as long as a few imports."""
    global _library, hand_over
    _library = torch.library.Library("torchtap", "DEF")  # type: ignore[no-untyped-call]
    _library.define(
        "emit(Tensor? value, Tensor ticket, str port, str leaf, str note, bool trains) -> ()",
        # A CUDA graph would be replayed without it: nothing of Python runs then.
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    _library.impl("emit", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("torchtap::emit", _run_nothing, lib=_library)
    # The compiler must neither drop nor move what has an effect that it cannot see.
    keep_operator_in_order(torch.ops.torchtap.emit.default)
    if _can_hand_over:
        hand_over = partial(native.kernel().hand_over, torch.ops.torchtap.emit.default)
    write_hand_overs()


run_as_it_is(
    CompilableBegin.__call__,
    CompilablePreForward.__call__,
    CompilableCallCounter.__call__,
    CompilablePostForward.__call__,
    _run,
)
after_import(DYNAMO, _define_operator)
