"""A module and what it is called with, by value: what is one object in the original stays one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.distributed import is_distributed
from torchtap.core.errors import InputError
from torchtap.core.inference_mode import outside_inference_mode
from torchtap.core.tensors import kind_of, obstacle
from torchtap.diagnosis.calls.standalone.run_again import arguments_by_name, copies, tensors_in

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Tables of PyTorch's, whose values are no attributes of the user's."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Copies of a module and of its arguments.

    Attributes:
        module: ``None`` where it was not asked for; then arguments that are parameters of the
            module are these parameters.
        arguments: args and kwargs.
    """

    module: nn.Module | None
    arguments: Arguments


def copied(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, with_module: bool
) -> Copied:
    """Copy a module and its arguments; generators of random numbers keep their states.

    Hooks of torchtap are left out, those of others are copied along.

    Raises:
        InputError: something cannot be copied: a generator, an open file, a lock.
    """
    given = tensors_in(arguments_by_name(args, kwargs))
    for name, tensor in given.items():
        _refuse(f"argument {name}", tensor)
    own = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    memo: dict[int, Any] = {}
    if not with_module:
        memo.update(own)
        # An entry that maps to itself is not copied: arguments that refer to the module keep it.
        memo.update((id(one), one) for one in module.modules())
    with outside_inference_mode():
        flowing = [one for one in given.values() if id(one) not in own]
        if with_module:
            flowing += [
                attribute for attribute in _computed_attributes(module) if id(attribute) not in own
            ]
        flowing = list({id(one): one for one in flowing}.values())
        # Copied beforehand and together: deepcopy refuses tensors with a graph, and would part
        # views from their base.
        memo.update((id(one), two) for one, two in zip(flowing, copies(flowing), strict=True))
        try:
            twin = copy.deepcopy(module, memo) if with_module else None
            arguments = copy.deepcopy((args, kwargs), memo)
        except (TypeError, RuntimeError, ValueError, AttributeError) as error:
            place = _place_of_refused(module, args, kwargs)
            raise InputError(
                f"{place or 'A part of the call'} cannot be held: {error}. Hand in what it holds "
                f"as tensors, lists or dicts, or record a module further inside."
            ) from error
        if with_module:  # To be run again, and backward: that would go on into the graph.
            _refuse_own_copies(arguments, memo)
    return Copied(twin, arguments)


def _refuse_own_copies(arguments: Arguments, memo: dict[int, Any]) -> None:
    """A class may copy its tensors itself (``TensorDict``), as part of the graph they come from."""
    ours = {id(one) for one in memo.values()}
    for name, tensor in tensors_in(arguments_by_name(*arguments)).items():
        if id(tensor) not in ours and not tensor.is_leaf:
            raise InputError(
                f"Argument {name} cannot be held: a class that holds it copies its tensors itself, "
                f"with the graph that they come from. Hand in what it holds as tensors, lists or "
                f"dicts, or record a module further inside."
            )


def copied_module(module: nn.Module) -> nn.Module:
    """Copy a module alone, as :func:`copied` does."""
    made = copied(module, (), {}, with_module=True).module
    assert made is not None
    return made


def _refuse(what: str, tensor: Tensor) -> None:
    why = "a DTensor, of which this rank holds a part" if is_distributed(tensor) else None
    why = why or obstacle(tensor)
    if why is not None:
        raise InputError(
            f"{what} is {why}, and cannot be held. Record the call in one process, with the whole "
            f"of its tensors."
        )


def _computed_attributes(module: nn.Module) -> Iterator[Tensor]:
    """Tensors with a graph that modules keep as attributes, as ``weight_norm`` does."""
    for one in module.modules():
        for name, value in vars(one).items():
            if name not in _OF_EVERY_MODULE and not isinstance(value, str | int | float):
                yield from (each for each in tensors_in(value).values() if not each.is_leaf)


def _place_of_refused(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """Name the first argument or attribute that cannot be copied."""
    for name, value in arguments_by_name(args, kwargs).items():
        refused = _refused_part(value)
        if refused is not None:
            return f"Argument {name}{refused[0]} ({kind_of(refused[1])})"
    for path, one in module.named_modules():
        for name, value in vars(one).items():
            refused = None if name in _OF_EVERY_MODULE else _refused_part(value)
            if refused is not None:
                place = f"{path}.{name}" if path else name
                return f"Attribute {place}{refused[0]} ({kind_of(refused[1])})"
    return None


def _refused_part(value: Any) -> tuple[str, Any] | None:
    if _can_be_copied(value):
        return None
    if isinstance(value, Mapping):
        inner: Any = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        inner = ((name, part) for name, part in getattr(value, "__dict__", {}).items())
    for name, part in inner:
        refused = _refused_part(part)
        if refused is not None:
            return f"[{name!r}]{refused[0]}", refused[1]
    return "", value


def _can_be_copied(value: Any) -> bool:
    if isinstance(value, Tensor | type(threading)):
        return isinstance(value, Tensor)
    memo: dict[int, Any] = {id(one): one for one in tensors_in(value).values()}
    try:
        with torch.no_grad():
            copy.deepcopy(value, memo)
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return False
    return True
