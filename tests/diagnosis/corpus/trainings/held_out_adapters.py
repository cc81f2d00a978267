"""Fine-tuning: low-rank adapters on a frozen body, a linear probe, and distillation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn
from trainings.data import rows_of, scaled, wine
from trainings.design import Design as D, adam, broken, draw, healthy, sgd
from trainings.faults import filled, shuffled, without


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank path beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Both paths."""
        return self.base(x) + 2 * self.up(self.down(x))


class Body(nn.Module):
    """A residual body and a head: float32[B, 13] to logits [B, 3]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Linear(13, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def features(self, x: Tensor) -> Tensor:
        """All but the head."""
        x = self.enter(x)
        x = x + nn.functional.gelu(self.first(self.norm1(x)))
        return x + nn.functional.gelu(self.second(self.norm2(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.features(x))


def _loss(model: nn.Module, step: int) -> Tensor:
    x, y = rows_of(step, 24, scaled(wine()[0]), wine()[1])
    return nn.functional.cross_entropy(model(x), y)


@cache
def _learnt() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        body = Body()
        optimizer = torch.optim.Adam(body.parameters(), lr=3e-3)
        for step in range(40):
            optimizer.zero_grad()
            # Another task: which of three sums is the largest.
            x = draw(step, 32, 13)
            aim = torch.stack([x[:, :4].sum(1), x[:, 4:8].sum(1), x[:, 8:12].sum(1)], 1).argmax(1)
            nn.functional.cross_entropy(body(x), aim).backward()
            optimizer.step()
    return body.state_dict()


def _pretrained() -> Body:
    body = Body()
    body.load_state_dict(_learnt())
    return body


def _adapters(zero: bool = False) -> nn.Module:
    body = _pretrained().requires_grad_(False)
    body.first, body.second = Adapted(body.first), Adapted(body.second)  # type: ignore[assignment]
    if zero:
        filled(0.0, "first.down", "second.down")(body)
    body.head = nn.Linear(64, 3)
    return body


def _probe(with_head: bool = True) -> nn.Module:
    body = _pretrained().requires_grad_(False)
    body.head = nn.Linear(64, 3).requires_grad_(with_head)
    return body


def _forgotten() -> nn.Module:
    """The body trains, and the new head was frozen with all else."""
    body = _probe(False)
    for name in ("enter", "first", "norm1"):
        body.get_submodule(name).requires_grad_(True)
    return body


class Student(nn.Module):
    """A small student and its frozen teacher."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.teacher = _teacher()
        self.student = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        """The student's logits."""
        return self.student(x.detach())


@cache
def _taught() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        body = Body()
        optimizer = torch.optim.Adam(body.parameters(), lr=3e-3)
        for step in range(60):
            optimizer.zero_grad()
            _loss(body, step).backward()
            optimizer.step()
    return body.state_dict()


def _teacher() -> Body:
    body = Body()
    body.load_state_dict(_taught())
    return body.requires_grad_(False)


def _distil(model: nn.Module, step: int, sign: float = 1.0) -> Tensor:
    x, y = rows_of(step, 24, scaled(wine()[0]), wine()[1])
    logits, taught = model(x), model.get_submodule("teacher")(x).div(2).softmax(-1)
    soft = nn.functional.kl_div((logits / 2).log_softmax(-1), taught, reduction="batchmean")
    return sign * (4 * soft + 0.3 * nn.functional.cross_entropy(logits, y))


def _away(model: nn.Module, step: int) -> Tensor:
    return _distil(model, step, -1.0)


def _other_labels(model: nn.Module, step: int) -> Tensor:
    x, y = rows_of(step, 24, scaled(wine()[0]), wine()[1])
    return nn.functional.cross_entropy(model(x), shuffled(step, y))


def _only_head(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


LORA = D("lora", _adapters, _loss, adam(1e-2), trained=_only_head)
PROBE = D("probe", _probe, _loss, sgd(0.1), trained=_only_head, seed=1)
DISTIL = D("distil", Student, _distil, adam(1e-2), trained=_only_head, seed=2, logs=False)
FULL = D("fine_tuned", _pretrained, _loss, adam(1e-3), seed=3, clip=1.0)

CASES = [
    healthy(LORA),
    healthy(PROBE),
    healthy(DISTIL),
    healthy(FULL),
    broken(
        LORA,
        "both_zero",
        replace(LORA, model=lambda: _adapters(True)),
        "symmetric",
        "vanishing",
        places=("first.down", "first.up", "second.down", "second.up"),
    ),
    broken(
        LORA,
        "adapters_not_given",
        replace(LORA, trained=without("first", "second")),
        "not_in_optimizer",
        places=("first.down", "first.up", "second.down", "second.up", "first"),
    ),
    broken(FULL, "new_head_frozen", replace(FULL, model=_forgotten), "frozen", places=("head",)),
    broken(DISTIL, "away", replace(DISTIL, loss=_away), "loss_rises", "exploding"),
    broken(PROBE, "other_labels", replace(PROBE, loss=_other_labels), "labels"),
    broken(FULL, "crawls", replace(FULL, optimizer=adam(1e-9)), "steps_too_small"),
]
