"""A planted fault: a whole step, and what an origin of it has to say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Training(NamedTuple):
    """A model, one whole step of its training, and the batch."""

    model: nn.Module
    step: Callable[..., object]
    batch: tuple[Tensor, ...]


class Op(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        """Call it."""
        return self.function(*args)


@dataclass(frozen=True, slots=True)
class Planted:
    """The planted fault; the line stands in the source behind ``# here: NAME``."""

    name: str
    build: Callable[[], Training]
    phases: tuple[str, ...] = ("forward",)
    # Names of ATen; empty where no operation is at fault.
    operations: tuple[str, ...] = ()
    module: str | None = "1"
    call: int = 0
    # Of a NaN made of an Inf: operations of the Inf, which may also be the origin. It stands behind
    # ``# cause: NAME``, or on the same line.
    cause: tuple[str, ...] = ()
    rows: tuple[int, ...] | None = None
    # A guard sees the model alone; faults in the loss, own clipping or optimizer lie outside.
    seen_by_guard: bool = True


def sequence(op: Callable[..., Tensor], *, width: int = 6, half: bool = False) -> Training:
    """A linear layer, the operation (module "1"), another linear layer, and plain SGD."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), Op(op), nn.Linear(width, 1))
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    if half:
        model, x = model.half(), x.half()
    return training(model, x)


def training(
    model: nn.Module,
    *batch: Tensor,
    loss: Callable[[Tensor], Tensor] = lambda out: out.float().square().mean(),
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **settings: Any,
) -> Training:
    """The usual step of a model."""
    made = optimizer(model.parameters(), **{"lr": 0.01, **settings})

    def step(*batch: Tensor) -> None:
        made.zero_grad()
        loss(model(*batch)).backward()
        made.step()

    return Training(model, step, batch)


@cache
def _lines(file: str) -> dict[str, int]:
    """By marker: the number of its line."""
    found = {}
    for number, text in enumerate(Path(file).read_text().splitlines(), 1):
        for kind in ("# here: ", "# cause: "):
            if kind in text:
                for name in text.split(kind)[1].split("#")[0].strip().split(", "):
                    found[kind + name] = number
    return found


def line_of(planted: Planted, kind: str = "here") -> tuple[str, int] | None:
    """File and number of the marked line, or ``None`` where none is marked."""
    file = str(inspect.getsourcefile(planted.build))
    number = _lines(file).get(f"# {kind}: {planted.name}")
    if number is None and kind == "cause":
        return line_of(planted)
    return None if number is None else (file, number)


def wrong(planted: Planted, origin: Any) -> list[str]:
    """Everything that an origin says otherwise than planted; empty if all is right."""
    if origin is None:
        return ["no origin"]
    if planted.cause and origin.operation in planted.cause and origin.cause is None:
        return _differs(planted, origin, planted.cause, "cause")
    found = _differs(planted, origin, planted.operations, "here")
    if planted.cause:
        if origin.cause is None:
            found.append("no cause")
        else:
            found += _differs(planted, origin.cause, planted.cause, "cause", of_cause=True)
    if planted.rows is not None and tuple(origin.rows or ()) != planted.rows:
        found.append(f"rows {origin.rows}, planted {planted.rows}")
    return found


def _differs(
    planted: Planted, origin: Any, operations: tuple[str, ...], kind: str, *, of_cause: bool = False
) -> list[str]:
    found = []
    if not of_cause and origin.phase not in planted.phases:
        found.append(f"phase {origin.phase}, planted {' or '.join(planted.phases)}")
    if operations and (origin.operation or "").rstrip("_") not in operations:
        found.append(f"operation {origin.operation}, planted {' or '.join(operations)}")
    if not of_cause and origin.module != planted.module:
        found.append(f"module {origin.module}, planted {planted.module}")
    if not of_cause and planted.module is not None and (origin.call or 0) != planted.call:
        found.append(f"call {origin.call}, planted {planted.call}")
    line = line_of(planted, kind)
    if line is not None and (Path(str(origin.file)).name, origin.line) != (
        Path(line[0]).name,
        line[1],
    ):
        found.append(f"line {origin.file}:{origin.line}, planted {line[0]}:{line[1]}")
    return [f"{'cause: ' if of_cause else ''}{each}" for each in found]


__all__ = ["Op", "Planted", "Training", "line_of", "sequence", "training", "wrong"]
