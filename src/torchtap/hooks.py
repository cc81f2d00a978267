"""The first door to autograd: the only file that puts hooks on modules, tensors and nodes.

An :class:`Engine` carries out a :class:`~torchtap.plan.Plan` and hands records to one function.
How it sees what it sees:

- ``input``, ``output``: a forward pre-hook and a forward hook; the value is kept at that moment.
- ``grad_output``: a tensor hook put on the output at the moment of return. It stays with that
  very value, also when the caller goes on with ``out += x``. A *view* that the caller overwrites
  loses its hook without a word; the engine looks for such views and follows them (`_ViewWatch`).
- ``grad_input``: hooks on the autograd nodes where the argument enters the module; their sum is
  what flows through the module. No tensor is replaced and no node is put in between.
- Gradients are bound to their call when the call is made, so nothing is counted in backward.

Full backward hooks are not used: they interpose a function that breaks in-place modules, object
identity and nested outputs.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.modules.module import register_module_forward_hook

from torchtap import fused
from torchtap.graph import (
    Crossing,
    Edge,
    Entrance,
    Geometry,
    crossings,
    edge_of,
    entrances,
    geometry_in_base,
    overwriting_node,
    sequence_number,
)
from torchtap.keep import keep, obstacle, storage_id
from torchtap.record import FORWARD, RECOMPUTE, UNVERSIONED, Record
from torchtap.replay import Replay
from torchtap.site import Site
from torchtap.tree import argument_leaves, leaves

if TYPE_CHECKING:
    from torchtap.plan import Filter, Plan, PlannedTap

_current_task = torch._C._current_graph_task_id
_transform_running = torch._C._functorch.peek_interpreter_stack
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_lazy_clone = torch._lazy_clone  # type: ignore[attr-defined]
_new_record = tuple.__new__  # A third of the price of calling the class.

_OUR_REFERENCES = 3
"""To a view that only `Engine.views` holds: its tuple, the loop variable, the argument."""

# The only global state: a mark has nothing but its thread to find out who is watching.
_open_engines: list[Engine] = []


class Spot:
    """The tally of one site: what was seen there, and if nothing, why.

    Attributes:
        seen: values delivered.
        armed: gradients waited for.
        arrived: of these, the ones that came.
        reason: why the last value could not be had.
    """

    __slots__ = ("armed", "arrived", "reason", "seen", "site")

    def __init__(self, site: Site) -> None:
        self.site = site
        self.seen = self.armed = self.arrived = 0
        self.reason: str | None = None


class Tap:
    """Our attachment to one module (or mark): what is wanted of it, and what was seen."""

    __slots__ = ("calls", "filters", "is_plain", "num_calls", "path", "reason", "spots")

    def __init__(self, path: str, filters: Mapping[str, Filter], *, copy: str) -> None:
        self.path = path
        self.filters = filters
        self.spots: dict[tuple[str, str], Spot | None] = {}
        self.calls = itertools.count()
        self.num_calls = 0
        self.reason: str | None = None
        # Nothing but whole outputs and their gradients: the fast way in _Leave.
        self.is_plain = copy == "auto" and all(
            filters[port].is_open for port in filters if port in ("output", "grad_output")
        )

    def spot(self, port: str, leaf: str) -> Spot | None:
        """The spot of one site, or ``None`` if it is not wanted."""
        try:
            return self.spots[port, leaf]
        except KeyError:
            wanted = port in self.filters and self.filters[port].accepts(leaf)
            spot = Spot(Site(self.path, port, leaf)) if wanted else None
            self.spots[port, leaf] = spot
            return spot


class _Frame:
    """One call of a tapped module that has been entered and not yet left."""

    __slots__ = (
        "arguments",
        "call",
        "entering",
        "first",
        "foreign",
        "labels",
        "phase",
        "spots",
        "tap",
    )

    def __init__(self, tap: Tap, call: int, phase: str, foreign: set[int]) -> None:
        self.tap = tap
        self.call = call
        self.phase = phase
        self.foreign = foreign
        self.entering: dict[Edge, list[Entrance]] = {}
        self.labels: dict[int, tuple[str, ...]] = {}
        self.first = 0
        self.arguments: list[Tensor] = []
        self.spots: list[Spot | None] = []


class _Hook:
    """A function that PyTorch calls on a module; a copy or a pickle of the model gets a no-op.

    The no-op is a bound method of the standard library, so a saved model loads where torchtap is
    not installed.
    """

    __slots__ = ("engine", "tap")

    def __init__(self, engine: Engine, tap: Tap) -> None:
        self.engine = engine
        self.tap = tap

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __copy__(self) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Enter(_Hook):
    """Forward pre-hook of a tap that must know when its module is entered."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.engine.recording:
            self.engine.enter(self.tap, args, kwargs)


class _Leave(_Hook):
    """Forward hook. What it does per call decides what watching costs."""

    __slots__ = ("has_frame", "plain")

    def __init__(self, engine: Engine, tap: Tap, *, has_frame: bool) -> None:
        super().__init__(engine, tap)
        self.has_frame = has_frame
        self.plain = tap.is_plain and not has_frame

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        engine = self.engine
        if not engine.recording:
            return
        if (
            self.plain
            and type(output) is Tensor
            and output.grad_fn is not None
            and not output._is_view()
            and not engine.views
            and not engine.busy
            and _current_task() == -1
            and _saved_tensor_hooks(True) is None
            and _transform_running() is None
        ):
            engine.take_plain(self.tap, output)
        else:
            engine.leave(self.tap, args, kwargs, output, has_frame=self.has_frame)


class _StepAside(_Hook):
    """Pre-hook of a ``TransformerEncoderLayer``: takes our hooks off for a fused call."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(module, nn.TransformerEncoderLayer)
        self.engine.step_aside(self.tap, module, args, kwargs)


class _Arrival(partial):  # type: ignore[type-arg]
    """A tensor hook, bound to its call. Tells ``torch.save`` of the tensor not to mind it."""

    __slots__ = ()
    __torch_unserializable__ = True


class _Gather:
    """Adds up the parts of one gradient that arrive at several nodes of one backward."""

    __slots__ = ("call", "engine", "labels", "num_parts", "spot", "step", "sums")

    def __init__(
        self, engine: Engine, spot: Spot, call: int, labels: tuple[str, ...], num_parts: int
    ) -> None:
        self.engine = engine
        self.spot = spot
        self.step = engine.step
        self.call = call
        self.labels = labels
        self.num_parts = num_parts
        self.sums: dict[int, Tensor] = {}
        spot.armed += 1

    def add(self, part: Tensor) -> None:
        """Take one part; delivers at the end of this backward, or at once if it is the only."""
        part = part.detach()
        if self.num_parts == 1:
            self.engine.deliver_gradient(self.spot, self.step, self.call, self.labels, part)
            return
        task = _current_task()
        if task in self.sums:
            self.sums[task] = self.sums[task] + part
        else:
            self.sums[task] = part
            engine: Any = Variable._execution_engine
            engine.queue_callback(partial(self._finish, task))

    def _finish(self, task: int) -> None:
        total = self.sums.pop(task)
        self.engine.deliver_gradient(self.spot, self.step, self.call, self.labels, total)


class _ViewWatch:
    """The gradient of a returned view, which a later write into its memory would cut off.

    The write replaces the view's node by ``CopySlices`` on the base: the derivative with respect
    to what was returned then comes in two parts, by the old node (uses before the write) and by
    the cut of ``CopySlices``' gradient (uses after).
    """

    __slots__ = ("alias", "base_edge", "gather", "geometry", "is_repaired", "version")

    def __init__(self, view: Tensor, base: Tensor, gather: _Gather) -> None:
        # The alias shares the view's version counter but not its graph: the view itself would
        # make a cycle through its own hook that no garbage collector can see.
        self.alias = view.detach()
        self.version = view._version
        self.base_edge = edge_of(base)
        self.geometry = geometry_in_base(view)
        self.gather = gather
        self.is_repaired = False

    @property
    def is_overwritten(self) -> bool:
        return bool(self.alias._version != self.version)

    def old_part(self, gradient: Tensor | None) -> None:
        """Hook on the view as it was returned."""
        if gradient is None:
            return
        if self.is_overwritten and not self.is_repaired:
            self.gather.spot.reason = (
                "it is a view that was overwritten after the last watched module returned, where "
                "autograd loses its gradient. Mark the overwritten tensor with tt.mark, or return "
                "a copy"
            )
            return
        self.gather.add(gradient)

    def repair(self, view: Tensor) -> None:
        """Follow the view to the node that took over."""
        node = overwriting_node(view, self.base_edge)
        if node is not None:
            self.is_repaired = True
            self.gather.num_parts = 2
            node.register_hook(self._overwritten_part)

    def _overwritten_part(self, grad_inputs: tuple[Tensor | None, ...], _: Any) -> None:
        gradient = grad_inputs[0]
        if gradient is not None:
            self.gather.add(self.geometry.cut(gradient))


class Engine:
    """Carries out a plan on a model: puts the hooks on, keeps what flows, takes them off.

    Args:
        model: where the plan was made.
        plan: what is wanted.
        emit: takes each record, inside the hooks.
        copy: how values are kept, see ``keep``.
        grad_input: ``through`` or ``total``.
        busy: threads that are inside a sink now; what they run is not recorded.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        emit: Callable[[Record], None],
        *,
        copy: str,
        grad_input: str,
        busy: set[int],
    ) -> None:
        self.plan = plan
        self.emit = emit
        self.copy = copy
        self.grad_input = grad_input
        self.busy = busy
        self.step = 0
        self.recording = False
        self.num_entries = 0
        self.taps = {tap.path: Tap(tap.path, tap.filters, copy=copy) for tap in plan.taps}
        self.root = self.taps.get("") or Tap("", {}, copy=copy)
        self.marks: dict[str, Tap | None] = {}
        self.views: list[tuple[_ViewWatch, Tensor]] = []
        self._model = weakref.ref(model)
        self._local = threading.local()
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._armed: list[weakref.ref[Any]] = []
        self._leaves: list[Tensor] = []
        self._nodes: list[Any] = []
        self._prune_at = 1024
        self._tasks: dict[int, int] = {}
        self._replay = Replay()
        self._snapshot_taken = False
        self._own_storages: set[int] | None = None
        self._param_hooks: dict[tuple[str, str], tuple[Tensor, Any]] = {}
        self._aside: list[tuple[Any, ...]] = []

    # ------------------------------------------------------------------ on, step, off

    def attach(self, modules: Mapping[str, nn.Module]) -> None:
        """Put the hooks on. ``modules``: path -> module."""
        for path in dict.fromkeys(["", *self.taps]):
            tap = self.taps.get(path, self.root)
            framed = path == "" or any(port in tap.filters for port in ("input", "grad_input"))
            module = modules[path]
            if isinstance(module, torch.jit.ScriptModule):
                tap.reason = "a ScriptModule takes no hooks"
                continue
            if framed:
                self._handles.append(
                    module.register_forward_pre_hook(_Enter(self, tap), with_kwargs=True)
                )
            if framed or "output" in tap.filters or "grad_output" in tap.filters:
                leave = _Leave(self, tap, has_frame=framed)
                self._handles.append(
                    module.register_forward_hook(leave, with_kwargs=True, always_call=framed)
                )
        self._attach_aside(modules)
        _open_engines.append(self)

    def begin_step(self, step: int, *, recording: bool) -> None:
        """Start ``step``; gradients still to come keep the step they belong to."""
        self.step = step
        self.recording = recording
        self._snapshot_taken = False
        self._replay = Replay()
        self._tasks.clear()
        self._running_backwards().clear()
        self._frames().clear()
        self._come_back()
        self._disarm_leaves()
        self._prune()
        for tap in (self.root, *self.taps.values(), *self.marks.values()):
            if tap is not None:
                tap.calls = itertools.count()

    def detach(self) -> None:
        """Take every hook off, also those on tensors of graphs that are still alive."""
        self.recording = False
        if self in _open_engines:
            _open_engines.remove(self)
        self._come_back()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for _, handle in self._param_hooks.values():
            handle.remove()
        self._param_hooks.clear()
        self._disarm_leaves()
        for reference in self._armed:
            hooks = reference()
            if hooks is not None:
                self._disarm(hooks)
        self._armed.clear()
        for handle in self._nodes:
            handle.remove()
        self._nodes.clear()
        self.views.clear()
        self._frames().clear()

    # ------------------------------------------------------------------ forward

    def enter(self, tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A tapped module is entered."""
        if self._is_dormant(tap):
            return
        frames = self._frames()
        if any(frame.tap is tap for frame in frames) and tap is self.root:
            frames.clear()  # Left over from a KeyboardInterrupt: it runs no hooks.
        found = argument_leaves(args, kwargs)
        outermost = not frames
        if outermost:
            self._enter_model()
        foreign = {storage_id(tensor) for _, tensor in found} if outermost else frames[-1].foreign
        call, phase = self._number(tap, found)
        frame = _Frame(tap, call, phase, foreign)
        frames.append(frame)
        for leaf, tensor in found:
            self._take_value(tap.spot("input", leaf), tensor, call, phase, foreign)
        if "grad_input" in tap.filters:
            self._expect_grad_inputs(frame, found)

    def take_plain(self, tap: Tap, output: Tensor) -> None:
        """The fast way for a single fresh output: see the conditions in `_Leave`."""
        call = next(tap.calls)
        step = self.step
        tap.num_calls += 1
        spots = tap.spots
        spot = spots["output", ""] if ("output", "") in spots else tap.spot("output", "")
        if spot is not None:
            spot.seen += 1
            kept = _lazy_clone(output.data)
            row = (spot.site, step, call, FORWARD, -1, (), kept, UNVERSIONED)
            self.emit(_new_record(Record, row))
        spot = (
            spots["grad_output", ""] if ("grad_output", "") in spots else tap.spot("grad_output", "")
        )
        if spot is not None:
            spot.armed += 1
            hook = _Arrival(self.deliver_gradient, spot, step, call, ())
            hooks: Any = output._backward_hooks
            if hooks is None:
                # What Tensor.register_hook does, less its handle: a third of the time.
                hooks = OrderedDict()
                output._backward_hooks = hooks
                output.grad_fn._register_hook_dict(output)  # type: ignore[union-attr]
                self._armed.append(weakref.ref(hooks))
            hooks[hook] = hook

    def leave(
        self,
        tap: Tap,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        *,
        has_frame: bool,
    ) -> None:
        """A tapped module returned (or raised: then ``output`` is ``None``)."""
        if self._is_dormant(tap):
            return
        self.repair_views()
        frame = self._pop_frame(tap) if has_frame else None
        if frame is None:
            arguments = argument_leaves(args, kwargs)
            call, phase = self._number(tap, arguments)
            frames = self._frames()
            foreign = (
                frames[-1].foreign
                if frames
                else {storage_id(tensor) for _, tensor in arguments}
            )
        else:
            call, phase, foreign = frame.call, frame.phase, frame.foreign
        found = leaves(output)
        for leaf, tensor in found:
            self._take_value(tap.spot("output", leaf), tensor, call, phase, foreign)
            self._expect_gradient(tap.spot("grad_output", leaf), tensor, call, ())
        if frame is not None and frame.entering:
            self._connect_grad_inputs(frame, [tensor for _, tensor in found])
        if tap is self.root:
            self._hook_params()  # Lazy parameters exist only now.

    def mark(self, tensor: Tensor, name: str) -> None:
        """An intermediate tensor names itself."""
        if not self.recording or not self._frames():
            return
        tap = self._mark_tap(name)
        if tap is None or self._is_dormant(tap):
            return
        self.repair_views()
        call, phase = self._number(tap, [("", tensor)])
        foreign = self._frames()[-1].foreign
        self._take_value(tap.spot("output", ""), tensor, call, phase, foreign)
        self._expect_gradient(tap.spot("grad_output", ""), tensor, call, ())

    def _enter_model(self) -> None:
        self.num_entries += 1
        if _current_task() == -1:
            self._running_backwards().clear()  # One that raised has not signed off.
        if len(self._armed) + len(self._nodes) > self._prune_at:
            self._prune()
        with self._lock:
            if not self._snapshot_taken:
                self._snapshot_taken = True
                self._own_storages = None
                self._take_state()
                self._hook_params()

    def _number(self, tap: Tap, found: list[tuple[str, Tensor]]) -> tuple[int, str]:
        """Which call this is, and whether it is the first time or a recomputation."""
        again = _current_task() != -1 and tap.num_calls > 0
        checkpointed = not again and (
            not torch.is_grad_enabled() or _saved_tensor_hooks(True) is not None
        )
        if not again and not checkpointed:
            tap.num_calls += 1
            return next(tap.calls), FORWARD
        storage = storage_id(found[0][1]) if found else 0
        if again:
            self._backward_number()
            call = self._replay.find(tap, storage)
            if call is not None:
                return call, RECOMPUTE
            tap.reason = "a recomputed call could not be told from the others of this module"
            return -1, RECOMPUTE
        call = next(tap.calls)
        tap.num_calls += 1
        self._replay.remember(tap, call, storage)
        return call, FORWARD

    # ------------------------------------------------------------------ values

    def _take_value(
        self, spot: Spot | None, tensor: Tensor, call: int, phase: str, foreign: set[int]
    ) -> None:
        if spot is None or call < 0:
            return
        reason = obstacle(tensor)
        if reason is not None:
            spot.reason = reason
            return
        kept, version = keep(tensor, copy=self.copy, foreign=self._foreign(tensor, foreign))
        spot.seen += 1
        self.emit(Record(spot.site, self.step, call, phase, -1, (), kept, version))

    def _foreign(self, tensor: Tensor, passed: set[int]) -> set[int]:
        """Storages that others may point into: arguments, and the model's own state."""
        if tensor.grad_fn is not None and not tensor._is_view():
            return passed
        if self._own_storages is None:
            model = self._model()
            state = () if model is None else (*model.parameters(), *model.buffers())
            self._own_storages = {storage_id(held) for held in state} - {0}
        return passed | self._own_storages

    def _take_state(self) -> None:
        """Parameters and buffers, as they are when the step begins."""
        for planned, tap, module in self._stateful():
            for port, held in (("param", module._parameters), ("buffer", module._buffers)):
                if port not in planned.filters:
                    continue
                for name, tensor in held.items():
                    spot = None if tensor is None else tap.spot(port, name)
                    if spot is None or tensor is None:
                        continue
                    reason = obstacle(tensor)
                    if reason is not None:
                        spot.reason = reason
                        continue
                    spot.seen += 1
                    # The optimizer is about to overwrite it, and others may point into it.
                    kept = tensor.detach().clone()
                    row = Record(spot.site, self.step, 0, FORWARD, -1, (), kept, UNVERSIONED)
                    self.emit(row)

    def _stateful(self) -> Iterable[tuple[PlannedTap, Tap, nn.Module]]:
        for planned in self.plan.taps:
            module = planned.module()
            if module is not None:
                yield planned, self.taps[planned.path], module

    # ------------------------------------------------------------------ gradients

    def deliver_gradient(
        self,
        spot: Spot,
        step: int,
        call: int,
        labels: tuple[str, ...],
        gradient: Tensor | None,
    ) -> None:
        """A gradient has arrived."""
        if gradient is None or call < 0:
            return
        spot.arrived += 1
        spot.seen += 1
        backward = self._backward_number()
        if type(gradient) is Tensor and gradient.layout is torch.strided and self.copy == "auto":
            try:
                # Not the gradient itself: autograd and other hooks may go on to write into it.
                kept, version = _lazy_clone(gradient.data), UNVERSIONED
            except RuntimeError:
                kept, version = gradient.detach().clone(), UNVERSIONED
        else:
            kept, version = keep(gradient, copy=self.copy, foreign=())
        row = (spot.site, step, call, FORWARD, backward, labels, kept, version)
        self.emit(_new_record(Record, row))

    def _backward_number(self) -> int:
        task = _current_task()
        number = self._tasks.get(task)
        return self._new_backward(task) if number is None else number

    def _new_backward(self, task: int) -> int:
        """Number a backward; one that runs inside another (reentrant checkpoint) is part of it."""
        running = self._running_backwards()
        if running:
            number = self._tasks[running[0]]
        else:
            number = len(set(self._tasks.values()))
        self._tasks[task] = number
        running.append(task)
        engine: Any = Variable._execution_engine
        engine.queue_callback(partial(_forget, running, task))
        return number

    def _running_backwards(self) -> list[int]:
        try:
            return self._local.running  # type: ignore[no-any-return]
        except AttributeError:
            self._local.running = []
            return self._local.running  # type: ignore[no-any-return]

    def _expect_gradient(
        self, spot: Spot | None, tensor: Tensor, call: int, labels: tuple[str, ...]
    ) -> None:
        """Hear of the gradient of a tensor as it is now, over all its uses."""
        if spot is None:
            return
        if not tensor.requires_grad:
            spot.reason = _why_no_grad(tensor)
            return
        if call < 0 or _is_discarded_graph():
            return
        base = tensor._base if tensor._is_view() else None
        if base is not None and base.grad_fn is not None and type(tensor) is Tensor:
            watch = _ViewWatch(tensor, base, _Gather(self, spot, call, labels, 1))
            self._arm(tensor, _Arrival(watch.old_part))
            with self._lock:
                self.views.append((watch, tensor))
        else:
            spot.armed += 1
            self._arm(tensor, _Arrival(self.deliver_gradient, spot, self.step, call, labels))

    def _arm(self, tensor: Tensor, hook: _Arrival) -> None:
        if type(tensor) is not Tensor or tensor.grad_fn is None:
            handle = tensor.register_hook(hook)
            self._nodes.append(handle)
            if tensor.grad_fn is None:
                self._leaves.append(tensor)  # It outlives the step and would collect hooks.
            return
        hooks: Any = tensor._backward_hooks
        if hooks is None:
            hooks = OrderedDict()
            tensor._backward_hooks = hooks
            tensor.grad_fn._register_hook_dict(tensor)
        hooks[hook] = hook
        self._armed.append(weakref.ref(hooks))

    def _expect_grad_inputs(self, frame: _Frame, found: list[tuple[str, Tensor]]) -> None:
        tap = frame.tap
        wanted: list[tuple[int, Tensor]] = []
        for leaf, tensor in found:
            spot = tap.spot("grad_input", leaf)
            frame.spots.append(spot)
            frame.arguments.append(tensor)
            if spot is None:
                continue
            if not tensor.requires_grad:
                spot.reason = _why_no_grad(tensor)
            elif not torch.is_grad_enabled():
                spot.reason = "grad mode was off"
            elif self.grad_input == "total":
                self._expect_gradient(spot, tensor, frame.call, ("total",))
            elif frame.call >= 0 and not _is_discarded_graph():
                wanted.append((len(frame.arguments) - 1, tensor))
        if wanted:
            frame.entering = entrances(wanted)
            frame.first = sequence_number()
            for sharing in frame.entering.values():
                places = [entrance.place for entrance in sharing if entrance.geometry is None]
                if len(places) > 1:
                    label = f"sum of {len(places)} slots"
                    frame.labels.update(dict.fromkeys(places, (label,)))

    def _connect_grad_inputs(self, frame: _Frame, outputs: list[Tensor]) -> None:
        """Find where the arguments entered, now that the module's graph is there."""
        unchanged: set[int] = set()
        roots = []
        for tensor in outputs:
            if not tensor.requires_grad:
                continue
            direct = [e.place for e in frame.entering.get(edge_of(tensor), ()) if not e.geometry]
            for place in direct:
                if place not in unchanged:
                    unchanged.add(place)
                    self._expect_gradient(frame.spots[place], tensor, frame.call, ("total",))
            if not direct and tensor.grad_fn is not None:
                roots.append(tensor)
        found = crossings(roots, frame.entering, frame.first)
        nodes_of: dict[int, dict[Any, list[Crossing]]] = {}
        for node, slots in found.items():
            for crossing in slots:
                if crossing.place not in unchanged:
                    nodes_of.setdefault(crossing.place, {}).setdefault(node, []).append(crossing)
        for place, nodes in nodes_of.items():
            self._gather_at(frame, place, nodes)

    def _gather_at(self, frame: _Frame, place: int, nodes: dict[Any, list[Crossing]]) -> None:
        spot = frame.spots[place]
        assert spot is not None
        tensor = frame.arguments[place]
        labels = frame.labels.get(place, ())
        gather = _Gather(self, spot, frame.call, labels, len(nodes))
        shape, dtype = tensor.shape, tensor.dtype
        for node, crossing in nodes.items():
            hook = partial(_add_crossings, gather, crossing, shape, dtype)
            self._nodes.append(node.register_hook(hook))

    def repair_views(self) -> None:
        """Follow returned views that were overwritten since; forget those nobody can reach."""
        if not self.views:
            return
        with self._lock:
            waiting = []
            for watch, view in self.views:
                if watch.is_overwritten:
                    watch.repair(view)
                elif getrefcount(view) > _OUR_REFERENCES:
                    waiting.append((watch, view))
            self.views = waiting

    # ------------------------------------------------------------------ parameter gradients

    def _hook_params(self) -> None:
        """Hook parameters that are new: replaced since, or lazy until now."""
        for planned, tap, module in self._stateful():
            if "param_grad" not in planned.filters:
                continue
            for name, param in module._parameters.items():
                if param is None or obstacle(param) is not None:
                    continue
                old = self._param_hooks.get((planned.path, name))
                if old is not None and old[0] is param:
                    continue
                spot = tap.spot("param_grad", name)
                if spot is None:
                    continue
                if old is not None:
                    old[1].remove()
                if not param.requires_grad:
                    spot.reason = _why_no_grad(param)
                    continue
                hook = partial(self._take_param_grad, spot)
                handle = param.register_post_accumulate_grad_hook(hook)
                self._param_hooks[planned.path, name] = (param, handle)

    def _take_param_grad(self, spot: Spot, param: Tensor) -> None:
        gradient = param.grad
        if gradient is None or not self.recording:
            return
        backward = self._backward_number()
        labels = _reduction(gradient)
        # Accumulation, clipping, unscaling and zero_grad are about to overwrite it.
        kept = gradient.detach().clone()
        spot.seen += 1
        self.emit(
            Record(spot.site, self.step, backward, FORWARD, backward, labels, kept, UNVERSIONED)
        )

    # ------------------------------------------------------------------ fused encoder layers

    def _attach_aside(self, modules: Mapping[str, nn.Module]) -> None:
        tapped = {id(modules[path]) for path in self.taps}
        tapped.add(id(modules[""]))
        for path, module in modules.items():
            if not isinstance(module, nn.TransformerEncoderLayer):
                continue
            if any(id(inner) in tapped for inner in module.modules()):
                tap = self.taps.get(path, self.root if path == "" else Tap(path, {}, copy="auto"))
                hook = _StepAside(self, tap)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def step_aside(
        self,
        tap: Tap,
        layer: nn.TransformerEncoderLayer,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        """Take our hooks off the layer for one call, if it would then run as one kernel."""
        if not fused.would_fuse(layer, args, kwargs):
            return
        inner = list(layer.modules())
        tables = [table for m in inner for table in (m._forward_pre_hooks, m._forward_hooks)]
        if any(not isinstance(hook, _Hook) for table in tables for hook in table.values()):
            return  # Somebody else's hook keeps the kernel off anyway.
        by_module = {planned.module(): self.taps[planned.path] for planned in self.plan.taps}
        for module in inner:
            if module is not layer and module in by_module:
                by_module[module].reason = fused.REASON
        saved = [(table, dict(table)) for table in tables]
        leave = next((hook for hook in layer._forward_hooks.values() if type(hook) is _Leave), None)
        for table in tables:
            table.clear()

        def come_back(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if module is layer:
                self._come_back()
                if leave is not None:
                    leave(module, args, dict(kwargs), output)

        handle = register_module_forward_hook(come_back, always_call=True)
        self._aside.append((handle, saved))

    def _come_back(self) -> None:
        while self._aside:
            handle, saved = self._aside.pop()
            handle.remove()
            for table, hooks in saved:
                table.update(hooks)

    # ------------------------------------------------------------------ small things

    def _frames(self) -> list[_Frame]:
        try:
            return self._local.frames  # type: ignore[no-any-return]
        except AttributeError:
            self._local.frames = []
            return self._local.frames  # type: ignore[no-any-return]

    def _pop_frame(self, tap: Tap) -> _Frame | None:
        frames = self._frames()
        if not any(frame.tap is tap for frame in frames):
            return None
        while True:
            frame = frames.pop()
            if frame.tap is tap:
                return frame

    def _is_dormant(self, tap: Tap) -> bool:
        if _transform_running() is not None:
            tap.reason = "it ran inside a torch.func transform, where tensors stand for others"
        elif torch._C._get_tracing_state() is not None:
            tap.reason = "it ran while torch.jit was tracing"
        elif not self.busy or threading.get_ident() not in self.busy:
            return False
        return True

    def _mark_tap(self, name: str) -> Tap | None:
        if name not in self.marks:
            filters = self.plan.mark_filters(name)
            self.marks[name] = Tap(name, filters, copy=self.copy) if filters else None
        return self.marks[name]

    def _disarm(self, hooks: Any) -> None:
        for hook in [hook for hook in hooks if isinstance(hook, _Arrival)]:
            if _owner(hook) is self:
                del hooks[hook]

    def _disarm_leaves(self) -> None:
        for tensor in self._leaves:
            hooks: Any = tensor._backward_hooks
            for key in [key for key, hook in (hooks or {}).items() if isinstance(hook, _Arrival)]:
                if _owner(hooks[key]) is self:
                    del hooks[key]
        self._leaves.clear()

    def _prune(self) -> None:
        """Forget what belongs to graphs that are gone."""
        self._armed = [reference for reference in self._armed if reference() is not None]
        self._nodes = [h for h in self._nodes if h.hooks_dict_ref() is not None]
        self._prune_at = 1024 + 2 * (len(self._armed) + len(self._nodes))


def mark(tensor: Tensor, name: str) -> Tensor:
    """Make an intermediate tensor a site of its own: ``name:output`` and ``name:grad_output``.

    To be called inside a forward. Free when nobody watches.

    Args:
        tensor: any tensor.
        name: its path in patterns and runs; several calls in one step are told apart by number.

    Returns:
        the same tensor object.

    Example:
        >>> import torch, torchtap as tt
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         return tt.mark(x * 2, "doubled").sum()
        >>> model = Net()
        >>> with tt.watch(model, "doubled:output,grad_output") as w:
        ...     model(torch.ones(2, requires_grad=True)).backward()
        >>> w.run["doubled:grad_output"]
        tensor([1., 1.])
    """
    if _open_engines:
        _mark_watched(tensor, name)
    return tensor


def _mark_watched(tensor: Tensor, name: str) -> None:
    for engine in _open_engines:
        engine.mark(tensor, name)


@contextlib.contextmanager
def interposed(
    modules: Mapping[str, nn.Module],
    enter: Callable[[str, tuple[Any, ...], dict[str, Any]], tuple[Any, Any] | None] | None,
    leave: Callable[[str, Any], Any] | None,
) -> Iterator[None]:
    """While open, ``enter`` and ``leave`` see, and may replace, what modules take and return.

    The plain way to look, without any of the engine's care; ``verify`` measures the engine
    against it. Outputs are seen through a global hook, which leaves fused kernels on.
    """
    paths = {id(module): path for path, module in modules.items()}

    def after(module: nn.Module, _: Any, output: Any) -> Any:
        path = paths.get(id(module))
        return leave(path, output) if path is not None and leave is not None else None

    handles = [register_module_forward_hook(after)]
    for path, module in modules.items() if enter is not None else ():
        before = partial(_call_enter, enter, path)
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---------------------------------------------------------------------- helpers without state


def _call_enter(
    enter: Any, path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    return enter(path, args, kwargs)


def _add_crossings(
    gather: _Gather,
    found: list[Crossing],
    shape: torch.Size,
    dtype: torch.dtype,
    grad_inputs: tuple[Tensor | None, ...],
    _: Any,
) -> None:
    """Node hook: the sum of what leaves the module through this node."""
    total: Tensor | None = None
    for crossing in found:
        gradient = grad_inputs[crossing.slot]
        if gradient is None:
            continue
        part = gradient.detach()
        if crossing.geometry is not None:
            part = crossing.geometry.cut(part)
        # The engine reduces and casts to the argument's kind only after this hook.
        if part.shape != shape:
            part = part.sum_to_size(shape)
        if part.dtype != dtype:
            part = part.to(dtype)
        total = part if total is None else total + part
    if total is not None:
        gather.add(total)


def _forget(running: list[int], task: int) -> None:
    if task in running:
        running.remove(task)


def _why_no_grad(tensor: Tensor) -> str:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"{str(tensor.dtype).removeprefix('torch.')} carries no gradient"
    if tensor.is_inference():
        return "it was made in inference mode"
    if not torch.is_grad_enabled():
        return "grad mode was off"
    return "it does not require grad"


def _is_discarded_graph() -> bool:
    """Whether a non-reentrant checkpoint is computing again: only for its saved tensors."""
    if _current_task() == -1:
        return False
    hooks = _saved_tensor_hooks(True)
    return hooks is not None and "_recomputation_hook" in hooks[0].__qualname__


def _reduction(gradient: Tensor) -> tuple[str, ...]:
    """Whether a parameter's gradient is this rank's own or already that of all."""
    if type(gradient).__name__ == "DTensor":
        return ("reduced", "shard")
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return ("local",)
    return ()


def _owner(hook: _Arrival) -> Engine:
    bound = hook.func.__self__
    return bound.gather.engine if isinstance(bound, _ViewWatch) else bound


def _keep_dynamo_out() -> None:
    """Let ``torch.compile`` break its graph at our hooks and run them, and all below, as they are.

    Costs nothing in eager mode, which ``torch.compiler.disable`` does not.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    hooks: tuple[Any, ...] = (
        _Enter.__call__,
        _Leave.__call__,
        _StepAside.__call__,
        _mark_watched,
    )
    for hook in hooks:
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(hook.__code__, strategy)
        hook._torchdynamo_disable = True


_keep_dynamo_out()
