"""Follows one forward: which module called which, what ran in it, and whose results it took."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from torchtap.core.torch_frames import is_in_function
from torchtap.core.torch_private import current_task, sequence_number
from torchtap.core.tree import argument_leaves, leaves
from torchtap.graphs.autograd import type_of
from torchtap.graphs.gradient_flow import (
    GRADIENTS,
    MOST_HIDDEN,
    VALUES,
    GradientFlow,
    Made,
    Taken,
)
from torchtap.graphs.nodes import (
    AND,
    FUNCTION,
    INPUT,
    MODULE,
    OPERATION,
    OUTPUT,
    OUTSIDE,
    RAISED,
    Call,
    TensorType,
)
from torchtap.hooks.call_follower import CallFollower, CallStack, FollowedCall
from torchtap.hooks.module_hook import TapHook, run_as_it_is
from torchtap.hooks.tap import Tap

_LIBRARIES = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])


@dataclass(slots=True)
class Item:
    """A node of an execution, while it is being followed.

    Attributes:
        name: of the operation, or class of the module.
        kind: as of :class:`~torchtap.graphs.nodes.Node`.
        call: in which it ran; of a module its own.
        path: of the module, or name of the input.
        types: of its results.
        line: of the program.
        note: what else is to be known.
        cut_slots: inputs that require grad, to which no gradient flows.
    """

    name: str
    kind: str
    call: int
    path: str
    types: tuple[TensorType, ...] = ()
    line: str = ""
    note: str = ""
    cut_slots: tuple[int, ...] = ()


class _Open(FollowedCall):
    """A call that has been entered and not yet left.

    Attributes:
        id: of the call.
        taken: item and type of each tensor that it was given.
        items: that ran in it.
        has_children: whether other modules ran in it.
    """

    __slots__ = ("has_children", "id", "items", "taken")

    def __init__(self, tap: Tap, id: int, taken: list[tuple[int, TensorType]]) -> None:
        super().__init__(tap, None)
        self.id = id
        self.taken = taken
        self.items: list[int] = []
        self.has_children = False


class _Enter(TapHook["Trace"]):
    __slots__ = ()

    with_kwargs = True

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        self.owner.enter(self.tap, module, args, kwargs or {})


class _Leave(TapHook["Trace"]):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        self.owner.leave(self.tap, module, output)


class Trace:
    """The record of one forward: what ran, and how it is connected.

    Args:
        modules: path -> module, each once.

    Attributes:
        calls: calls of modules, in the order in which they were entered.
        items: inputs, operations and modules, in the order in which they ran.
        edges: (item, item, output, input, type).
        flow: of gradients between the operations.
        events: (sequence number, call) at each moment when a module was entered or left.
        merged: item -> the module into which it was merged.
        error: the exception that ended the forward; empty if none did.
        is_busy: a hook of this trace runs.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.calls: list[Call] = []
        self.items: list[Item] = []
        self.edges: list[tuple[int, int, int, int, TensorType | None]] = []
        self.flow = GradientFlow(modules)
        self.events: list[tuple[int, int]] = []
        self.merged: dict[int, int] = {}
        self.error = ""
        self.is_busy = False
        self._modules = modules
        self._made = Made[int]()
        self._nodes: dict[Any, int] = {}
        # One stack for all threads: a forward that runs parts of itself in others waits for them.
        self._follower: CallFollower[_Open] = CallFollower(CallStack())
        self._stack = self._follower.running.stack
        self._times: Counter[str] = Counter()
        self._raised: set[int] = set()

    @contextmanager
    def following(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Follow what runs inside the block."""
        names = _argument_names(self._modules[""])
        given: dict[int, tuple[Tensor, list[str]]] = {}
        for name, tensor in argument_leaves(args, kwargs):
            name = _named(name, names, is_only=len(args) == 1 and not kwargs)
            given.setdefault(id(tensor), (tensor, []))[1].append(name)
        for tensor, several in given.values():  # Of one tensor, nothing tells which was used.
            item = Item("input", INPUT, OUTSIDE, AND.join(several), (type_of(tensor),))
            self._new(item, [tensor])
        try:
            for path, module in self._modules.items():
                tap = Tap(path, {})
                self._follower.put_on(
                    module, pre_hook=_Enter(self, tap), post_hook=_Leave(self, tap)
                )
            self._follow_scripted()
            with _Functions(self):
                yield
        finally:
            self._follower.release()

    def _follow_scripted(self) -> None:
        """Scripted modules take no hooks of their own, but PyTorch calls the global ones."""
        paths = outermost_scripted(self._modules)
        if not paths:
            return
        scripted = {id(self._modules[path]): Tap(path, {}) for path in paths}

        def enter(module: nn.Module, args: tuple[Any, ...]) -> None:
            if id(module) in scripted:
                self.enter(scripted[id(module)], module, args, {})

        def leave(module: nn.Module, _: Any, output: Any) -> None:
            if id(module) in scripted:
                self.leave(scripted[id(module)], module, output)

        self._follower.hold([register_module_forward_pre_hook(enter)])
        self._follower.hold([register_module_forward_hook(leave)])

    def finish(self, output: Any) -> list[tuple[str, Tensor]]:
        """End the trace of a forward; returns the tensors that it returned, by name."""
        # A forward that raised leaves its modules on the stack: no hook heard of their end.
        self._raised.update(one.id for one in self._stack)
        if self._stack:
            self._end(self._stack[-1])
        self._stack.clear()
        self.calls = [
            replace(call, has_raised=True) if call.id in self._raised else call
            for call in self.calls
        ]
        outputs = leaves(output)
        for name, tensor in outputs:
            self.flow.note_unmarked(tensor, "", "")
            source = self._source(tensor)
            if source is not None:
                target = self._new(Item("output", OUTPUT, OUTSIDE, name, (type_of(tensor),)), [])
                self.edges.append((source, target, 0, 0, type_of(tensor)))
        return outputs

    def release(self) -> None:
        """Let go of the graph, once nothing else holds it: the nodes that were made last first.

        PyTorch frees a node and those behind it one in another, which overflows the stack where
        Python has seen the nodes of a long chain.
        """
        while self._nodes:
            self._nodes.popitem()

    def _end(self, last: _Open) -> None:
        """Note the call in which the forward raised."""
        name, path = self.error.partition(":")[0], self.calls[last.id].path
        before = last.taken or [(one, TensorType((), "")) for one in last.items[-1:]]
        item = self._new(Item(name, RAISED, last.id, path, note=self.error), [])
        for place, (source, kind) in enumerate(before):
            self.edges.append((source, item, 0, place, kind if kind.dtype else None))

    # ------------------------------------------------------------------ modules

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note a call of a module that is entered."""
        if current_task() != -1:
            return  # A checkpoint computes again, inside a backward of the loss.
        with self._apart():
            self._enter(tap, module, args, kwargs)

    def _enter(
        self, tap: Tap, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        path = tap.path
        tensors = [tensor for _, tensor in argument_leaves(args, kwargs)]
        taken = [(self._source(one), type_of(one)) for one in tensors]
        above = self._stack[-1] if self._stack else None
        if above is not None:
            above.has_children = True
        call = Call(
            id=len(self.calls),
            path=path,
            type=_type_of_module(module),
            number=self._times[path],
            above=OUTSIDE if above is None else above.id,
            inputs=tuple(map(type_of, tensors)),
        )
        self._times[path] += 1
        self.calls.append(call)
        known = [(source, kind) for source, kind in taken if source is not None]
        self._stack.append(_Open(tap, call.id, known))
        self.events.append((sequence_number(), call.id))

    def leave(self, tap: Tap, module: nn.Module, output: Any) -> None:
        """Note that a module is left; calls inside of it that were not left have raised."""
        left = self._follower.running.leave(tap)
        if left:
            self._raised.update(one.id for one in left[:-1])
            with self._apart():
                self._leave(left[-1], module, output)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Keep what is asked of tensors inside out of the forward's trace."""
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = False

    def _leave(self, done: _Open, module: nn.Module, output: Any) -> None:
        tensors = [tensor for _, tensor in leaves(output)]
        types = tuple(map(type_of, tensors))
        self.calls[done.id] = call = replace(self.calls[done.id], outputs=types)
        # A module of the program's own with several operations is shown by these.
        if not done.has_children and (_is_of_torch(module) or len(done.items) < 2):
            self._merge(done, call, tensors)
        self.events.append((sequence_number(), self._stack[-1].id if self._stack else OUTSIDE))

    def _merge(self, done: _Open, call: Call, tensors: Sequence[Tensor]) -> None:
        """Make one node of a module without modules in it, whatever operations ran in it."""
        item = self._new(Item(call.type, MODULE, call.id, call.path, call.outputs), tensors)
        cut = [self.items[one] for one in done.items if self.items[one].cut_slots]
        if cut and not any(tensor.requires_grad for tensor in tensors):
            self.items[item].note, self.items[item].cut_slots = cut[0].note, cut[0].cut_slots
        self.merged.update(dict.fromkeys(done.items, item))
        for place, (source, kind) in enumerate(done.taken):
            self.edges.append((source, item, 0, place, kind))

    # ------------------------------------------------------------------ operations

    @property
    def _path(self) -> str:
        """Return the path of the module that is running; empty outside of all."""
        return self.calls[self._stack[-1].id].path if self._stack else ""

    def taken(self, tensors: Sequence[Tensor]) -> list[Taken]:
        """Return an operation's inputs as they are before it runs and writes into some of them."""
        flow, path = self.flow, self._path
        return [
            Taken(
                tensor,
                tensor.requires_grad,
                flow.source_of(tensor, path) if tensor.requires_grad else "",
            )
            for tensor in tensors
        ]

    def ran(self, name: str, inputs: Sequence[Taken], given: Sequence[Tensor]) -> None:
        """An operation ran.

        Args:
            name: of its function.
            inputs: the tensors it was given.
            given: its results, and what it overwrote.
        """
        path, line = self._path, _line()
        taken = [one.tensor for one in inputs]
        if not torch.is_grad_enabled() and is_in_function():
            self.flow.note_inside(name, inputs, given, path, line)
            return
        for tensor in taken:
            self.flow.note_unmarked(tensor, path, line)
        reason = self.flow.note(name, inputs, given, path, line)
        sources = [(self._source(one), type_of(one)) for one in taken]
        known = [(source, kind) for source, kind in sources if source is not None]
        if not given or not known:
            return
        params = self.flow.params_among(taken)
        note = reason or (f"with {', '.join(params)}" if params else "")
        cut = [place for place, one in enumerate(inputs) if one.needs_grad] if reason else []
        call = self._stack[-1].id if self._stack else OUTSIDE
        types = tuple(map(type_of, given))
        item = self._new(
            Item(
                name=name,
                kind=OPERATION,
                call=call,
                path=path,
                types=types,
                line=line,
                note=note,
                cut_slots=tuple(cut),
            ),
            given,
        )
        for place, (source, kind) in enumerate(known):
            self.edges.append((source, item, 0, place, kind))

    def _new(self, item: Item, tensors: Iterable[Tensor]) -> int:
        number = len(self.items)
        self.items.append(item)
        if self._stack:
            self._stack[-1].items.append(number)
        for tensor in tensors:
            self._made[tensor] = number
            base = tensor._base if tensor._is_view() else None
            # A write into a view changes its base too, which is then made by this operation.
            if item.name.endswith("_") and base is not None:
                self._made[base] = number
            if tensor.grad_fn is not None:
                self._nodes[tensor.grad_fn] = number
        return number

    def _source(self, tensor: Tensor) -> int | None:
        """Return the item that made a tensor; a new one where no function was seen to."""
        source, node = self._made.get(tensor), tensor.grad_fn
        is_custom = isinstance(node, BackwardCFunction)
        # Of a custom function the mode sees what ran inside it, without gradients: the node is what
        # counts.
        if node is None or (source is not None and not is_custom):
            return source
        if node in self._nodes:
            return self._nodes[node]
        name = node.name().rpartition("::")[2].removesuffix("0").removesuffix("Backward")
        kind = FUNCTION if is_custom else OPERATION
        call = self._stack[-1].id if self._stack else OUTSIDE
        path = self.calls[call].path if call != OUTSIDE else ""
        # Modules that ran inside, as those of a reentrant checkpoint, lead to it.
        before = sorted(self._behind(node)) if source is None else [source]
        item = self._new(Item(name, kind, call, path, (type_of(tensor),)), [tensor])
        for place, one in enumerate(before):
            types = self.items[one].types
            self.edges.append((one, item, 0, place, types[0] if types else type_of(tensor)))
        return item

    def _behind(self, node: Any) -> set[int]:
        behind: set[int] = set()
        todo, seen = [node], {node}
        # A graph that was made before this forward may be of any size.
        while todo and len(seen) < MOST_HIDDEN:
            for following, _ in todo.pop().next_functions:
                if following is None or following in seen:
                    continue
                seen.add(following)
                if following in self._nodes:
                    behind.add(self._nodes[following])
                else:
                    todo.append(following)
        return behind


class _Functions(TorchFunctionMode):
    """Hears of every function of PyTorch that is called with tensors."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # What a backward inside of the forward runs is no part of the forward's graph.
        if current_task() != -1 or self._trace.is_busy:
            return func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        # Before it runs: an operation in place changes requires_grad and grad_fn of its own
        # argument.
        taken = self._trace.taken(tensors)
        result = func(*args, **(kwargs or {}))
        if taken:
            name = _name_of(func)
            given = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
            # It returns nothing, and has written into its first argument.
            if name == "setitem":
                given = [args[0]]
            if given or name in VALUES:
                self._trace.ran(name, taken, given)
        return result


def _argument_names(module: nn.Module) -> list[str]:
    """Return names of the positional arguments of a forward; none where they cannot be known."""
    try:
        given = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in given if one.kind in kinds]


def _named(leaf: str, names: Sequence[str], *, is_only: bool) -> str:
    """Return the name of a tensor among the arguments, by the name of its argument."""
    if is_only:
        return ".".join(part for part in (names[0] if names else "", leaf) if part)
    first, _, rest = leaf.partition(".")
    if first.isdecimal() and int(first) < len(names):
        first = names[int(first)]
    return f"{first}.{rest}" if rest else first


def _name_of(func: Any) -> str:
    if func is torch.autograd.grad:  # Another than the property of a tensor.
        return GRADIENTS
    name = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__"):  # A property, as Tensor.T.
        name = getattr(getattr(func, "__self__", None), "__name__", name)
    return str(name).removeprefix("__").removesuffix("__")


def _line() -> str:
    """Return the line where the program called what runs, past PyTorch and this package."""
    frame = sys._getframe(2)
    # Out of PyTorch and torchtap: the line that called, whose frame has no module on it.
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back  # type: ignore[assignment]
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def outermost_scripted(modules: Mapping[str, nn.Module]) -> list[str]:
    """Return paths of the scripted modules that stand in no other one."""
    paths: list[str] = []
    for path, module in modules.items():
        inside = any(not one or path.startswith(f"{one}.") for one in paths)
        if isinstance(module, torch.jit.ScriptModule) and not inside:
            paths.append(path)
    return paths


def _type_of_module(module: nn.Module) -> str:
    """Return the class name of a module; a scripted one has that of its original."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    return type(module).__name__


def _is_of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


run_as_it_is(_Enter.__call__, _Leave.__call__)
