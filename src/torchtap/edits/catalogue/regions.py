"""A region of a tensor: dimension -> index, slice, list of indices or mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchtap.core.errors import EditError, InputError
from torchtap.core.record import Record
from torchtap.core.tensors import kind_of, short
from torchtap.core.user_functions import place

Index = int | slice | Sequence[int] | Tensor
At = Mapping[int, Index] | None


def check(at: At, name: str = "at") -> None:
    """Raises:
    InputError: it is no region, or chooses nothing whatever the tensor.
    """
    if at is None:
        return
    if not isinstance(at, Mapping) or not all(type(dim) is int for dim in at):
        raise InputError(
            f"{name} is {short(at)}; expected dimension -> index, slice, list of indices or mask, "
            f"as in {name}={{0: 3}}. Leave it out for the whole tensor."
        )
    for dim, index in at.items():
        if _is_nothing(index):
            raise InputError(
                f"{name}={{{dim}: {short(index)}}} chooses nothing of dimension {dim}, so the edit "
                f"would never do anything. Leave the edit out where nothing is chosen."
            )
        if not _is_index(index):
            raise InputError(
                f"{name}={{{dim}: {short(index)}}} is no place in dimension {dim}; expected whole "
                f"numbers, a slice, or a mask of one dimension, as in {name}={{{dim}: [0, 2]}}."
            )


def region(at: Mapping[int, Index], tensor: Tensor, record: Record) -> Tensor:
    """Return a boolean mask that broadcasts to the tensor.

    Raises:
        EditError: the tensor has no such place.
    """
    whole = torch.ones((), dtype=torch.bool, device=tensor.device)
    seen: set[int] = set()
    for dim, index in at.items():
        if not -tensor.dim() <= dim < tensor.dim():
            raise EditError(
                f"The edit at {place(record)} is asked to work in dimension {dim}, and the tensor "
                f"is {kind_of(tensor)}."
            )
        if dim % tensor.dim() in seen:
            raise EditError(
                f"The edit at {place(record)} names dimension {dim} of {kind_of(tensor)} twice, by "
                f"its number from the front and from the back. Name it once."
            )
        seen.add(dim % tensor.dim())
        chosen = torch.zeros(tensor.shape[dim], dtype=torch.bool, device=tensor.device)
        try:
            chosen[_usable(index, tensor.shape[dim])] = True
        except IndexError as error:
            raise EditError(
                f"The edit at {place(record)} is asked to work at {short(index)} of dimension "
                f"{dim}, and the tensor is {kind_of(tensor)}."
            ) from error
        shape = [1] * tensor.dim()
        shape[dim] = -1
        whole = whole & chosen.view(shape)
    return whole


def moved(
    source: Tensor, tensor: Tensor, at: Mapping[int, Index], source_at: At, record: Record
) -> Tensor:
    """Return a tensor from elsewhere, with what it has at ``source_at`` where the region is.

    Where it is as long as the tensor, or of length 1, and nothing else is asked for, it lies right
    already. Its elements outside of the region are not used.

    Raises:
        EditError: the source has no such place, or another number of them.
    """
    for dim, index in at.items():
        own = dim % tensor.dim() - tensor.dim() + source.dim()
        is_asked = source_at is not None and dim in source_at
        if own < 0 or (not is_asked and source.shape[own] in (1, tensor.shape[dim])):
            continue
        from_index = source_at[dim] if source_at is not None and is_asked else index
        places = _places(from_index, source, own, dim, record)
        wanted = torch.arange(tensor.shape[dim], device=source.device)
        wanted = wanted[_usable(index, tensor.shape[dim])].reshape(-1)
        if len(places) not in (1, len(wanted)):
            raise EditError(
                f"The edit at {place(record)} takes {len(places)} places of dimension {dim} of its "
                f"source and puts them into {len(wanted)}; expected as many, or one. Say which "
                f"with source_at={{{dim}: ...}}."
            )
        part = source.index_select(own, places)
        if len(places) > 1:
            shape = list(source.shape)
            shape[own] = tensor.shape[dim]
            part = source.new_zeros(shape).index_copy(own, wanted, part)
        source = part
    return source


def _places(index: Index, source: Tensor, own: int, dim: int, record: Record) -> Tensor:
    length = source.shape[own]
    try:
        every = torch.arange(length, device=source.device)
        return every[_usable(index, length)].reshape(-1)
    except IndexError as error:
        raise EditError(
            f"The edit at {place(record)} takes {short(index)} of dimension {dim} of its source, "
            f"which is {kind_of(source)}. Say where to look with source_at={{{dim}: ...}}."
        ) from error


def _usable(index: Index, length: int) -> int | slice | Tensor:
    """Return the index in a form that tensors take; raises IndexError where a slice is empty."""
    if isinstance(index, slice):
        chosen = range(*index.indices(length))
        if length and not chosen:
            raise IndexError  # Tensors take such slices for empty ones.
        return torch.tensor(chosen) if chosen.step < 0 else index
    return index if isinstance(index, int | Tensor) else torch.as_tensor(index)


def _is_nothing(index: Index) -> bool:
    if isinstance(index, Tensor):
        return not bool(index.any()) if index.dtype == torch.bool else not index.numel()
    return isinstance(index, list | tuple) and not any(entry is not False for entry in index)


def _is_index(index: object) -> bool:
    if isinstance(index, slice):
        return all(end is None or isinstance(end, int) for end in _ends(index))
    if isinstance(index, Tensor):
        is_number = index.is_floating_point() or index.is_complex()
        return not is_number and (index.dim() == 1 or (not index.dim() and not _is_mask(index)))
    if isinstance(index, bool | str | bytes):
        return False
    try:  # Lists, tuples, ranges, and numpy's numbers and arrays.
        return isinstance(index, int) or _is_index(torch.as_tensor(index))
    except (TypeError, ValueError, RuntimeError):
        return False


def _ends(index: slice) -> tuple[object, object, object]:
    return index.start, index.stop, index.step


def _is_mask(index: Tensor) -> bool:
    return index.dtype is torch.bool
