"""Calls the Triton kernels (``cuda_kernel.py``): tensors of a CUDA device, where they are.

A row is ``float64[16]`` as in :mod:`torchtap.stats.statistics`, a histogram ``int64[8192]`` as in
:mod:`torchtap.stats.histogram`, both beside the tensor; what is measured is merged into what they
hold. Nothing is read back and nothing waited for. Memory that is needed in between comes from
PyTorch's allocator and goes back to it. Launches can be captured in a CUDA graph, if tensors of the
same dtypes were measured before: a kernel is compiled and loaded when it is first needed.

The numbers are those of :mod:`torchtap.stats.kernels.stock` to rounding, and the same bits each
time. Triton is imported when a CUDA tensor is first measured.
"""

from __future__ import annotations

import functools
import subprocess
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from torchtap.stats.kernels import native
from torchtap.stats.rows import ROW_WIDTH, empty_rows

BLOCK = 512
"""Elements that a program reads at once."""
MAX_PARTS = 1024
"""Parts that a tensor is cut into at most; a power of two. Enough for every processor of a GPU."""
_LEAST_BLOCKS = 8
"""Blocks in a part at least; a tensor of no more is measured in one launch."""
_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": True}


def available(tensor: Tensor) -> bool:
    """Return whether a tensor can be measured here: Triton is there and works on its device."""
    return tensor.is_cuda and tensor.dtype in native.DTYPES and _works(tensor.get_device())


@functools.cache
def kernels() -> ModuleType | None:
    """Return the kernels, or ``None`` without Triton."""
    from torchtap.stats.kernels import cuda_kernel

    return cuda_kernel if cuda_kernel.IS_THERE else None


@functools.cache
def _works(index: int) -> bool:
    """Return whether a kernel compiles for a device: for that, Triton wants a C compiler too."""
    if kernels() is None:
        return False
    device = torch.device("cuda", index)
    try:
        accumulate(torch.zeros(1, device=device), empty_rows(1, device)[0])
    except (RuntimeError, OSError, ImportError, subprocess.SubprocessError):
        return False
    return True


def accumulate(
    tensor: Tensor, row: Tensor, histogram: Tensor | None = None, sample: int = 0
) -> None:
    """Measure a tensor and merge it into a row.

    Args:
        tensor: of any shape and strides, of a dtype that the native kernel reads too.
        row: ``float64[16]``, contiguous, on the device of the tensor.
        histogram: ``int64[8192]``, contiguous, or ``None``.
        sample: how many elements to count in the histogram if there are more, one in each of so
            many equal parts; 0 for all.
    """
    tensor = native.without_gaps(tensor)
    numel = tensor.numel()
    num_parts, blocks = _split(numel)
    kernel: Any = kernels()
    with torch.cuda.device(tensor.get_device()):
        partials = tensor.new_empty(
            (ROW_WIDTH, num_parts) if num_parts > 1 else 0, dtype=torch.float64
        )
        kernel.measure_parts[(num_parts,)](
            tensor.data_ptr(),
            numel,
            row.data_ptr(),
            _address(histogram),
            sample,
            partials.data_ptr(),
            num_parts,
            blocks,
            **_kind(tensor, histogram, sample),
            IS_ONE_PART=num_parts == 1,
        )
        if num_parts > 1:
            kernel.merge_parts[(1,)](
                row.data_ptr(), partials.data_ptr(), num_parts, PARTS=MAX_PARTS, **_OPTIONS
            )


def _split(numel: int) -> tuple[int, int]:
    """Return into how many parts a tensor is cut, and how many blocks are in each."""
    num_blocks = max(-(-numel // BLOCK), 1)
    blocks = max(-(-num_blocks // MAX_PARTS), _LEAST_BLOCKS)
    return -(-num_blocks // blocks), blocks


@functools.cache
def _dtype(dtype: torch.dtype) -> dict[str, Any]:
    """Return a kernel's constants of a dtype; ``TINY`` is its smallest number of full precision."""
    language = kernels().tl  # type: ignore[union-attr]
    # A bool is a byte that is 0 or 1.
    name = "uint8" if dtype is torch.bool else str(dtype).removeprefix("torch.")
    tiny = torch.finfo(dtype).tiny if dtype.is_floating_point else 0.0
    # Elements are compared as float32 where it holds them: many GPUs are slow with float64.
    is_wide = dtype in (torch.float64, torch.int32, torch.int64)
    work = language.float64 if is_wide else language.float32
    return {"DTYPE": getattr(language, name), "WORK": work, "TINY": tiny}


def _kind(tensor: Tensor, histogram: Tensor | None, sample: int) -> dict[str, Any]:
    """Return the constants that a kernel is compiled for."""
    return {
        **_dtype(tensor.dtype),
        "IS_ALIGNED": tensor.data_ptr() % 16 == 0,
        "COUNTS_ALL": histogram is not None and not 0 < sample < tensor.numel(),
        "BLOCK": BLOCK,
        **_OPTIONS,
    }


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
