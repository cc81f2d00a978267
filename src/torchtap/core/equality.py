"""Compares tensors of every kind: strided, sparse, nested, quantised, wrapped, on no device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchtap.core.torch_private import NO_DISPATCH, without_torch_function

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same(one: Tensor | None, two: Tensor | None) -> bool:
    """Bit for bit, except that NaN is equal to NaN. Tensors without memory have a kind only."""
    if one is None or two is None:
        return one is two
    if _are_same_plain(one, two):
        return True
    return one is two or (kind(one) == kind(two) and num_differing(one, two) == 0)


def _are_same_plain(one: Tensor, two: Tensor) -> bool:
    """Return a quick look at the common kind; only what differs there is looked at with care."""
    if not (_is_plain(one) and _is_plain(two)):
        return False
    has_shape = one.dtype == two.dtype and one.shape == two.shape
    return has_shape and torch.equal(_words(one), _words(two))


def _is_plain(tensor: Tensor) -> bool:
    is_odd = tensor.is_nested or tensor.is_meta or tensor.is_quantized or tensor.is_complex()
    return type(tensor) is Tensor and tensor.layout is torch.strided and not is_odd


def kind(tensor: Tensor) -> str:
    """Dtype and shape, and the layout where it is not strided."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_nested:
        shapes = ", ".join(str(list(part.shape)) for part in tensor.detach().unbind())
        return f"nested {dtype}[{shapes}]"
    layout = "" if tensor.layout is torch.strided else f"{tensor.layout} ".removeprefix("torch.")
    return f"{layout}{dtype}{list(tensor.shape)}"


def num_differing(one: Tensor, two: Tensor) -> int:
    """In how many elements two tensors of one :func:`kind` differ."""
    pairs = list(zip(parts(one), parts(two), strict=False))
    if any(first.shape != second.shape for first, second in pairs):
        return max(one.numel(), 1)  # Of a sparse one, other places are filled.
    return sum(_num_differing(first, second) for first, second in pairs)


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the strided tensors in which the numbers are; none where there is no memory."""
    tensor = tensor.detach()
    if not has_memory(tensor):
        return []
    if tensor.is_nested:
        return [part for one in tensor.unbind() for part in parts(one)]
    if tensor.layout is torch.sparse_coo:
        # Uncoalesced, one place may stand several times, in any order.
        whole = tensor.coalesce()
        return [*parts(whole.values()), whole.indices()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [*parts(tensor.values()), tensor.crow_indices(), tensor.col_indices()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [*parts(tensor.values()), tensor.ccol_indices(), tensor.row_indices()]
    if tensor.layout is not torch.strided:
        return parts(tensor.to_dense())
    if _is_wrapper(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        held = [getattr(tensor, name) for name in names]
        return [part for one in held if isinstance(one, Tensor) for part in parts(one)]
    inner = [value for value in vars(tensor).values() if isinstance(value, Tensor)]
    if inner and _has_own_dispatch(tensor):
        return [part for one in inner for part in parts(one)]
    if tensor.is_quantized:
        return [tensor.int_repr(), *_scales(tensor)]
    with without_torch_function():
        return [tensor.resolve_conj().resolve_neg()]


def _has_own_dispatch(tensor: Tensor) -> bool:
    """Return whether a tensor's class defines its own ``__torch_dispatch__``, as wrappers do."""
    return type(tensor).__torch_dispatch__ is not NO_DISPATCH


def _is_wrapper(tensor: Tensor) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has values; on the meta device there is a shape only."""
    return not tensor.is_meta and type(tensor).__name__ != "FakeTensor"


def _scales(tensor: Tensor) -> list[Tensor]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)]
    return [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()]


def _num_differing(one: Tensor, two: Tensor) -> int:
    if _has_own_dispatch(one):
        return 0 if torch.equal(one, two) else 1  # How it keeps its numbers is its own affair.
    with without_torch_function(), torch.no_grad():
        if one.is_complex():
            one, two = torch.view_as_real(one), torch.view_as_real(two)
            return int(_differing(one, two).any(-1).sum())
        if one.dtype == two.dtype and torch.equal(_words(one), _words(two)):
            return 0
        return int(_differing(one, two).sum())


def _differing(one: Tensor, two: Tensor) -> Tensor:
    if one.dtype != two.dtype:
        return torch.ones_like(one, dtype=torch.bool)
    differing = _words(one) != _words(two)
    if not one.is_floating_point() or one.dtype is torch.float4_e2m1fn_x2:  # Which has no NaN.
        return differing
    # Words first and NaN only there: isnan() of equal words need not be asked, and -0.0 differs
    # from 0.0.
    return differing & ~(_is_nan(one) & _is_nan(two))


def _words(tensor: Tensor) -> Tensor:
    return tensor.resolve_neg().contiguous().view(_WORDS[tensor.dtype.itemsize])


def _is_nan(tensor: Tensor) -> Tensor:
    return (tensor.float() if tensor.dtype.itemsize == 1 else tensor).isnan()


# ---------------------------------------------------------------------- within rounding


_TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 2e-4}
_COARSE = 3e-2
"""Relative error (in norm) that a gradient may have against the twin, by dtype: the twin computes
the same sums in another order. Half precision gets the coarse one."""


def mismatch(value: Tensor, truth: Tensor, *, exact: bool) -> str | None:
    """Return what is wrong with a value, or ``None``.

    Args:
        value: as it was recorded.
        truth: what it must be.
        exact: to the bit, or within the rounding of sums in another order.
    """
    if kind(value) != kind(truth):
        return f"{kind(value)} where the truth is {kind(truth)}"
    if same(value, truth):
        return None
    if exact:
        whole = sum(part.numel() for part in parts(value))
        return f"{num_differing(value, truth):,} of {whole:,} elements differ"
    one, two = wide(value), wide(truth)
    if one.shape != two.shape:
        return "other elements are filled"
    finite = two.isfinite()
    if not torch.equal(one.isfinite(), finite):
        return "NaN or Inf stand elsewhere"
    scale = torch.linalg.vector_norm(two[finite])
    error = torch.linalg.vector_norm((one - two)[finite])
    limit = tolerance(value.dtype)
    if float(error) <= limit * float(scale) + torch.finfo(value.dtype).tiny:
        return None
    return f"relative error {float(error / scale):.2e}, at most {limit:.0e} was expected"


def tolerance(dtype: torch.dtype) -> float:
    """Relative error (in norm) that sums in another order may have."""
    return _TOLERANCE.get(dtype, _COARSE)


def wide(tensor: Tensor) -> Tensor:
    """Return all numbers in one row, in double precision."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    is_sparse = not tensor.is_nested and tensor.layout is not torch.strided
    strided = parts(tensor.detach().to_dense() if is_sparse else tensor)
    if not strided:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.cat([part.reshape(-1).to(dtype) for part in strided])
