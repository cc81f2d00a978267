"""Clouds of points, sets and graphs: pooled by their maximum, attended to, summed, written anew."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import filled, frozen, shuffled, times, without
from trainings.parts import fit, mse, on_inputs, on_targets, perceptron

POINTS, NODES = 32, 10


def _clouds(step: int) -> tuple[Tensor, Tensor]:
    """Spheres, cubes, rings and sticks of their own size, turned, with noise."""
    y = pick(step, 4, 32)
    x = draw(step, 32, POINTS, 3)
    sphere = x / x.norm(dim=2, keepdim=True)
    cube = x / x.abs().amax(2, keepdim=True)
    ring = x * torch.tensor([1.0, 1.0, 0.0])
    ring = ring / ring.norm(dim=2, keepdim=True)
    stick = x * torch.tensor([0.1, 0.1, 1.0])
    kinds = torch.stack([sphere, cube, ring, stick], 1)
    turn = torch.linalg.qr(draw(step + 2, 32, 3, 3)).Q
    size = 0.8 + 0.4 * torch.rand(32, 1, 1, generator=torch.Generator().manual_seed(step))
    return size * kinds[torch.arange(32), y] @ turn + 0.03 * draw(step + 1, 32, POINTS, 3), y


class Pooled(nn.Module):
    """One network for each point, their maximum, and another network."""

    def __init__(self, *, mixes: bool = False) -> None:
        super().__init__()
        self.mixes = mixes
        self.each = nn.Sequential(
            nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU()
        )
        self.all = perceptron(64, 32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, N, 3] to logits [B, 4]."""
        codes = self.each(x.flatten(0, 1))
        if self.mixes:
            # Points first, as if they were the outer dimension: each cloud has points of all.
            codes = codes.view(-1, len(x), 64).transpose(0, 1)
        else:
            codes = codes.view(len(x), -1, 64)
        logits: Tensor = self.all(codes.amax(1))
        return logits


class Asked(nn.Module):
    """A few learnt questions look at a set, and a learnt seed at them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(2, 32)
        self.questions = nn.Parameter(torch.randn(1, 6, 32))
        self.look = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.feed = perceptron(32, 48, 32)
        self.out = nn.Linear(6 * 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, N, 2] to float32[B, 1]."""
        inner = self.enter(x)
        asked = self.questions.expand(len(x), -1, -1)
        seen = self.norm(asked + self.look(asked, inner, inner)[0])
        done: Tensor = self.out((seen + self.feed(seen)).flatten(1))
        return done


def _spread(step: int) -> tuple[Tensor, Tensor]:
    """The largest first coordinate, and half of the mean of the second."""
    x = draw(step, 48, 12, 2) * (0.5 + torch.arange(48)[:, None, None] % 3 * 0.5)
    return x, (x[..., 0].amax(1) + 0.5 * x[..., 1].mean(1))[:, None]


class Summed(nn.Module):
    """Each node adds up its neighbours, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(perceptron(a, 32, 32) for a in (1, 32, 32))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.out = nn.Linear(32, 3)

    def forward(self, near: Tensor) -> Tensor:
        """float32[B, N, N] to logits [B, 3]."""
        x = near.sum(2, keepdim=True) / 4
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x + near @ x)).relu()
        logits: Tensor = self.out(x.mean(1))
        return logits


def _graphs(step: int) -> tuple[Tensor, Tensor]:
    """A ring, two stars or a random graph, with an edge or two turned, and in random order."""
    y = pick(step, 3, 32)
    ring = torch.eye(NODES).roll(1, 0)
    stars = torch.zeros(NODES, NODES)
    stars[0, 1:5] = 1
    stars[5, 6:] = 1
    kinds = torch.stack([ring, stars, ring])
    near = kinds[y].clone()
    chance = torch.rand(32, NODES, NODES, generator=torch.Generator().manual_seed(step)).triu(1)
    near[y == 2] = (chance[y == 2] > 0.8).float()
    near = torch.maximum(near, (chance > 0.99).float())
    near = torch.maximum(near, near.transpose(1, 2))
    order = draw(step + 1, 32, NODES).argsort(1)
    rows = near.gather(1, order[:, :, None].expand(-1, -1, NODES))
    return rows.gather(2, order[:, None, :].expand(-1, NODES, -1)), y


class Rewritten(nn.Module):
    """A cloud as a code of eight numbers, and back."""

    def __init__(self, *end: nn.Module) -> None:
        super().__init__()
        self.each, self.code = perceptron(3, 32, 48), nn.Linear(48, 8)
        self.back = perceptron(8, 64, POINTS * 3, end=end)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, N, 3] to the same shape."""
        cloud: Tensor = self.back(self.code(self.each(x).amax(1)))
        return cloud.view_as(x)


def _chamfer(*, both: bool = True) -> Loss:
    """How far each point is from the nearest of the other cloud."""

    def loss(model: nn.Module, step: int) -> Tensor:
        x, _ = _clouds(step)
        out = model(x)
        away = torch.cdist(x, out).square()
        there = away.amin(1).mean()
        return there + away.amin(2).mean() if both else there

    return loss


def _far(step: int, x: Tensor) -> Tensor:
    """Coordinates of a map, in metres from its corner."""
    return x + torch.tensor([4.5e5, 5.4e6, 120.0])


def _stays_in_eval(step: int, model: nn.Module) -> None:
    """A validation after some steps turns to eval, and nobody turns back."""
    if step == 5:
        model.eval()


POOLED = D("clouds", Pooled, fit(_clouds), adam(1e-2), steps=80, seed=61)
ASKED = D("asked_sets", Asked, fit(_spread, mse), adam(5e-3), steps=90, seed=62, clip=1.0)
GRAPHS = D("small_graphs", Summed, fit(_graphs), adam(5e-3), steps=80, seed=63)
REWRITTEN = D("clouds_rewritten", Rewritten, _chamfer(), adam(3e-3), steps=80, seed=64)

CASES = [
    *(healthy(each) for each in (POOLED, ASKED, GRAPHS, REWRITTEN)),
    broken(
        POOLED,
        "on_a_map",
        replace(POOLED, loss=fit(on_inputs(_clouds, _far))),
        "data_scale",
        places=("each.0", "each", "."),
        judge=fit(on_inputs(_clouds, _far)),
    ),
    broken(
        POOLED,
        "left_in_eval",
        replace(POOLED, after_step=_stays_in_eval),
        "bn_eval",
        places=("each.3",),
    ),
    broken(
        POOLED,
        "reshaped_wrongly",
        replace(POOLED, model=lambda: Pooled(mixes=True)),
        "labels",
        "collapsed",
    ),
    broken(
        POOLED,
        "of_other_clouds",
        replace(POOLED, loss=fit(on_targets(_clouds, shuffled))),
        "labels",
        judge=POOLED.loss,
    ),
    broken(
        ASKED,
        "questions_alike",
        replace(
            ASKED, prepare=lambda model: nn.init.constant_(model.get_parameter("questions"), 0.5)
        ),
        "symmetric",
        places=(".", "look"),
    ),
    broken(
        ASKED,
        "column_forgotten",
        replace(ASKED, loss=fit(_spread, lambda out, y: (out - y.squeeze(1)).square().mean())),
        "labels",
        "collapsed",
        judge=ASKED.loss,
    ),
    broken(
        ASKED,
        "hot_and_unclipped",
        replace(ASKED, optimizer=sgd(2.0, momentum=0.9), clip=None),
        "lr_high",
        "exploding",
    ),
    broken(
        ASKED,
        "out_frozen",
        replace(ASKED, prepare=frozen("look", "enter", "feed")),
        "frozen",
        places=("look", "enter", "feed", "look.out_proj", "feed.0", "feed.2"),
    ),
    broken(GRAPHS, "decays", replace(GRAPHS, optimizer=adam(5e-3, decay=40.0)), "decay_high"),
    broken(
        GRAPHS,
        "layers_not_given",
        replace(GRAPHS, trained=without("layers")),
        "not_in_optimizer",
        places=("layers.0.0", "layers.0", "layers", "layers.1", "layers.2"),
    ),
    broken(
        REWRITTEN,
        "bounded_below",
        replace(REWRITTEN, model=lambda: Rewritten(nn.ReLU())),
        "final_activation",
        places=("back.3",),
    ),
    broken(
        REWRITTEN,
        "code_of_zeros",
        replace(REWRITTEN, prepare=filled(0.0, "code", "back.0")),
        "symmetric",
        "small_init",
        "vanishing",
        places=("code", "back.0", "back.2", "each.0", "each.2"),
    ),
    broken(
        REWRITTEN,
        "last_layer_huge",
        replace(REWRITTEN, prepare=times("back.2", 500.0)),
        "large_init",
        places=("back.2",),
    ),
    broken(
        REWRITTEN,
        "a_thousand_times_slower",
        replace(REWRITTEN, optimizer=adam(2e-7)),
        "steps_too_small",
    ),
]
