"""Runs one held call again, forward and backward, and compares with what it gave."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import UserList, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.diagnosis.calls.standalone.surroundings import (
    Surroundings,
    as_it_was,
    without_autocast,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The results of one call, forward and backward.

    Attributes:
        output: what the module returned.
        buffers: name -> value after the call.
        arriving: name of a tensor in the output -> the gradient that arrived at it. Of tensors that
            the call put into an argument, as into a cache, too: ``argument 1.keys``.
        inputs: name of a tensor among the arguments -> its gradient through this call.
        parameters: name of a parameter -> its gradient by this call.
    """

    output: Any
    buffers: dict[str, Tensor]
    arriving: dict[str, Tensor]
    inputs: dict[str, Tensor]
    parameters: dict[str, Tensor]


def tensors_in(value: Any) -> dict[str, Tensor]:
    """Return every tensor in nested values by its place, each once, under its first name.

    Goes through tuples, lists, mappings, dataclasses and the attributes of objects, and not into
    modules, functions and classes.
    """
    tensors: dict[str, Tensor] = {}
    seen: dict[int, Any] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        name, one = waiting.pop()
        if one is None or isinstance(one, (bool, int, float, str, bytes)) or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, Tensor):
            tensors[name] = one
            continue
        parts = [(f"{name}.{key}" if name else key, part) for key, part in _parts(one)]
        waiting += reversed(parts)
    return tensors


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (nn.Module, type, torch.Generator)) or callable(value):
        return
    names: Any = ()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        names = value._fields
        yield from zip(names, value, strict=True)
    elif isinstance(value, Mapping):
        names = [str(key) for key in value.keys()]  # noqa: SIM118
        yield from ((str(key), one) for key, one in value.items())
    elif isinstance(value, (tuple, list, deque, UserList)):
        yield from ((str(place), one) for place, one in enumerate(value))
    own = {**getattr(value, "__dict__", {})}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in own and not name.startswith("__") and hasattr(value, name):
                own[name] = getattr(value, name)
    yield from ((name, part) for name, part in own.items() if name not in names)


def run_again(
    module: nn.Module,
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    around: Surroundings,
    arriving: Mapping[str, Tensor],
    *,
    is_random: bool = True,
) -> Result:
    """Call a module with what a call was given, and go backward from what arrived at its outputs.

    Args:
        module: in the state of the call. Its buffers, its modes and the ``.grad`` of its
            parameters are written, as by any training step.
        arguments: args and kwargs; they are copied, not written.
        around: settings and random states.
        arriving: name of an output -> gradient that arrives there.
        is_random: whether random states are those of the call.
    """
    params = {name: one for name, one in module.named_parameters() if one.requires_grad}
    with as_it_was(around, is_random=is_random) as modes:
        (args, kwargs), gradients = _entered(module, arguments)
        with modes():
            output = module(*args, **kwargs)
        buffers = {name: one.detach().clone() for name, one in module.named_buffers()}
        held = held_output(output)
        for param in params.values():
            param.grad = None
        _backward({**named_arguments(args, kwargs), **tensors_in(output)}, arriving)
    return Result(
        output=held,
        buffers=buffers,
        arriving=dict(arriving),
        inputs={name: one for name, one in gradients.items() if one is not None},
        parameters={name: one.grad for name, one in params.items() if one.grad is not None},
    )


def _entered(
    module: nn.Module, arguments: tuple[tuple[Any, ...], dict[str, Any]]
) -> tuple[Any, dict[str, Tensor]]:
    """Copies of the arguments, and a table that takes their gradients in a backward.

    A module may write into its argument, which autograd refuses for a leaf: a clone is handed on.
    An argument that is a parameter of the module stays that parameter.
    """
    memo: dict[int, Any] = {
        id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())
    }
    memo.update((id(one), one) for one in module.modules())
    given = tensors_in(arguments_by_name(*arguments))
    own = {name: one for name, one in given.items() if id(one) not in memo}
    gradients: dict[str, Tensor] = {}
    for name, tensor in zip(own, copies(list(own.values()), differentiable=True), strict=True):
        memo[id(own[name])] = tensor
        if tensor.requires_grad:
            _receive(tensor, name, gradients)
    return copy.deepcopy(arguments, memo), gradients


def _receive(tensor: Tensor, name: str, gradients: dict[str, Tensor]) -> None:
    """Take the gradient of a tensor as it is now.

    A write into a view takes it out of its base's history: then the part of the gradient of the
    base is that of the view.
    """

    def of_base(whole: Tensor) -> None:
        part = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        gradients.setdefault(name, part)

    base = tensor._base
    if base is not None and base.grad_fn is not None:
        base.register_hook(of_base)  # type: ignore[no-untyped-call]
    tensor.register_hook(functools.partial(gradients.__setitem__, name))  # type: ignore[no-untyped-call]


def arguments_by_name(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positions as numbers, and keywords as names."""
    return {**{str(place): one for place, one in enumerate(args)}, **kwargs}


def named_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors among the arguments, under names that those of an output never have."""
    by_name = tensors_in(arguments_by_name(args, kwargs))
    return {f"argument {name}": one for name, one in by_name.items()}


def copies(tensors: Sequence[Tensor], *, differentiable: bool = False) -> list[Tensor]:
    """Copies with the same strides, which share memory where the originals do.

    Args:
        tensors: each once.
        differentiable: copies of those that require grad are no leaves, so that a module may write
            into them; else they are leaves that require grad.
    """
    groups: dict[Any, list[int]] = {}
    for place, one in enumerate(tensors):
        groups.setdefault(_memory(one) or -1 - place, []).append(place)
    made: dict[int, Tensor] = {}
    with torch.enable_grad():
        for places in groups.values():
            group = [tensors[place] for place in places]
            is_alone = len(group) == 1 and (not _memory(group[0]) or _is_dense(group[0]))
            make = _single if is_alone else _in_one_memory
            made.update(zip(places, make(group, differentiable), strict=True))
    return [made[place] for place in range(len(tensors))]


def _single(group: list[Tensor], differentiable: bool) -> list[Tensor]:
    leaf = group[0].detach().clone()
    if group[0].requires_grad:
        leaf.requires_grad_()
    return [leaf.clone() if differentiable and leaf.requires_grad else leaf]


def _in_one_memory(group: list[Tensor], differentiable: bool) -> list[Tensor]:
    """Return the part of the memory in which they all are, copied once, and views of that."""
    first = min(one.storage_offset() for one in group)
    last = max(one.storage_offset() + _extent(one) for one in group)
    flat = group[0].detach().as_strided((last - first,), (1,), first).clone()
    if differentiable and any(one.requires_grad for one in group):
        flat = flat.requires_grad_().clone()
    views = []
    for one in group:
        view = flat.as_strided(one.shape, one.stride(), one.storage_offset() - first)
        if not differentiable or not one.requires_grad:
            view = view.detach().requires_grad_(one.requires_grad)
        views.append(view)
    return views


def _extent(tensor: Tensor) -> int:
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((dim - 1) * stride for dim, stride in steps) if tensor.numel() else 0


def _is_dense(tensor: Tensor) -> bool:
    return tensor.numel() == _extent(tensor)


def _memory(tensor: Tensor) -> Any:
    """Return the layout that tensors in one memory share; nothing for those without views."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    if not is_plain or tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return None
    if tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def held_output(output: Any) -> Any:
    """Return the output by value, before a backward or its hooks may write into it."""
    memo: dict[int, Any] = {}
    tensors = list(tensors_in(output).values())
    memo.update((id(one), own) for one, own in zip(tensors, copies(tensors), strict=True))
    return copy.deepcopy(output, memo)


def _backward(outputs: Mapping[str, Tensor], arriving: Mapping[str, Tensor]) -> None:
    """Go backward with the recorded gradient *at* each output.

    Of an output that another one was computed from, the recorded gradient is the whole: a hook
    puts it in the place of the sum of itself and of what comes through the other.
    """
    fed = [(outputs[name], one) for name, one in arriving.items() if name in outputs]
    fed = [(tensor, gradient) for tensor, gradient in fed if tensor.grad_fn is not None]
    for tensor, gradient in fed:
        tensor.register_hook(lambda _, whole=gradient: whole)  # type: ignore[no-untyped-call]
    if fed:
        with without_autocast():
            torch.autograd.backward([one for one, _ in fed], [one.clone() for _, one in fed])


def differences(recorded: Result, again: Result) -> dict[str, str]:
    """Name of what was compared -> how it differs, to the bit; an empty text where it is equal."""
    differing: dict[str, str] = {}
    one, two = tensors_in(recorded.output), tensors_in(again.output)
    tables = [("output", one, two), ("buffer", recorded.buffers, again.buffers)]
    tables += [("gradient of input", recorded.inputs, again.inputs)]
    tables += [("gradient of parameter", recorded.parameters, again.parameters)]
    for kind, before, now in tables:
        for name in before:
            label = f"{kind} {name}" if name else kind
            differing[label] = _difference(before[name], now.get(name))
    for name in two:
        if name not in one:
            differing[f"output {name}"] = "it was not there when the call was recorded"
    return differing


def _difference(one: Tensor, two: Tensor | None) -> str:
    if two is None:
        return "it is not there"
    if one.dtype != two.dtype or one.layout != two.layout or _shape(one) != _shape(two):
        return f"{two.dtype}{_shape(two)} in place of {one.dtype}{_shape(one)}"
    total, worst = 0, 0.0
    for left, right in zip(dense_parts(one), dense_parts(two), strict=True):
        if left.shape != right.shape:
            return "it has other places"
        wrong = _unequal(left, right)
        total += int(wrong.sum())
        if wrong.any():
            apart = (left.to(torch.complex128) - right.to(torch.complex128)).abs()[wrong]
            worst = max(worst, float(apart.nan_to_num(nan=float("inf")).max()))
    return f"{total} of {one.numel()} elements differ, by at most {worst:.3g}" if total else ""


def _shape(tensor: Tensor) -> list[Any]:
    if tensor.is_nested:
        return [list(part.shape) for part in tensor.detach().unbind()]
    return list(tensor.shape)


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """Return the plain strided tensors in which the numbers are."""
    own = tensor.detach()
    if own.is_meta:
        return []
    if own.is_nested:
        return [part for one in own.unbind() for part in dense_parts(one)]
    if own.layout is torch.sparse_coo:
        own = own.coalesce()
        return [own.indices(), own.values()]
    if own.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [own.crow_indices(), own.col_indices(), own.values()]
    if own.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [own.ccol_indices(), own.row_indices(), own.values()]
    if own.layout is not torch.strided:
        return [own.to_dense()]
    if own.is_quantized:
        return [own.int_repr(), own.dequantize()]
    return [own.resolve_conj().resolve_neg()]


def _unequal(one: Tensor, two: Tensor) -> Tensor:
    """Return the elements that differ in a bit; NaN is equal to NaN."""
    if one.is_complex():
        pair = (torch.view_as_real(each) for each in (one, two))
        return _unequal(*pair).any(-1)
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    wrong = one.contiguous().view(words) != two.contiguous().view(words)
    if one.is_floating_point() and one.element_size() > 1:
        wrong &= ~(one.isnan() & two.isnan())
    return wrong
