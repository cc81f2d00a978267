"""The content of a folder of ``tt.Disk``, as plain values that compare with ``==``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from bits import content
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import OverwrittenError

Seen = dict[tuple[Any, ...], Any]
"""Site, step, call, phase, backward, labels and which of several of them -> its bits."""


def seen(records: Iterable[tt.Record]) -> Seen:
    """Every record with its bits."""
    found: Seen = {}
    for one in records:
        number = 0
        key = (str(one.site), one.step, one.call, one.phase, one.backward, one.labels)
        while (*key, number) in found:
            number += 1
        found[(*key, number)] = content(one.value)
    return found


def held(run: tt.Run) -> Seen:
    """Every record of a run with its bits."""
    return seen(run.records(phase=None))


def copied(record: tt.Record) -> tt.Record:
    """A record with a copy of its value, made by torch alone; one of MKL-DNN is dense."""
    try:
        value = record.value.detach().clone()
        if str(value.layout) != "torch._mkldnn":
            return record.with_value(value)
        said = f"dense from {str(value.layout).removeprefix('torch.')}"
        return record._replace(labels=(*record.labels, said)).with_value(value.to_dense())
    except OverwrittenError:
        raise AssertionError(f"{record} was overwritten before it could be copied") from None


def small_net(width: int = 8) -> nn.Sequential:
    """Two layers with weights that are the same every time."""
    generator = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(exact(parameter.shape, generator))
    return net


def exact(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Random eighths: what a small net makes of them has no rounding, in batches of any size."""
    return torch.randn(tuple(shape), generator=generator).mul_(8).round_().div_(8)


def batch(step: int, rows: int = 4, width: int = 8) -> Tensor:
    """The input of a step, the same every time."""
    generator = torch.Generator().manual_seed(step)
    return exact((rows, width), generator)


def record_steps(path: Path, steps: Sequence[int], *, rows: int = 4, **how: Any) -> Seen:
    """Record some steps of :func:`small_net`; returns what flowed, copied by torch."""
    net, flowed = small_net(), list[tt.Record]()

    def keep(record: tt.Record) -> None:
        flowed.append(copied(record))

    with tt.watch(net, "*:output,grad_output", to=[keep, tt.Disk(path, **how)]) as w:
        for step in steps:
            w.step(step)
            net(batch(step, rows)).square().sum().backward()
            w.step(ids=range(rows), parity="odd" if step % 2 else "even")
    return seen(flowed)


def files_of(path: Path) -> list[Path]:
    """All files of a folder."""
    return sorted(one for one in path.rglob("*") if one.is_file())
