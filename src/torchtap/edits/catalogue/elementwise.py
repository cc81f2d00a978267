"""Changes of each element by itself, or of the largest ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.edits.catalogue.ready import (
    Ready,
    Value,
    expanded,
    expect,
    expect_value,
    filled,
    is_number,
    is_real,
    is_whole,
    like,
    put_in_place,
    seed_of,
    value_of,
    within,
)
from torchtap.edits.catalogue.regions import At

if TYPE_CHECKING:
    from torchtap.core.record import Record


def zero(*, at: At = None) -> Ready:
    """Zero the tensor, or a region of it. NaN and infinities become zero too.

    The gradient there is zero (not ``None``: whatever comes before still takes part in the graph,
    as DDP needs it).

    Args:
        at: the region; see the page's head.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.edits.zero(at={0: [0, 2]})(torch.ones(3), None)
        tensor([0., 1., 0.])
    """
    return Ready("zero", {"at": at}, within(at, lambda tensor, _: filled(tensor, 0)))


def scale(factor: float | Tensor, *, at: At = None) -> Ready:
    """Multiply by a number, or by a tensor that broadcasts.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.edits.scale(0.5)(torch.ones(2), None)
        tensor([0.5000, 0.5000])
    """
    is_factor = is_number(factor) or isinstance(factor, Tensor)
    expect(is_factor, "scale", "factor", factor, "a number or a tensor")

    def formula(tensor: Tensor, _: Record) -> Tensor:
        return like(tensor, tensor * factor)

    # Times 1, what is infinite elsewhere does not reach the gradient of a factor that is learned.
    return Ready("scale", {"factor": factor, "at": at}, within(at, formula, outside=1.0))


def clamp(min: float | None = None, max: float | None = None, *, at: At = None) -> Ready:
    """Clamp every element into ``[min, max]``, as ``torch.clamp``; NaN stays NaN.

    Raises:
        InputError: neither limit is given, or one is no number.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.clamp(max=2.0)):
        ...     relu(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 2.])
    """
    if min is None and max is None:
        raise InputError("tt.edits.clamp needs min, max or both, as in tt.edits.clamp(min=0).")
    for name, limit in (("min", min), ("max", max)):
        is_limit = limit is None or is_real(limit) or isinstance(limit, Tensor)
        expect(is_limit, "clamp", name, limit, "a number or a tensor")
    arguments = {"min": min, "max": max, "at": at}
    return Ready("clamp", arguments, within(at, lambda tensor, _: tensor.clamp(min, max)))


def add(value: Value, *, at: At = None) -> Ready:
    """Add a number, a tensor that broadcasts, or what a function of the tensor returns.

    With ``at`` the function sees the whole tensor all the same. Values that it returns elsewhere
    count for nothing, but a gradient of NaN there (of ``log`` at 0) stays NaN.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.add(1.0, at={0: slice(0, 2)})):
        ...     relu(torch.tensor([1.0, 2.0, 3.0]))
        tensor([2., 3., 3.])
    """
    expect_value("add", value)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        return like(tensor, tensor + value_of(value, tensor, record))

    return Ready("add", {"value": value, "at": at}, within(at, formula))


def sign(*, at: At = None) -> Ready:
    """Keep only the sign of each element: -1, 0 or 1 (signSGD, for ``param_grad``).

    Example:
        >>> import torch, torchtap as tt
        >>> linear = torch.nn.Linear(2, 1, bias=False)
        >>> with tt.edit(linear, ".:param_grad", tt.edits.sign()):
        ...     linear(torch.tensor([[3.0, -4.0]])).sum().backward()
        >>> linear.weight.grad
        tensor([[ 1., -1.]])
    """
    return Ready("sign", {"at": at}, within(at, lambda tensor, _: tensor.sign()))


def mask(keep: Tensor) -> Ready:
    """Keep the elements where a boolean mask holds and zero the others, NaN too.

    Args:
        keep: bool, broadcasts to the tensor; a mask of numbers is multiplied.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.mask(torch.tensor([True, False, True]))):
        ...     relu(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 0., 3.])
    """
    expect(isinstance(keep, Tensor), "mask", "keep", keep, "a tensor, as torch.tensor makes it")

    def formula(tensor: Tensor, record: Record) -> Tensor:
        here = keep.to(tensor.device)
        if keep.dtype is not torch.bool:
            return tensor * here.to(tensor.dtype)
        return torch.where(expanded(here, tensor, record), tensor, filled(tensor, 0))

    return Ready("mask", {"keep": keep}, formula)


def replace(value: Value, *, at: At = None) -> Ready:
    """Put something else in the tensor's place.

    Args:
        value: a number; a tensor of the same dtype that broadcasts; or a function of the tensor
            (and, if it takes two arguments, of the record), whose result is used as it is.
        at: only there.

    A number or a tensor passes a gradient of zero to the modules before, in the replaced part.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.replace(7.0, at={0: -1})):
        ...     relu(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 2., 7.])
    """
    expect_value("replace", value)

    def formula(tensor: Tensor, record: Record) -> Tensor:
        new = value_of(value, tensor, record)
        is_finished = callable(value) and not isinstance(value, Tensor)
        return new if is_finished else put_in_place(tensor, new, record)

    return Ready("replace", {"value": value, "at": at}, within(at, formula))


def noise(std: float, *, seed: int = 0, relative: bool = False, at: At = None) -> Ready:
    """Add Gaussian noise from a generator of its own; the global one is not touched.

    Noise follows from seed, step, site and call alone, so a call that an activation checkpoint
    runs again gets the same noise, and so does a second training.

    Args:
        std: standard deviation.
        seed: another seed, other noise.
        relative: in units of the tensor's own standard deviation.
        at: only there.

    Raises:
        InputError: an argument does not fit.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.noise(0.1, seed=1)):
        ...     first = relu(torch.ones(3))
        >>> with tt.edit(relu, ".", tt.edits.noise(0.1, seed=1)):
        ...     torch.equal(relu(torch.ones(3)), first)
        True
    """
    expect(is_real(std) and std >= 0, "noise", "std", std, "a number from 0 on")
    expect(is_whole(seed), "noise", "seed", seed, "a whole number")
    expect(isinstance(relative, bool), "noise", "relative", relative, "True or False")

    def formula(tensor: Tensor, record: Record) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(seed_of(seed, record))
        given = tensor.detach()
        wide = given if given.is_complex() else given.float()
        size = std * wide.std() if relative else std
        is_inexact = given.is_complex() or given.is_floating_point()
        dtype = given.dtype if is_inexact else torch.float32
        drawn = torch.randn(given.shape, generator=generator, device=given.device, dtype=dtype)
        return like(tensor, tensor + size * drawn)

    arguments = {"std": std, "seed": seed or None, "relative": relative or None, "at": at}
    return Ready("noise", arguments, within(at, formula))


def keep_topk(k: float, *, dim: int | None = None) -> Ready:
    """Keep the ``k`` elements of largest magnitude and zero the others.

    Args:
        k: a count, or a share below 1 (at least one element is kept).
        dim: apart along this dimension; ``None`` over the whole tensor.

    Raises:
        InputError: ``k`` is neither a count nor a share, or ``dim`` no dimension.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.edit(relu, ".", tt.edits.keep_topk(1)):
        ...     relu(torch.tensor([1.0, 3.0, 2.0]))
        tensor([0., 3., 0.])
    """
    is_count = is_real(k) and (0 < k < 1 or (k >= 1 and float(k).is_integer()))
    expect(is_count, "keep_topk", "k", k, "a positive whole number, or a share between 0 and 1")
    expect(dim is None or is_whole(dim), "keep_topk", "dim", dim, "a whole number or None")

    def formula(tensor: Tensor, _: Record) -> Tensor:
        flat = tensor.reshape(-1) if dim is None else tensor
        axis = 0 if dim is None else dim
        length = flat.shape[axis] if flat.dim() else 1
        count = min(length, int(k) if k >= 1 else max(1, int(k * length)))
        if tensor.dim() == 0 or not tensor.numel():
            return tensor
        largest = flat.detach().abs().topk(count, dim=axis).indices
        keep = torch.zeros_like(flat, dtype=torch.bool).scatter_(axis, largest, True)
        return torch.where(keep.view(tensor.shape), tensor, filled(tensor, 0))

    return Ready("keep_topk", {"k": k, "dim": dim}, formula)
