"""Runs that pages are made of: real trainings, small and with traps."""

from __future__ import annotations

import math

import torch
from torch import nn

import torchtap as tt
from torchtap.runs.run import Run


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten(),
        nn.Linear(32, 3),
    )  # fmt: skip


def trained_run(steps: int = 12, *, bad: int = -1) -> Run:
    """A training of a small CNN; in step ``bad`` a pixel is NaN."""
    net = _net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with tt.watch(
        net, ["*:input,output,grad_output", "*:param,param_grad,update"], to=tt.Stats()
    ) as w:
        for step in range(steps):
            x = torch.randn(8, 1, 8, 8)
            if step == bad:
                x[0, 0, 0, 0] = math.nan
            loss = nn.functional.cross_entropy(net(x), torch.arange(8) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss.item(), lr=0.1)
            w.step()
    return w.run


def nan_run() -> Run:
    """A training that turns NaN in step 5."""
    return trained_run(9, bad=5)


def image_run() -> Run:
    """Values of a CNN with 12 x 12 maps; one pixel is infinite."""
    net = _net()[:4]
    x = torch.randn(2, 1, 14, 14)
    x[0, 0, 3, 3] = math.inf
    with tt.watch(net, "*:input,output") as w:
        net(x)
    return w.run


def hostile_run() -> Run:
    """A run whose modules have names of HTML, quotes, line breaks and 1,000 characters."""
    names = ["</script><img src=x onerror=alert(1)>", "\"'`${alert(2)}", "a\nb\u2028c", "x" * 1000]
    net = nn.Module()
    for name in names:
        net.add_module(name, nn.Linear(2, 2))
    net.forward = lambda x: [one(x) for one in net.children()]  # type: ignore[method-assign]
    with tt.watch(net, "*", to=tt.Stats()) as w:
        net(torch.ones(1, 2))
    return w.run
