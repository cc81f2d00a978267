"""Reads the autograd graph of tensors into plain data, without changing it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.parameter import is_lazy

from torchtap.core import torch_messages, torch_nodes
from torchtap.core.module_paths import modules_of
from torchtap.core.no_grad import why_no_grad
from torchtap.core.storages import blocks_of
from torchtap.core.torch_messages import says
from torchtap.core.torch_private import checkpoint_inputs, node_hooks, without_torch_function
from torchtap.core.user_functions import code_of
from torchtap.graphs.node_walk import nodes_behind
from torchtap.graphs.nodes import (
    ACTIVATION,
    BUFFER,
    CAST,
    CHECKPOINT,
    COMPILED,
    FREED,
    FUNCTION,
    HIDDEN,
    IN_PLACE,
    INPUT,
    KEPT,
    NUMBER,
    OPERATION,
    OVERWRITTEN,
    PACKED,
    PARAMETER,
    RECOMPUTED,
    SHARED,
    VIEW,
    Edge,
    Hook,
    Node,
    Root,
    SavedTensor,
    TensorType,
)
from torchtap.hooks.graph_edges import edge_of, is_copy_slices, num_casts
from torchtap.hooks.saved_slots import SavedSlots, holds_any, unpacking_hook

ShowHooks = Callable[[Any], tuple[list[Any], list[Any]]]
_IN_CHECKPOINT = "inside an activation checkpoint"
_UNKNOWN = "CppFunction"
"""Class of the nodes of C++ that Python was not told of: those of TorchScript and extensions."""


def type_of(tensor: Tensor) -> TensorType:
    """Shape and dtype; a nested tensor has the number of its parts alone."""
    shape = (tensor.size(0),) if tensor.is_nested else tensor.shape
    return TensorType(tuple(map(_size, shape)), str(tensor.dtype).removeprefix("torch."))


def _size(size: Any) -> int | None:
    return size if type(size) is int else None  # That of a ragged dim stands for many.


class ModelParts:
    """The tensors of models by which nodes and saved tensors are recognised.

    Args:
        models: prefix of the paths -> model.

    Attributes:
        owners: id of a parameter -> the paths of all places where it stands.
        modules: path -> module.
    """

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        self.owners: dict[int, list[str]] = {}
        self.modules: dict[str, nn.Module] = {}
        self._params: dict[int, str] = {}
        self._buffers: dict[int, str] = {}
        for prefix, model in models.items():
            for path, module in modules_of(model)[0].items():
                self._add(f"{prefix}.{path}".strip("."), module)

    def _add(self, path: str, module: nn.Module) -> None:
        self.modules[path] = module
        for name, param in module._parameters.items():
            if param is not None:
                full = f"{path}.{name}" if path else name
                self.owners.setdefault(id(param), []).append(full)
                self.know(param, full)
        for name, buffer in module._buffers.items():
            if buffer is not None and not is_lazy(buffer):
                for number, _ in blocks_of(buffer):
                    self._buffers.setdefault(number, f"{path}.{name}" if path else name)

    def know(self, param: Tensor, path: str) -> None:
        """Recognise the memory of a parameter."""
        if not is_lazy(param):
            for number, _ in blocks_of(param):
                self._params.setdefault(number, path)

    def role(self, number: int) -> tuple[str, str]:
        """Return the role of memory, and the path of what it is; an activation has none."""
        if number in self._params:
            return PARAMETER, self._params[number]
        return (BUFFER, self._buffers[number]) if number in self._buffers else (ACTIVATION, "")


@dataclass
class AutogradParts:
    """The parts of a graph that :func:`read_autograd` found.

    Attributes:
        nodes: in the order in which a walk from the roots met them.
        edges: from each node to those behind it.
        roots: the tensors that were asked for.
        numbers: sequence number of each node as autograd has it.
        is_whole: whether these are all nodes behind the roots.
    """

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    is_whole: bool = True


def read_autograd(
    tensors: Sequence[tuple[str, Tensor]],
    parts: ModelParts,
    inputs: Iterable[tuple[str, Tensor]] = (),
) -> AutogradParts:
    """Walk the graph of tensors and list its nodes, edges and saved tensors.

    Args:
        tensors: names and tensors at which backward would start.
        parts: of the models that may have made it.
        inputs: names and tensors that a model was called with.
    """
    whole = AutogradParts()
    ids: dict[Any, int] = {}
    starts: list[Any] = []
    for name, tensor in tensors:
        root, start = _root(name, tensor, ids, starts)
        whole.roots.append(root)
        del start
    nodes, whole.is_whole = nodes_behind(starts)
    ids.update((node, place) for place, node in enumerate(nodes))
    whole.edges = list(_edges(nodes, ids))
    hooks = _tensor_hooks(ids)
    # Memory counts for the node that was made first, as it was saved first.
    with node_hooks() as show_hooks:
        reader = _Reader(parts, dict(inputs), show_hooks)
        reader.know_leaves(nodes)
        # By id: what a node compares equal to is not documented, and each has one wrapper while it
        # is held.
        read = {id(node): reader.node(node) for node in sorted(nodes, key=_number)}
    for place, node in enumerate(nodes):
        facts = read[id(node)]
        facts["hooks"] = (*hooks.get(place, ()), *facts["hooks"])
        whole.nodes.append(Node(id=place, **facts))
        whole.numbers.append(_number(node))
    types = [node.types for node in whole.nodes]
    whole.edges = [
        Edge(edge.source, edge.target, edge.slot, edge.output, _at(types[edge.target], edge.output))
        for edge in whole.edges
    ]
    return whole


def _root(name: str, tensor: Tensor, ids: dict[Any, int], starts: list[Any]) -> tuple[Root, Any]:
    if not tensor.requires_grad:
        return Root(name, -1, 0, type_of(tensor), why_no_grad(tensor)), None
    node, output = edge_of(tensor)
    if node not in ids:
        ids[node] = len(ids)
        starts.append(node)
    return Root(name, ids[node], output, type_of(tensor)), node


def _edges(nodes: Sequence[Any], ids: Mapping[Any, int]) -> Iterator[Edge]:
    """Yield the edges between nodes, each as often as it is there."""
    for place, node in enumerate(nodes):
        for slot, (following, output) in enumerate(node.next_functions):
            number = None if following is None else ids.get(following)
            if number is not None:
                yield Edge(place, number, slot, output)


def _number(node: Any) -> int:
    return int(node._sequence_nr())


def _at(types: Sequence[TensorType], place: int) -> TensorType | None:
    return types[place] if place < len(types) else None


class _Reader:
    """Reads nodes one by one, in the order in which they were made."""

    def __init__(
        self, parts: ModelParts, inputs: Mapping[str, Tensor], show_hooks: ShowHooks
    ) -> None:
        self._parts = parts
        self._show_hooks = show_hooks
        self._slots = SavedSlots()
        self._inputs = {
            number: name for name, one in inputs.items() for number, _ in blocks_of(one)
        }
        self._names = {id(one): name for name, one in inputs.items()}
        self._counted: set[int] = set()
        self._checkpoints: set[int] = set()

    def know_leaves(self, nodes: Iterable[Any]) -> None:
        """Recognise the memory of all leaves before any saved tensor is read."""
        for node in nodes:
            variable = _variable(node)
            if isinstance(variable, nn.Parameter):
                self._parts.know(variable, self._leaf_path(variable))
            elif variable is not None:
                for number, _ in blocks_of(variable):
                    self._inputs.setdefault(number, self._leaf_path(variable))

    def _leaf_path(self, variable: Tensor) -> str:
        owners = self._parts.owners.get(id(variable))
        return owners[0] if owners else self._names.get(id(variable), "")

    def node(self, node: Any) -> dict[str, Any]:
        """Return the fields of a node, without its number."""
        variable = _variable(node)
        if variable is not None:
            return self._leaf(node, variable)
        name, kind = node.name().rpartition("::")[2], _kind(node)
        saved = tuple(self._saved(node))
        note = _IN_CHECKPOINT if any(one.state == RECOMPUTED for one in saved) else ""
        is_unknown = kind == IN_PLACE or type(node).__name__ == _UNKNOWN
        note = HIDDEN if is_unknown else note
        return {
            "name": name,
            "kind": kind,
            "types": tuple(_types(node)),
            "sequence": _number(node),
            "saved": saved,
            "hooks": tuple(_node_hooks(*self._show_hooks(node))),
            "cut_slots": tuple(
                slot for slot, (following, _) in enumerate(node.next_functions) if following is None
            ),
            "line": _line_of(node),
            "note": note,
        }

    def _leaf(self, node: Any, variable: Tensor) -> dict[str, Any]:
        is_param = isinstance(variable, nn.Parameter) or id(variable) in self._parts.owners
        others = self._parts.owners.get(id(variable), [])[1:]
        return {
            "name": torch_nodes.ACCUMULATE,
            "kind": PARAMETER if is_param else INPUT,
            "path": self._leaf_path(variable),
            "types": (type_of(variable),),
            "hooks": (*_leaf_hooks(variable), *_node_hooks(*self._show_hooks(node))),
            "note": f"shared with {', '.join(others)}" if others else "",
        }

    def _saved(self, node: Any) -> Iterator[SavedTensor]:
        try:
            slots = self._slots.of(node)
        except RuntimeError as error:  # Of a custom function, whose slots go with what is freed.
            if not says(error, torch_messages.FREED):
                raise
            yield SavedTensor("tensors", None, 0, ACTIVATION, FREED)
            return
        troubles: dict[str, str] = {}
        for name, raw in slots:
            if raw is not None and raw.unpack_hook is not None:
                yield self._packed(name, raw)
                yield from self._checkpoint(raw)
                continue
            base = name.partition(".")[0]
            if base not in troubles:
                troubles[base] = _trouble(node, base, [one for _, one in slots])
            if torch_messages.FREED in troubles[base]:
                yield SavedTensor(name, None, 0, ACTIVATION, FREED)
            elif holds_any(raw):
                yield self._kept(name, raw.data, troubles[base])

    def _packed(self, name: str, raw: Any) -> SavedTensor:
        hook, is_checkpoint = unpacking_hook(raw)
        if is_checkpoint:
            return SavedTensor(name, None, 0, ACTIVATION, RECOMPUTED, note=hook)
        return SavedTensor(name, None, 0, ACTIVATION, PACKED, note=hook)

    def _checkpoint(self, raw: Any) -> Iterator[SavedTensor]:
        """Yield the inputs of a checkpoint, which no node keeps, once, at its first node."""
        if not unpacking_hook(raw)[1]:
            return
        checkpoint, kept = checkpoint_inputs(raw.unpack_hook)
        if checkpoint not in self._checkpoints:
            self._checkpoints.add(checkpoint)
            for place, one in enumerate(kept):
                if holds_any(one) and one.unpack_hook is None:
                    yield self._kept(f"checkpoint.input.{place}", one.data, "")

    def _kept(self, name: str, tensor: Tensor, trouble: str) -> SavedTensor:
        if _is_number(tensor):
            return SavedTensor(name, type_of(tensor), 0, NUMBER, KEPT)
        blocks = blocks_of(tensor)
        roles = [self._parts.role(number) for number, _ in blocks]
        role, note = next((one for one in roles if one[0] != ACTIVATION), (ACTIVATION, ""))
        nbytes = 0
        if role == ACTIVATION:
            # Memory is counted once, for the node that saved it first; what has no address counts
            # each time.
            fresh = [block for block in blocks if not block[0] or block[0] not in self._counted]
            self._counted.update(number for number, _ in fresh)
            nbytes = sum(size for _, size in fresh)
            if num_casts(tensor):
                role = CAST
            elif not fresh and nbytes == 0 and blocks:
                role = SHARED
            elif any(number in self._inputs for number, _ in blocks):
                role = INPUT
                note = next(self._inputs[number] for number, _ in blocks if number in self._inputs)
        state = OVERWRITTEN if trouble else KEPT
        # Inference tensors have no version counter, and asking raises.
        version = 0 if tensor.is_inference() else tensor._version
        return SavedTensor(
            name=name,
            type=type_of(tensor),
            nbytes=nbytes,
            role=role,
            state=state,
            version=version,
            note=trouble.partition(" Hint")[0] or note,
        )


def _is_number(tensor: Tensor) -> bool:
    """Return whether it is a number of Python, which PyTorch keeps as a tensor.

    It does not decide the dtype of a result, which a tensor without dimensions does.
    """
    narrow = _NARROW.get(tensor.dtype)
    if narrow is None or tensor.dim() or tensor.device.type != "cpu":
        return False
    # A number that was wrapped (x * 2) gives way to any tensor of its kind in type promotion; that
    # flag is not shown in Python, and this asks for it.
    return torch.result_type(tensor, torch.zeros((), dtype=narrow)) == narrow


_NARROW = {
    torch.float64: torch.float32,
    torch.int64: torch.int32,
    torch.complex128: torch.complex64,
}


def _variable(node: Any) -> Any:
    """Return the tensor for which a node accumulates gradients, ``None`` for any other node."""
    return node.variable if type(node).__name__ == torch_nodes.ACCUMULATE else None


def _kind(node: Any) -> str:
    name = node.name()
    if name == torch_nodes.COMPILED:
        return COMPILED
    if isinstance(node, BackwardCFunction):
        return CHECKPOINT if type(node).__name__ == torch_nodes.CHECKPOINT else FUNCTION
    if is_copy_slices(node):
        return IN_PLACE
    return VIEW if name in torch_nodes.VIEWS else OPERATION


def _types(node: Any) -> Iterator[TensorType]:
    for one in getattr(node, "_input_metadata", None) or ():
        try:
            shape = tuple(map(_size, one.shape))
        except RuntimeError:  # Of a nested tensor, which has no shape.
            shape = (None,)
        yield TensorType(shape, str(one.dtype).removeprefix("torch."))


def _line_of(node: Any) -> str:
    """Return the file and line where a custom function is defined."""
    cls = getattr(node, "_forward_cls", None)
    code = code_of(getattr(cls, "backward", None))
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _trouble(node: Any, base: str, raws: Iterable[Any]) -> str:
    """Return PyTorch's error when a slot is read as backward reads it, or ``""``; runs no hook."""
    if any(raw is not None and raw.unpack_hook is not None for raw in raws):
        return ""  # What reads one slot of a custom function reads them all.
    attribute = "saved_tensors" if base == "tensors" else f"_saved_{base}"
    try:
        if not hasattr(type(node), attribute):
            attribute = f"_saved_{base}"
        # Only this read compares versions, and says in autograd's words what was overwritten.
        getattr(node, attribute, None)
    except RuntimeError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------------- hooks


def _node_hooks(before: Sequence[Any], after: Sequence[Any]) -> Iterator[Hook]:
    yield from (Hook("pre", _name(hook)) for hook in before)
    yield from (Hook("post", _name(hook)) for hook in after)


def _leaf_hooks(variable: Tensor) -> Iterator[Hook]:
    for hook in (variable._backward_hooks or {}).values():
        yield Hook("tensor", _name(hook))
    for hook in (getattr(variable, "_post_accumulate_grad_hooks", None) or {}).values():
        yield Hook("post-accumulate", _name(hook))


def _tensor_hooks(ids: Mapping[Any, int]) -> dict[int, list[Hook]]:
    """Node -> hooks on its tensors, of the tensors that Python still knows.

    A node does not show the hooks of its tensors, but the collector knows all tensors, and these
    their nodes.
    """
    by_node: dict[int, list[Hook]] = {}
    with without_torch_function():
        # Hooks on a tensor stand at the tensor and not at its node, and nothing leads from the node
        # back.
        for tensor in gc.get_objects():
            # Not isinstance(), which asks a lazy object or a proxy for its __class__ and may start
            # its work.
            if not issubclass(type(tensor), Tensor):
                continue
            hooks = tensor._backward_hooks
            if (not hooks and not tensor.retains_grad) or tensor.is_leaf:
                continue
            place = ids.get(tensor.grad_fn)
            if place is not None:
                mine = by_node.setdefault(place, [])
                mine += [Hook("tensor", _name(hook)) for hook in (hooks or {}).values()]
                mine += [Hook("retain_grad", "torch.Tensor.retain_grad")] * tensor.retains_grad
    return by_node


def _name(hook: Any) -> str:
    hook = getattr(hook, "func", hook)  # Of functools.partial.
    home = getattr(hook, "__module__", None) or type(hook).__module__
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return f"{home}.{name}"
