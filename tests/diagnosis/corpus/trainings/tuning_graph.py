"""Graph networks on a stochastic block model: classes of nodes from noisy features."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import biased, frozen, times


@cache
def _graph(blocks: int = 4, each: int = 30) -> tuple[Tensor, Tensor]:
    y = torch.arange(blocks).repeat_interleave(each)
    chance = torch.where(y[:, None] == y[None], 0.25, 0.02)
    edges = (torch.rand(chance.shape, generator=torch.Generator().manual_seed(0)) < chance).float()
    edges = ((edges + edges.T).clamp(max=1) + torch.eye(len(y))).clamp(max=1)
    return edges / edges.sum(1, keepdim=True), y


class GraphNet(nn.Module):
    """Means over neighbours and linear layers in turns: float32[N, 4] to logits [N, 4]."""

    def __init__(
        self, depth: int = 2, act: type[nn.Module] = nn.ReLU, residual: bool = True
    ) -> None:
        super().__init__()
        self.residual = residual
        self.enter = nn.Linear(4, 32)
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(depth))
        self.acts = nn.ModuleList(act() for _ in range(depth))
        self.leave = nn.Linear(32, 4)

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        """Pass messages."""
        h = self.enter(x)
        for layer, act in zip(self.layers, self.acts, strict=True):
            new = act(layer(mean @ h))
            h = h + new if self.residual else new
        return self.leave(h)


def _nodes(model: nn.Module, step: int) -> Tensor:
    mean, y = _graph()
    x = nn.functional.one_hot(y, 4).float() + 1.5 * draw(step, len(y), 4)
    seen = pick(step, len(y), 40)
    return nn.functional.cross_entropy(model(x, mean)[seen], y[seen])


GCN = D("graph", GraphNet, _nodes, adam(3e-3, decay=5e-4), steps=50)
DEEP = D("graph_residual", lambda: GraphNet(6, nn.GELU), _nodes, adam(2e-3), steps=50, seed=1)

CASES = [
    healthy(GCN),
    healthy(DEEP),
    broken(
        DEEP,
        "sigmoids",
        replace(DEEP, model=lambda: GraphNet(12, nn.Sigmoid, False)),
        "vanishing",
        "collapsed",
        places=("enter", "layers.0", "layers.1"),
    ),
    broken(
        GCN,
        "dead",
        replace(GCN, model=lambda: GraphNet(2, nn.ReLU, False), prepare=biased("layers.0", -30.0)),
        "dead",
        places=("acts.0", "layers.0"),
    ),
    broken(
        GCN,
        "frozen_between",
        replace(GCN, model=lambda: GraphNet(4, nn.ReLU, False), prepare=frozen("layers.1")),
        "frozen",
        places=("layers.1",),
    ),
    broken(
        GCN,
        "starts_tiny",
        replace(GCN, model=lambda: GraphNet(3, nn.ReLU, False), prepare=times("layers.1", 1e-4)),
        "small_init",
        "vanishing",
        places=("layers.1",),
    ),
]
