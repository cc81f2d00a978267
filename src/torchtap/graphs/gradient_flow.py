"""How gradients flow between the operations of one forward, and where they are cut off."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.core.storages import block_of
from torchtap.core.torch_nodes import has_no_derivative
from torchtap.graphs.gradient_cuts import INSIDE, NO_DERIVATIVE, UNMARKED
from torchtap.graphs.nodes import Operation

VALUES = frozenset({"item", "tolist", "numpy", "array", "float", "int", "index"})
"""Functions that take values out of PyTorch."""
_DETACH = frozenset({"detach", "detach_", "data"})
_NO_VALUES = frozenset(
    {
        *("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"),
        *("randint_like", "new_zeros", "new_ones", "new_empty", "new_full", "grad"),
    }
)
"""Functions whose results do not depend on the values that they are given."""
GRADIENTS = "autograd.grad"
_ALIAS = (
    "shares the memory of that result, and not its graph, as nn.Parameter(...), set_ and .data do"
)
MOST_HIDDEN = 4096
"""Nodes that are looked at for where the result of a custom function came from."""


Known = TypeVar("Known")


class Taken(NamedTuple):
    """A tensor that an operation was given, as it was before it.

    Attributes:
        tensor: it.
        needs_grad: whether it required grad.
        source: number of the operation, or name of the parameter, that it came from.
    """

    tensor: Tensor
    needs_grad: bool
    source: int | str


class Made(Generic[Known]):
    """Something that is known of tensors, such as what made them, of those still alive."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[weakref.ref[Tensor], Known]] = {}

    def __setitem__(self, tensor: Tensor, item: Known) -> None:
        self._by_id[id(tensor)] = (weakref.ref(tensor), item)

    def get(self, tensor: Tensor) -> Known | None:
        """Return what is known of a tensor, ``None`` for nothing."""
        known = self._by_id.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None


class GradientFlow:
    """Follows, from operation to operation, which tensors have gradients flow back to what.

    Args:
        modules: path -> module, each once.

    Attributes:
        operations: for :meth:`Graph.why_no_grad`.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.operations: list[Operation] = []
        self._flows = Made[int]()
        self._cut_off = Made[Operation]()
        self._noted: set[Operation] = set()
        self._seen = Made[bool]()
        self._memory: dict[int, tuple[StorageWeakRef, int]] = {}
        self._params = {
            id(param): f"{path}.{name}".lstrip(".")
            for path, module in modules.items()
            for name, param in module._parameters.items()
            if param is not None
        }

    def params_among(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the names of the parameters that are among tensors."""
        return [self._params[id(tensor)] for tensor in tensors if id(tensor) in self._params]

    def note(
        self, name: str, inputs: Sequence[Taken], given: Sequence[Tensor], path: str, line: str
    ) -> str:
        """Write down an operation with inputs that require grad; returns why it cuts them off."""
        for one in given:
            self._seen[one] = True
        if name == "new_tensor":
            inputs = inputs[1:]  # Of the first it has the dtype alone.
        sources = tuple(dict.fromkeys(one.source for one in inputs if one.needs_grad))
        if not sources or name in _NO_VALUES or (not given and name not in VALUES):
            return ""
        # What is written without grad mode keeps the graph that it had, without the write.
        has_grad = torch.is_grad_enabled() and any(one.requires_grad for one in given)
        reason = _why_raises(given) if has_grad else _why_cut(name, given)
        number = len(self.operations)
        self.operations.append(Operation(name, sources, has_grad, reason, path, line))
        for one in given:
            if has_grad or not one.requires_grad:
                self._flows[one] = number
            if has_grad and not one.requires_grad:  # The indices of topk, beside its values.
                why = _why_cut(name, [one])
                self._cut_off[one] = Operation(name, sources, False, why, path, line)
        self._note_memory(number, [one.tensor for one in inputs], given, has_grad=has_grad)
        return reason

    def _note_memory(
        self, number: int, inputs: Sequence[Tensor], given: Sequence[Tensor], *, has_grad: bool
    ) -> None:
        """Note which memory an operation has filled, of results that lead a gradient back."""
        before = {block_of(one)[0] for one in inputs}
        for one in given:
            block, _ = block_of(one)
            is_written = any(one is each for each in inputs)
            if not has_grad:
                self._memory.pop(block, None)  # It was detached, and that is told.
            elif block and (is_written or block not in before):
                storage = StorageWeakRef(one.untyped_storage())  # type: ignore[no-untyped-call]
                self._memory[block] = storage, number

    def source_of(self, tensor: Tensor, path: str) -> int | str:
        """Return the operation, by number, or the parameter, by name, that a tensor came from.

        Args:
            tensor: that requires grad.
            path: of the module that is running.
        """
        if id(tensor) in self._params:
            return self._params[id(tensor)]
        flow = self._flows.get(tensor)
        if flow is not None:
            return flow
        if tensor.grad_fn is None:
            return ""  # An input, or a tensor that was made outside of the call.
        number = len(self.operations)  # A custom function: its sources are those of its node.
        sources = tuple(self._sources_of(tensor.grad_fn))
        self.operations.append(Operation(tensor.grad_fn.name(), sources, True, "", path, ""))
        self._flows[tensor] = number
        return number

    def _sources_of(self, node: Any) -> Iterator[int | str]:
        todo, seen = [node], {node}
        while todo and len(seen) < MOST_HIDDEN:
            one = todo.pop()
            variable = getattr(one, "variable", None)
            if variable is not None and id(variable) in self._params:
                yield self._params[id(variable)]
            for following, _ in one.next_functions:
                if following is not None and following not in seen:
                    seen.add(following)
                    todo.append(following)

    def note_inside(
        self, name: str, inputs: Sequence[Taken], given: Sequence[Tensor], path: str, line: str
    ) -> None:
        """Note an operation in the forward of a custom function, which shows nothing of it."""
        tensors = [one.tensor for one in inputs]
        params = tuple(self.params_among(tensors))
        if params:
            self.operations.append(Operation(name, params, False, INSIDE, path, line))
        sources = [one.source for one in inputs if one.needs_grad]
        for before in map(self._cut_off.get, tensors):
            sources += () if before is None else before.sources
        if sources and name not in _NO_VALUES:
            operation = Operation(name, tuple(dict.fromkeys(sources)), False, UNMARKED, path, line)
            for one in given:
                self._cut_off[one] = operation

    def note_unmarked(self, tensor: Tensor, path: str, line: str) -> None:
        """Note that a used tensor was cut off, if something made it without a graph.

        A custom function, an operation whose other results have one, or what took the memory of a
        result that has one.
        """
        if tensor.grad_fn is not None:
            return
        operation = self._cut_off.get(tensor) or self._alias(tensor, path, line)
        if operation is None or (tensor.requires_grad and operation.reason == UNMARKED):
            return
        if operation not in self._noted:
            self._noted.add(operation)
            self.operations.append(operation)

    def _alias(self, tensor: Tensor, path: str, line: str) -> Operation | None:
        if id(tensor) in self._params or self._seen.get(tensor):
            return None
        storage, number = self._memory.get(block_of(tensor)[0], (None, 0))
        if storage is None or storage.expired():  # type: ignore[no-untyped-call]
            return None
        name = f"a {type(tensor).__name__}"
        self._seen[tensor] = True
        return Operation(name, (number,), False, _ALIAS, path, line)


def _why_raises(given: Sequence[Tensor]) -> str:
    """Return why a backward of an operation raises; empty where it does not."""
    nodes = [one.grad_fn.name().rpartition("::")[2] for one in given if one.grad_fn is not None]
    return NO_DERIVATIVE if any(map(has_no_derivative, nodes)) else ""


def _why_cut(name: str, given: Sequence[Tensor]) -> str:
    if name in VALUES:
        return "takes the values out of PyTorch"
    if name == GRADIENTS:
        return "returns gradients without a graph, unless create_graph=True is given"
    if name in _DETACH:
        return "detaches its result from the graph"
    if torch.is_inference_mode_enabled():
        return "ran in inference mode"
    if not torch.is_grad_enabled():
        return "ran under no_grad"
    kinds = {str(one.dtype).removeprefix("torch.") for one in given}
    if not any(one.is_floating_point() or one.is_complex() for one in given):
        return f"returns {', '.join(sorted(kinds))}, which carries no gradient"
    return "is not differentiable"
