"""Graphs with a label each: message passing with a GRU, and attention over neighbours."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import frozen, shuffled, times, without

mse = nn.functional.mse_loss
NODES = 10


def _told(nodes: Tensor, edges: Tensor) -> Tensor:
    """Nodes are told how many neighbours they have, which an average forgets."""
    return torch.cat([nodes, edges.sum(-1, keepdim=True) / 3 - 1.5], -1)


class Passing(nn.Module):
    """Sums messages and updates the nodes by a GRU cell; reads out the mean."""

    def __init__(self, rounds: int = 3, *, mean: bool = False) -> None:
        super().__init__()
        self.rounds, self.mean = rounds, mean
        self.enter, self.say = nn.Linear(3, 24), nn.Linear(24, 24)
        self.update = nn.GRUCell(24, 24)
        self.read = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """float32[B, N, 3] and float32[B, N, N] to float32[B]."""
        x = self.enter(nodes)
        for _ in range(self.rounds):
            heard = edges @ self.say(x).relu()
            if self.mean:
                heard = heard / edges.sum(-1, keepdim=True)
            x = self.update(heard.flatten(0, 1), x.flatten(0, 1)).view(x.shape)
        value: Tensor = self.read(x.mean(1))[:, 0]
        return value


class Deep(nn.Module):
    """Averages over neighbours, layer after layer, without a residual."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(4 if layer == 0 else 24, 24) for layer in range(depth)
        )
        self.read = nn.Linear(24, 1)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """float32[B, N, 3] and float32[B, N, N] to float32[B]."""
        x = _told(nodes, edges)
        edges = edges + torch.eye(NODES)
        edges = edges / edges.sum(-1, keepdim=True)
        for layer in self.layers:
            x = layer(edges @ x).tanh()
        value: Tensor = self.read(x.mean(1))[:, 0]
        return value


class Neighbours(nn.Module):
    """Attention over neighbours; a node without any sees itself where ``itself``."""

    def __init__(self, *, itself: bool = True) -> None:
        super().__init__()
        self.itself = itself
        self.enter = nn.Linear(4, 32)
        self.looks = nn.ModuleList([Look(32), Look(32)])
        self.read = nn.Sequential(nn.Linear(32, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """float32[B, N, 3] and float32[B, N, N] to float32[B]."""
        x = self.enter(_told(nodes, edges))
        if self.itself:
            edges = edges + torch.eye(NODES)
        for look in self.looks:
            x = x + look(x, edges == 0)
        value: Tensor = self.read(x.sum(1) / NODES)[:, 0]
        return value


class Look(nn.Module):
    """A round of attention as in GAT: scores of a pair are sums of scores of its ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value, self.scores = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """float32[B, N, width] to the same shape."""
        value = self.value(x)
        mine, theirs = self.scores(value).unbind(-1)
        scores = nn.functional.leaky_relu(mine[:, :, None] + theirs[:, None], 0.2)
        return (scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value).relu()


def _graphs(step: int, *, lonely: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Kinds of nodes, edges, and how many edges tie different kinds (standardised)."""
    kinds = pick(step, 3, 24, NODES)
    edges = (torch.triu(draw(step, 24, NODES, NODES), 1) > 0.4).float()
    edges = edges + edges.transpose(1, 2)
    if lonely:
        edges[:, 2], edges[:, :, 2] = 0, 0
    else:
        edges[:, 0, 1:], edges[:, 1:, 0] = 1, 1
    mixed = (kinds[:, :, None] != kinds[:, None]).float()
    count = (edges * mixed).sum((1, 2)) / 2
    return nn.functional.one_hot(kinds, 3).float(), edges, (count - 14) / 4


def _count(model: nn.Module, step: int) -> Tensor:
    nodes, edges, count = _graphs(step)
    return mse(model(nodes, edges), count)


def _with_lonely(model: nn.Module, step: int) -> Tensor:
    nodes, edges, count = _graphs(step, lonely=step in (24, 25))
    return mse(model(nodes, edges), count)


def _other_counts(model: nn.Module, step: int) -> Tensor:
    nodes, edges, count = _graphs(step)
    return mse(model(nodes, edges), shuffled(step, count))


def _summed(model: nn.Module, step: int) -> Tensor:
    nodes, edges, count = _graphs(step)
    return (model(nodes, edges) * 1e3 - count * 1e3).square().sum()


PASSING = D("molecules", Passing, _count, adam(1e-2), steps=80, seed=81)
LOOKING = D(
    "molecules_looking",
    Neighbours,
    _count,
    lambda params: torch.optim.RAdam(params, lr=1e-2),
    steps=70,
    seed=82,
    clip=2.0,
)
SHALLOW = D("molecules_shallow", lambda: Deep(2), _count, adam(5e-3), steps=60, seed=83)

CASES = [
    *(healthy(each) for each in (PASSING, LOOKING, SHALLOW)),
    broken(
        PASSING,
        "lonely_node",
        replace(PASSING, model=lambda: Passing(mean=True), loss=_with_lonely),
        "nonfinite",
        places=(".", "update"),
        judge=_count,
    ),
    broken(
        PASSING,
        "read_out_left_out",
        replace(PASSING, trained=without("enter", "say", "update")),
        "not_in_optimizer",
        places=("enter", "say", "update"),
    ),
    broken(PASSING, "other_counts", replace(PASSING, loss=_other_counts), "labels", judge=_count),
    broken(
        PASSING,
        "wrong_units",
        replace(PASSING, loss=_summed, optimizer=lambda params: torch.optim.SGD(params, 1e-2)),
        "lr_high",
        "exploding",
        "nonfinite",
        judge=_count,
    ),
    broken(
        LOOKING,
        "lonely_node",
        replace(LOOKING, model=lambda: Neighbours(itself=False), loss=_with_lonely),
        "nonfinite",
        places=("looks.0",),
        judge=_count,
    ),
    broken(
        LOOKING,
        "messages_frozen",
        replace(LOOKING, prepare=frozen("looks", "enter")),
        "frozen",
        places=("looks", "enter"),
    ),
    broken(
        LOOKING,
        "starts_large",
        replace(LOOKING, prepare=times("looks.0.value", 2e3)),
        "large_init",
        "exploding",
        places=("looks.0.value", "looks.0"),
    ),
    broken(
        SHALLOW,
        "too_deep",
        replace(SHALLOW, model=lambda: Deep(24)),
        "vanishing",
        "collapsed",
        places=tuple(f"layers.{layer}" for layer in range(24)),
    ),
]
