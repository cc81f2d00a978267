"""The one way to the value at a site of a model: read it, find it in the graph, or replace it.

Everything in this room that looks at a forward, or changes one, does it with a :class:`SiteProbe`.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from torchtap.core.errors import CaptureError
from torchtap.core.plan import Filter, Plan, PlannedTap
from torchtap.core.rebuild import replace, replace_arguments
from torchtap.core.record import BACKWARD, FORWARD
from torchtap.core.site import Pattern, Site
from torchtap.core.stack_frames import caught_in
from torchtap.core.tensors import kind_of, same_shape
from torchtap.core.torch_private import current_task, tracing_state
from torchtap.core.tree import argument_leaves, leaves
from torchtap.hooks.calls import UNIDENTIFIED, WHY_UNIDENTIFIED, Call
from torchtap.hooks.marks import open_editors
from torchtap.hooks.module_hook import (
    EDIT,
    EDITS,
    WATCH_AFTER,
    Keywords,
    TapHook,
    keep_dynamo_out,
)
from torchtap.hooks.tap import Tap
from torchtap.hooks.tap_follower import TapFollower

OUTPUT = ("output",)


class Visit(NamedTuple):
    """The arrival of one tensor at a site.

    Attributes:
        site: path, port and leaf.
        call: which call of the module within the forward, from 0.
        phase: ``forward``, or ``recompute`` where an activation checkpoint runs it again.
    """

    site: Site
    call: int
    phase: str


Visitor = Callable[[Tensor, Visit], Tensor | None]
"""Function that is shown a tensor, and returns the one to go on with, or ``None`` for the same."""


class SiteProbe:
    """A pair of hooks on each of some modules, which shows the tensors there to a visitor.

    A context manager: the hooks are on the model inside of the block. Calls that run inside a
    backward and are no recomputation (of an adjoint solver, for instance) are not shown.

    Args:
        modules: path -> module, of the whole model.
        plan: selects ports ``input`` and ``output`` of modules, or marks, see :func:`plan_of`.
        visit: is shown the tensors.
        call: only this call of each module; ``None`` for all.
        reads: the visitor returns nothing. It is then shown the values after all edits, first
            forwards alone, and tensors in objects too, where no other could be put.
        may_fuse: let encoder layers run their fused kernel, as they do without hooks. Nothing is
            seen inside of it.

    Attributes:
        visit: as given; another one may take its place.
        marks: names of the marks that were reached.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        plan: Plan,
        visit: Visitor,
        *,
        call: int | None = None,
        reads: bool = False,
        may_fuse: bool = False,
    ) -> None:
        self.visit = visit
        self.serial = next(_serials)
        self._modules = modules
        self._plan = plan
        self._call = call
        self._reads = reads
        self._hooks: TapFollower[Call] = TapFollower(plan)
        self._may_fuse = may_fuse
        self.marks = self._hooks.marks.keys()

    def __enter__(self) -> SiteProbe:
        role = WATCH_AFTER if self._reads else EDIT
        try:
            for tap, module in self._hooks.tapped(self._modules):
                if tap.filters or self._plan.patterns:  # Marks count while the model runs.
                    enter, leave = _Enter(self, tap, role), _Leave(self, tap, role)
                    self._hooks.put_on(module, pre_hook=enter, post_hook=leave)
            if self._may_fuse:
                self._hooks.keep_fused_kernels(self._hooks.taps, self._modules)
            if self._plan.patterns:
                open_editors.add(self)
        except BaseException:  # An interrupt, too, leaves no hook behind.
            self.__exit__()
            raise
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        open_editors.discard(self)
        self._hooks.release()
        del self.visit  # Its owner mostly owns this probe too: no cycle holds a graph.

    def begin(self) -> None:
        """Number calls from 0 again: the next forward begins."""
        self._hooks.restart()
        self._hooks.identifier.enter_model()

    @contextmanager
    def showing(self, visit: Visitor) -> Iterator[None]:
        """Let another visitor see the forward in this block."""
        own, self.visit = self.visit, visit
        self.begin()
        try:
            yield
        finally:
            self.visit = own

    # ------------------------------------------------------------------ called by hooks

    def enter(
        self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Show what a module is called with; returns what it is to be called with instead."""
        if tracing_state() is not None:
            return None
        number, phase = self._hooks.identifier.identify(tap, args, kwargs)
        call = Call(tap, number, phase, depth=3)
        self._hooks.running.stack.append(call)
        if "input" not in tap.filters or not self._is_wanted(call):
            return None
        if self._reads:
            self._read(call, "input", argument_leaves(args, kwargs))
            return None
        new = partial(self._put, call, "input")
        return replace_arguments(args, kwargs, new, inside=new)

    def leave(self, tap: Tap, output: Any, *, has_raised: bool) -> Any:
        """Show what a module returned; returns what is to flow on, ``None`` for the same."""
        left = self._hooks.running.leave(tap)
        if not left or has_raised or "output" not in tap.filters or not self._is_wanted(left[-1]):
            return None
        call = left[-1]
        if self._reads:
            self._read(call, "output", leaves(output))
            return None
        new = partial(self._put, call, "output")
        return new("", output) if type(output) is Tensor else replace(output, new, inside=new)

    def mark(self, tensor: Tensor, name: str) -> Tensor:
        """Show a tensor that names itself; returns what is to flow on."""
        is_inside = self._hooks.running.stack or current_task() != -1
        tap = self._hooks.mark_tap(name) if is_inside else None
        if tap is None or tracing_state() is not None:
            return tensor
        number, phase = self._hooks.identifier.identify(tap, (tensor,), {})
        call = Call(tap, number, phase, depth=1)
        return self._put(call, "output", "", tensor) if self._is_wanted(call) else tensor

    def _is_wanted(self, call: Call) -> bool:
        if call.phase is BACKWARD or (self._reads and call.phase is not FORWARD):
            return False
        if call.number == UNIDENTIFIED:
            raise CaptureError(
                f"Module {call.tap.path or '.'!r}: {WHY_UNIDENTIFIED}, so it could have another "
                f"value than the first time. Explain at the checkpointed module itself, or at one "
                f"outside of it."
            )
        return self._call is None or self._call == call.number

    def _read(self, call: Call, port: str, found: Iterable[tuple[str, Tensor]]) -> None:
        for leaf, tensor in found:
            self._put(call, port, leaf, tensor)

    def _put(self, call: Call, port: str, leaf: str, tensor: Tensor, holder: str = "") -> Tensor:
        """Return the tensor to go on with; in an object only one that was asked for by name."""
        state = call.tap.state(port, leaf)
        if state is None or (holder and call.tap.filters[port].is_open):
            return tensor
        visit = Visit(state.site, call.number, call.phase)
        new = self.visit(tensor, visit)
        if new is None or new is tensor:
            return tensor
        _refuse_misfit(new, tensor, visit)
        return new


_serials = itertools.count(1 << 62)  # Marks are shown after all edits.


class _Enter(TapHook[SiteProbe]):
    """Forward pre-hook of a probe."""

    __slots__ = ()

    with_kwargs = True

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Keywords = None) -> Any:
        return self.owner.enter(self.tap, args, kwargs or {})


class _Leave(TapHook[SiteProbe]):
    """Forward hook of a probe, called too where the module raises."""

    __slots__ = ()

    with_kwargs = always_call = True

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> Any:
        if type(kwargs) is not dict:
            output = kwargs
        has_raised = caught_in(sys._getframe(1)) is not None
        return self.owner.leave(self.tap, output, has_raised=has_raised)


keep_dynamo_out(_Enter.__call__, _Leave.__call__, reason=EDITS)


def _refuse_misfit(new: Tensor, tensor: Tensor, visit: Visit) -> None:
    fits = same_shape(new, tensor) and new.dtype == tensor.dtype
    if not (fits and new.device == tensor.device and new.layout == tensor.layout):
        raise CaptureError(
            f"{visit.site} (call {visit.call}) is {kind_of(tensor)} in this forward, and the value "
            f"to put there is {kind_of(new)}; expected one shape, dtype and device."
        )


def plan_of(
    modules: Mapping[str, nn.Module],
    paths: Iterable[str],
    ports: Sequence[str] = OUTPUT,
    *,
    marks: Sequence[str] = (),
) -> Plan:
    """Return the plan of whole ports of some modules, without a look at all others.

    Args:
        modules: path -> module, of the whole model.
        paths: of modules; a path that no module has is that of a ``tt.mark``.
        ports: ``input``, ``output``, or both.
        marks: patterns of further marks.
    """
    paths = tuple(dict.fromkeys(paths))
    filters = dict.fromkeys(ports, Filter())
    taps, names = [], list(marks)
    for path in paths:
        module = modules.get(path)
        if module is None:
            names.append(path)
        else:
            taps.append(PlannedTap(path, type(module).__name__, filters, weakref.ref(module)))
    patterns = tuple([Pattern(name, tuple(ports)) for name in names])
    types = dict.fromkeys(modules, ())
    kind = type(modules[""]).__name__
    return Plan(
        model=kind,
        where=paths,
        taps=tuple(taps),
        absent=(),
        patterns=patterns,
        unmatched=patterns,
        types=types,
        aliases={},
    )


# ---------------------------------------------------------------------- in the graph


@dataclass(frozen=True, slots=True)
class Noted:
    """A tensor that came by at a site, as it was then.

    Attributes:
        site: of the tensor.
        call: which call of the module it was, from 0.
        alias: of the tensor, detached; it is what came by as long as its version is the same.
        version: of the tensor, when it came by.
        edges: where it stands in the graph: its own :class:`~torch.autograd.graph.GradientEdge`,
            and that of the tensor it is a view of. They stay what they are when the tensor is
            overwritten, and a backward that is asked for them goes no further. Empty where the
            tensor does not require grad.
        copy: of the tensor, if one was asked for.
    """

    site: Site
    call: int
    alias: Tensor
    version: int
    edges: tuple[GradientEdge, ...]
    copy: Tensor | None = None

    @property
    def is_dense(self) -> bool:
        """Return whether the tensor is neither sparse nor nested."""
        return self.alias.layout is torch.strided and not self.alias.is_nested

    @property
    def is_whole(self) -> bool:
        """Return whether nothing has been written to the tensor."""
        return not self.alias.is_inference() and self.alias._version == self.version


def noted(tensor: Tensor, visit: Visit, *, copies: bool = False) -> Noted:
    """Note a tensor that a visitor is shown.

    Args:
        tensor: what flows on.
        visit: where it came by.
        copies: keep a copy of it too.
    """
    alias = tensor.detach()
    version = 0 if tensor.is_inference() else tensor._version
    edges: tuple[GradientEdge, ...] = ()
    if tensor.requires_grad:
        edges = (get_gradient_edge(tensor),)
        # When a view is overwritten, its gradient comes partly by way of its base.
        base = tensor._base if tensor._is_view() else None
        if base is not None and base.requires_grad:
            edges = (*edges, get_gradient_edge(base))
    copy = alias.clone() if copies else None
    return Noted(visit.site, visit.call, alias, version, edges, copy)


def with_graph(tensor: Tensor) -> Tensor | None:
    """Return a tensor at which a graph begins, ``None`` where one is there or cannot be.

    It is the copy of a leaf, so that the model may write into it.
    """
    if tensor.requires_grad or not tensor.is_floating_point():
        return None
    with torch.enable_grad():
        return tensor.detach().clone().requires_grad_().clone()
