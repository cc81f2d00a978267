"""Networks that make or adapt others: generated weights, modulated features, and few shots."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from trainings.data import digits
from trainings.design import UNSEEN, Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import biased, everywhere, filled, frozen, times
from trainings.parts import fit, mse, on_targets, perceptron

HIDDEN, SHOTS, WAYS = 16, 5, 4


class Generated(nn.Module):
    """A network writes the weights of another for each row's task."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.task = perceptron(2, 32, act=nn.Tanh, end=(nn.Tanh(),))
        self.first = nn.Linear(32, 2 * HIDDEN)
        self.last = nn.Linear(32, HIDDEN + 1)

    def forward(self, x: Tensor) -> Tensor:
        """Position and task, float32[B, 3], to float32[B, 1]."""
        told = self.task(x[:, 1:])
        slope, offset = self.first(told).view(-1, 2, HIDDEN).unbind(1)
        if self.cut:
            slope, offset = slope.data, offset.data
        inner = torch.tanh(3 * slope * x[:, :1] + offset)
        weights = self.last(told)
        return (inner * weights[:, 1:]).sum(1, keepdim=True) + weights[:, :1]


class Modulated(nn.Module):
    """Features of the position are scaled and shifted by the task."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.hidden = nn.Linear(1, 32), nn.Linear(32, 32)
        self.change = nn.Linear(2, 64)
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Position and task, float32[B, 3], to float32[B, 1]."""
        scale, shift = self.change(x[:, 1:]).chunk(2, 1)
        inner = torch.tanh(self.enter(3 * x[:, :1]))
        inner = inner * (1 + scale) + shift
        done: Tensor = self.out(torch.relu(self.hidden(inner)))
        return done


def _family(step: int) -> tuple[Tensor, Tensor]:
    """Waves of their own height and phase."""
    x = torch.rand(96, 3, generator=torch.Generator().manual_seed(step)) * 2 - 1
    return x, (1 + x[:, 1:2]) * torch.sin(3 * x[:, :1] + 2 * x[:, 2:])


def _meta(*, inner: float = 0.05, mixes: bool = False, second: bool = True) -> Loss:
    """The loss on a task after one step on ten other points of it."""

    def loss(model: nn.Module, step: int) -> Tensor:
        total = torch.zeros(())
        with torch.enable_grad():
            for task in range(6):
                seed = step * 6 + task
                x = torch.rand(20, 1, generator=torch.Generator().manual_seed(seed)) * 4 - 2
                height, phase = 1.5 + 0.5 * draw(seed, 1), 0.7 * draw(seed + 7, 1)
                y = height * torch.sin(1.5 * x + phase)
                near = y[:10].roll(3, 0) if mixes else y[:10]
                params: dict[str, Tensor] = dict(model.named_parameters())
                error = mse(functional_call(model, params, (x[:10],)), near)
                slopes = torch.autograd.grad(error, [*params.values()], create_graph=second)
                pairs = zip(params.items(), slopes, strict=True)
                adapted = {name: param - inner * slope for (name, param), slope in pairs}
                total = total + mse(functional_call(model, adapted, (x[10:],)), y[10:]) / 6
        return total

    return loss


class Embedding(nn.Module):
    """A small convolutional encoder and how sharp distances are."""

    def __init__(self, *, normed: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16) if normed else nn.Identity(),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, stride=2, padding=1),
            nn.BatchNorm2d(24) if normed else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(96, 24),
        )
        self.sharp = nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Codes."""
        codes: Tensor = self.encoder(x)
        return codes


def _episode(step: int) -> tuple[Tensor, Tensor]:
    """Digits of four classes, class by class: the first five learnt from, five to classify."""
    x, y = digits()
    half = range(1400) if step < UNSEEN.start else range(1400, len(x))
    x, y = x[half.start :], y[half.start :]
    x, y = x[: len(half)], y[: len(half)]
    classes = torch.randperm(10, generator=torch.Generator().manual_seed(step))[:WAYS]
    rows = []
    for i, each in enumerate(classes):
        of_class = (y == each).nonzero()[:, 0]
        rows.append(of_class[pick(step + i, len(of_class), 2 * SHOTS)])
    shots = x[torch.stack(rows)]
    return shots[:, :SHOTS], shots[:, SHOTS:]


def _prototypes(*, repeats: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        support, query = _episode(step)
        codes = model(torch.cat([support.flatten(0, 1), query.flatten(0, 1)]))
        middle = codes[: WAYS * SHOTS].view(WAYS, SHOTS, -1).mean(1)
        away = torch.cdist(codes[WAYS * SHOTS :], middle).square()
        kinds = torch.arange(WAYS)
        wanted = kinds.repeat_interleave(SHOTS) if repeats else kinds.repeat(SHOTS)
        sharp: Tensor = model.sharp  # type: ignore[assignment]
        return nn.functional.cross_entropy(-sharp * away, wanted)

    return loss


GENERATED = D("generated", Generated, fit(_family, mse), adam(1e-2), steps=100, seed=31)
MODULATED = D(
    "modulated",
    Modulated,
    fit(_family, mse),
    lambda params: torch.optim.NAdam(params, lr=1e-2),
    steps=100,
    seed=32,
)
META = D(
    "meta_waves",
    lambda: perceptron(1, 24, 24, 1, act=nn.Tanh),
    _meta(),
    adam(5e-3),
    steps=80,
    seed=33,
)
SHOTS_OF = D("few_shots", Embedding, _prototypes(), adam(5e-3), steps=60, seed=34)
BARE = D(
    "few_shots_bare", lambda: Embedding(normed=False), _prototypes(), adam(4e-3), steps=80, seed=35
)

CASES = [
    *(healthy(each) for each in (GENERATED, MODULATED, META, SHOTS_OF, BARE)),
    broken(
        GENERATED,
        "weights_as_data",
        replace(GENERATED, model=lambda: Generated(cut=True)),
        "detached",
        places=("first",),
    ),
    broken(
        GENERATED,
        "writes_huge_weights",
        replace(GENERATED, prepare=times("first", 100.0)),
        "large_init",
        "saturated",
        places=("first", "."),
    ),
    broken(
        GENERATED,
        "of_other_tasks",
        replace(GENERATED, loss=fit(on_targets(_family, lambda step, y: y.roll(1, 0)), mse)),
        "labels",
        judge=GENERATED.loss,
    ),
    broken(
        GENERATED, "climbing_rate", replace(GENERATED, optimizer=sgd(8.0)), "lr_high", "exploding"
    ),
    broken(
        MODULATED,
        "task_frozen",
        replace(MODULATED, prepare=frozen("change", "enter")),
        "frozen",
        places=("change", "enter"),
    ),
    broken(
        MODULATED,
        "never_positive",
        replace(MODULATED, prepare=biased("hidden", -30.0)),
        "dead",
        places=("hidden", "."),
    ),
    broken(
        META,
        "inner_step_of_five",
        replace(META, loss=_meta(inner=5.0)),
        "lr_high",
        "exploding",
        judge=META.loss,
    ),
    broken(
        META,
        "other_labels_inside",
        replace(META, loss=_meta(mixes=True)),
        "labels",
        judge=META.loss,
    ),
    broken(
        META,
        "all_weights_alike",
        replace(
            META,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.1)
            ),
        ),
        "symmetric",
        places=("0", "2", "4"),
    ),
    broken(
        SHOTS_OF,
        "classes_in_other_order",
        replace(SHOTS_OF, loss=_prototypes(repeats=False)),
        "labels",
        judge=SHOTS_OF.loss,
    ),
    broken(
        SHOTS_OF,
        "only_sharpness_trained",
        replace(SHOTS_OF, prepare=frozen("encoder")),
        "frozen",
        places=("encoder",),
    ),
    broken(
        SHOTS_OF,
        "only_sharpness_given",
        replace(SHOTS_OF, trained=lambda model: [model.get_parameter("sharp")]),
        "not_in_optimizer",
        places=("encoder",),
    ),
    broken(
        BARE,
        "filters_alike",
        replace(BARE, prepare=filled(0.05, "encoder.0", "encoder.3")),
        "symmetric",
        places=("encoder.0", "encoder.3"),
    ),
    broken(BARE, "a_million_times_slower", replace(BARE, optimizer=adam(1e-8)), "steps_too_small"),
]
