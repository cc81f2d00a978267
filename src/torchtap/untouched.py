"""Runs a model without leaving a trace of it in buffers and random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def untouched(modules: Mapping[str, nn.Module]) -> Iterator[Callable[[], None]]:
    """Give forwards copies of the buffers and put the very tensors back; and the generators.

    Args:
        modules: path -> module, each once.

    Yields:
        a function that makes copies and generators again what they were, for one more forward.
    """
    originals = {path: dict(module._buffers) for path, module in modules.items()}
    owners = [(modules[path], own) for path, own in originals.items() if own]
    buffers = {
        id(one): one for own in originals.values() for one in own.values() if one is not None
    }
    copies = {key: buffer.clone() for key, buffer in buffers.items()}
    devices = sorted({p.device.index or 0 for m in modules.values() for p in _cuda_tensors(m)})
    numbers = random.getstate()
    with torch.random.fork_rng(devices=devices):
        drawn = torch.random.get_rng_state(), [torch.cuda.get_rng_state(one) for one in devices]

        def lend() -> None:
            for module, own in owners:
                for name, buffer in own.items():
                    module._buffers[name] = None if buffer is None else copies[id(buffer)]

        def rewind() -> None:
            for key, buffer in buffers.items():
                if not _is_same(copies[key], buffer):
                    copies[key] = buffer.clone()
            lend()
            random.setstate(numbers)
            torch.random.set_rng_state(drawn[0])
            for device, state in zip(devices, drawn[1], strict=True):
                torch.cuda.set_rng_state(state, device)

        try:
            lend()
            yield rewind
        finally:
            random.setstate(numbers)
            for path, module in modules.items():
                module._buffers.clear()
                module._buffers.update(originals[path])


def mode_of(module: nn.Module) -> bool | None:
    """Whether a module is in training mode; ``None`` if it has no mode, which PyTorch allows."""
    if isinstance(module, torch.jit.ScriptModule):
        return module.training
    mode: bool | None = vars(module).get("training")  # A module's own __getattr__ may raise.
    return mode


def set_mode(module: nn.Module, mode: bool | None) -> None:
    """Give a module the mode that :func:`mode_of` told."""
    if mode is not None:
        module.training = mode
    elif mode_of(module) is not None:
        del module.training


def _is_same(copy: Tensor, buffer: Tensor) -> bool:
    # Versions would not do: statistics of one's own are often written through .data.
    is_plain = copy.layout is torch.strided and not (copy.is_meta or copy.is_nested)
    return is_plain and torch.equal(copy, buffer)


def _cuda_tensors(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.is_cuda:
            yield tensor
