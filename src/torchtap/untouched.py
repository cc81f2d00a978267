"""Runs a model without leaving a trace of it in buffers and random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def untouched(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Give forwards copies of the buffers and put the very tensors back; and the generators.

    Args:
        modules: path -> module, each once.
    """
    originals = {path: dict(module._buffers) for path, module in modules.items()}
    copies: dict[int, Tensor] = {}
    numbers = random.getstate()
    devices = sorted({p.device.index or 0 for m in modules.values() for p in _cuda_tensors(m)})
    with torch.random.fork_rng(devices=devices):
        try:
            for module in modules.values():
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[name] = copies.setdefault(id(buffer), buffer.clone())
            yield
        finally:
            random.setstate(numbers)
            for path, module in modules.items():
                module._buffers.clear()
                module._buffers.update(originals[path])


def _cuda_tensors(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.is_cuda:
            yield tensor
