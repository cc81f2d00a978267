"""Watching inside a compiled graph, without breaking it.

A hook that the compiler traces cannot run Python on values. It leaves an operator in the graph
instead, which the compiler must keep in its place (it has an ordered effect) and cannot look into;
when the graph runs, the operator hands the value to the engine. For sinks that read at once: what
flows in a compiled graph is memory that the compiler uses again.

The compiler runs the graph of one module for every other that its guards cannot tell from it:
equal blocks, and other models of the class. So whose value it is must be data of the graph, not a
constant in it: each hook has a ticket, a tensor which the compiler makes an input of the graph.

The compiler checks before each run of the graph whatever a hook read while it was traced, in memory
that no cache holds by then. So a hook reads its ticket and one text, and nothing that another hook
reads too: of such a pair the compiler checks in Python that it is one object.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
_plans: dict[str, _Asked] = {}


class GraphListener(Listener, Protocol):
    """Interface of the engine to hooks that can be traced, beyond that to all hooks."""

    evaluations: Evaluations

    def phase_in_graph(self, tap: Tap, *, trains: bool) -> str:
        """Return the phase of a value that a compiled graph computes in a forward."""


class _Asked(NamedTuple):
    """The values that a hook asks for.

    Attributes:
        filters: port -> which of its leaves are wanted.
        is_of_model: whether it is the hook of the model itself.
    """

    filters: Mapping[str, Filter]
    is_of_model: bool


class Traceable(Protocol):
    """A hook that can be traced.

    Attributes:
        part: of this hook in compiled graphs.
        ticket: its number, in the operators' arguments.
        asks: what is wanted, as text: a graph serves all hooks that ask for the same.
    """

    owner: GraphListener
    tap: Tap
    part: Part
    ticket: Tensor
    asks: str


def _prepare(hook: Traceable) -> None:
    """Make the part of a hook, before anything is traced."""
    tap = hook.tap
    asked = _Asked(tap.filters, tap is hook.owner.hooks.root)
    hook.part = Part(hook.owner, tap)
    hook.ticket = hook.part.ticket
    # The same object for all, which is compared before each run of a graph.
    hook.asks = sys.intern(repr(asked))
    _plans[hook.asks] = asked


class Part:
    """The part of one hook in compiled graphs.

    Attributes:
        ticket: the number of this part.
    """

    __slots__ = ("__weakref__", "_native", "engine", "tap", "ticket")

    def __init__(self, engine: GraphListener, tap: Tap) -> None:
        self.engine = engine
        self.tap = tap
        self._native: Any = None
        number = next(_numbers)
        with outside_inference_mode():  # A graph saves it for backward.
            # A tensor: a number would become a constant of the graph, which would then serve one
            # hook alone and be compiled again for each module.
            self.ticket = torch.tensor(number, device="cpu")
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
        if self._native is None and _can_hand_over and native.takes_calls():
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
        state.received += is_gradient
        # Inductor plans the memory of a graph and writes into it again: a value is read at once.
        if phase is not FORWARD or not state.meter(value, engine.step):
            backward = engine.gradients.backwards.number() if is_gradient else -1
            row = (state.site, engine.step, 0, phase, backward, (), value, UNVERSIONED)
            engine.emit(Record(*row))

    def _new_native(self) -> Any:
        """Make what takes plain values from now on, before anything is asked here."""
        engine, tap = self.engine, self.tap
        return native.kernel().GraphPart(
            int(self.ticket),
            self.ticket,
            engine,
            engine.hooks.running,
            engine.evaluations.graph,
            tap,
            tap.states,
            tap.call_numbers,
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
    """Forward pre-hook that can be traced, see :class:`Traceable`."""

    __slots__ = ()

    owner: GraphListener
    part: Part
    ticket: Tensor
    asks: str

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            Begin.__call__(self, module, args)
        elif _can_leave_behind(self):
            _tell(self)


class CompilablePreForward(PreForward):
    """Forward pre-hook that can be traced, see :class:`Traceable`."""

    __slots__ = ()

    owner: GraphListener
    part: Part
    ticket: Tensor
    asks: str

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> None:
        if torch.compiler.is_compiling():
            _trace_entry(self, module, args, kwargs or {})
        elif self.owner.recording:
            # Looks at the frame of its caller.
            self.owner.enter(self.tap, module, args, kwargs or {})


class CompilableCallCounter(CallCounter):
    """Forward pre-hook that can be traced: a compiled graph numbers no calls."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            CallCounter.__call__(self, module, args)


class CompilablePostForward(PostForward):
    """Forward hook that can be traced, see :class:`Traceable`."""

    __slots__ = ()

    owner: GraphListener
    part: Part
    ticket: Tensor
    asks: str

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any = None
    ) -> None:
        if torch.compiler.is_compiling():
            _trace_output(self, output)
        else:
            PostForward.__call__(self, module, args, kwargs, output)


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
            _prepare(hook)


def trace_hook(hook: Any, *arguments: Any) -> Any:
    """Trace the hook behind a native one: with fewer looks at it than a call of it takes."""
    if isinstance(hook, CompilablePostForward):
        _trace_output(hook, arguments[-1])
    elif not isinstance(hook, CompilableCallCounter):
        return hook(*arguments)
    return None


def _trace_entry(
    hook: CompilablePreForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    if not _can_leave_behind(hook):
        return
    if _is_of_model(hook.asks):
        is_training = bool(getattr(module, "training", True))
        trains = is_training and torch.is_grad_enabled()
        _tell(hook, _ENTERS if is_training else _EVALUATES, trains=trains)
    elif _is_silent(hook.asks):
        _tell(hook)
    unseen: Unseen = {}
    for leaf, tensor in argument_leaves(args, kwargs, unseen):
        if _is_wanted(hook.asks, "input", leaf):
            _emit(tensor, hook, "input", leaf)
    _pass_over(hook, "input", unseen)


def _trace_output(hook: CompilablePostForward, output: Any) -> None:
    if _can_leave_behind(hook):
        unseen: Unseen = {}
        for leaf, tensor in leaves(output, unseen):
            _leave_behind(hook, leaf, tensor)
        _pass_over(hook, "output", unseen)
        if _is_of_model(hook.asks):
            _tell(hook, _LEAVES)


def _can_leave_behind(hook: Traceable) -> bool:
    if torch.compiler.is_exporting():
        return False
    if _is_in_transform():
        _tell(hook, note=IN_TRANSFORM)
        return False
    return True


def _leave_behind(hook: Traceable, leaf: str, tensor: Tensor) -> None:
    gradient = ""
    if _is_wanted(hook.asks, "grad_output", leaf):
        is_awaited = tensor.requires_grad and not _is_backward_compiled()
        gradient = _AWAITED if is_awaited else _why_no_grad(tensor)
    port = "output" if _is_wanted(hook.asks, "output", leaf) else ""
    if port or gradient:
        _emit(tensor, hook, port, leaf, gradient)
    if gradient == _AWAITED:
        ticket = hook.ticket

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


def _emit(tensor: Tensor, hook: Traceable, port: str, leaf: str, gradient: str = "") -> None:
    trains = torch.is_grad_enabled()
    torch.ops.torchtap.emit(tensor.detach(), hook.ticket, port, leaf, gradient, trains)


def _pass_over(hook: Traceable, port: str, unseen: Unseen) -> None:
    trains = torch.is_grad_enabled()
    for leaf, what in unseen.items():
        torch.ops.torchtap.emit(None, hook.ticket, port, leaf, what, trains)


def _tell(hook: Traceable, port: str = "", note: str = "", *, trains: bool | None = None) -> None:
    trains = torch.is_grad_enabled() if trains is None else trains
    torch.ops.torchtap.emit(None, hook.ticket, port, "", note, trains)


# Asked while a graph is traced, which then serves every hook that asks for the same.
def _is_wanted(asks: str, port: str, leaf: str) -> bool:
    for engine in members(open_engines):
        engine.hold_dynamo_setting()
    found = _plans[asks].filters.get(port)
    return found is not None and found.accepts(leaf)


def _is_of_model(asks: str) -> bool:
    return _plans[asks].is_of_model


def _is_silent(asks: str) -> bool:
    """Return whether something is wanted, and no value is handed over in forward."""
    filters = _plans[asks].filters
    return bool(filters) and filters.keys().isdisjoint(("input", "output", "grad_output"))


def _is_in_transform() -> bool:
    """Asked while a graph is traced, which then serves no call outside of the transform."""
    return transform_running() is not None


def _is_backward_compiled() -> bool:
    return is_backward_compiled()


# What torch.compiler.assume_constant_result does; that would import all of the compiler.
_is_wanted._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_of_model._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_silent._dynamo_marked_constant = True  # type: ignore[attr-defined]
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
_can_hand_over = native.takes_calls() and hasattr(native.kernel(), "hand_over_known")
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
        # Other values go to Python, and not once more through PyTorch's dispatcher.
        hand_over = partial(native.kernel().hand_over_known, _run)
    write_hand_overs()


run_as_it_is(
    CompilableBegin.__call__,
    CompilablePreForward.__call__,
    CompilableCallCounter.__call__,
    CompilablePostForward.__call__,
    _run,
)
after_import(DYNAMO, _define_operator)
