"""Trainings that are followed while they go on: small ones here, and one in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt

EVERYTHING = "*:*,param,param_grad,update"


class Block(nn.Module):
    """Two layers, called in another order than they are named; the second may be poisoned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.second = nn.Linear(width, width)
        self.act = nn.Tanh()
        self.first = nn.Linear(width, width)
        self.change: Callable[[Tensor], Tensor] = lambda x: x

    def forward(self, x: Tensor) -> Tensor:
        """Add what the layers make of it, poisoned or not, between them."""
        return x + self.second(self.change(self.act(self.first(x))))


class PoisonedGradient(torch.autograd.Function):
    """Passes values on; the gradient of the first element is NaN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return the same values."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return a gradient with a NaN in it."""
        grad = grad.clone()
        grad[0, 0] = torch.nan
        return grad


def blocks(many: int = 4, width: int = 8) -> nn.Sequential:
    """Some blocks between two layers, with weights that are the same every time."""
    torch.manual_seed(0)
    inner = [Block(width) for _ in range(many)]
    return nn.Sequential(nn.Linear(4, width), *inner, nn.Linear(width, 1))


def train(
    path: Path,
    steps: int,
    *,
    net: nn.Sequential | None = None,
    change: Callable[[int, nn.Sequential], object] | None = None,
    where: str = EVERYTHING,
    sinks: Callable[[Path], list[Any]] | None = None,
    is_closed: bool = True,
) -> Any:
    """Train some steps, with statistics on disk; ``change(step, net)`` is called before each."""
    net = blocks() if net is None else net
    to = [tt.Disk(path, values=None), tt.Stats()] if sinks is None else sinks(path)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    w = tt.watch(net, where, to=to)  # type: ignore[arg-type]
    for step in range(steps):
        if change is not None:
            change(step, net)
        torch.manual_seed(step)
        loss = net(torch.randn(16, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        w.log(loss=loss)
        w.step()
    if is_closed:
        w.close()
    return w


_PROGRAM = """
import sys, time, torch
from pathlib import Path
from live_runs import train
def change(step, net):
    if step % 10 == 0:
        print(step, flush=True)
    if step == int(sys.argv[2]):
        net[2].change = lambda x: x / 0 * 0
    time.sleep(0.01)
train(Path(sys.argv[1]), 100_000, change=change)
"""


@contextmanager
def training(path: Path, *, bad: int = -1) -> Iterator[subprocess.Popen[str]]:
    """A training in another process, a step in 10 ms; from step ``bad`` on a value is NaN."""
    program = [sys.executable, "-c", _PROGRAM, str(path), str(bad)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], step: int) -> None:
    """Until the training has come to a step."""
    assert process.stdout is not None
    while int(process.stdout.readline()) < step:
        pass
