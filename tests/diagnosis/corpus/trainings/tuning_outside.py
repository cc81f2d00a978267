"""Faults that people reported, ported as ideas to small trainings.

Of TrainCheck's issues: PyTorch 104336 and 115607, PyTorch forum 84911, Stack Overflow 60335387.
Others of that list are about ranks, generation or the time of a start, and have no form here.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import patches
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import biased

NAMES = ("brick", "grass", "gravel", "camera")


class Small(nn.Module):
    """Depthwise convolutions, batch norm and a head, as in EfficientNet: logits float32[B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2), nn.BatchNorm2d(12), nn.SiLU())
        self.deep = nn.Sequential(
            nn.Conv2d(12, 12, 3, groups=12, bias=False),
            nn.BatchNorm2d(12),
            nn.SiLU(),
            nn.Conv2d(12, 24, 1, bias=False),
            nn.BatchNorm2d(24),
            nn.SiLU(),
        )
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Pool at the end."""
        return self.fc(self.deep(self.stem(x)).mean((2, 3)))


def _classes(step: int) -> tuple[Tensor, Tensor]:
    x = torch.cat(
        [patches(step + 10 * i, name, 6, 32)[..., ::2, ::2] for i, name in enumerate(NAMES)]
    )
    return (x - 0.5) * 4, torch.arange(4).repeat_interleave(6)


def _loss(model: nn.Module, step: int) -> Tensor:
    x, y = _classes(step)
    return nn.functional.cross_entropy(model(x), y)


def _only_norms(model: nn.Module) -> None:
    for name, param in model.named_parameters():
        param.requires_grad_(name.split(".")[-2] in {"1", "4"})


def _moved(model: nn.Module) -> None:
    """Another device and back gives new parameters, which the optimizer does not know."""
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(param.detach().clone()))


def _new_head(model: nn.Module) -> None:
    model.fc = nn.Linear(24, 4)


def _none_from_20(step: int, model: nn.Module) -> None:
    if step >= 20:
        for param in model.parameters():
            param.grad = None


def _line(step: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(32, 8, generator=torch.Generator().manual_seed(step)) * 2 - 1
    return x, (x[:, :3].sum(1) > 0).float()


def _one_unit(model: nn.Module, step: int) -> Tensor:
    x, y = _line(step)
    return nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)


def _on_probabilities(model: nn.Module, step: int) -> Tensor:
    x, y = _line(step)
    return nn.functional.binary_cross_entropy(model(x)[:, 0].clamp(1e-6, 1 - 1e-6), y)


def _unit() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 1)
    )


EFFICIENT = D("efficient", Small, _loss, adam(5e-3), steps=50)
UNIT = D("one_unit", _unit, _one_unit, adam(5e-3), seed=1)

CASES = [
    healthy(EFFICIENT),
    healthy(UNIT),
    broken(
        EFFICIENT,
        "only_norms_trained",
        replace(EFFICIENT, prepare=_only_norms),
        "frozen",
        places=("deep.3", "deep.0", "fc", "stem.0"),
    ),
    broken(
        EFFICIENT,
        "moved_after_optimizer",
        replace(EFFICIENT, late=_moved),
        "not_in_optimizer",
        places=("stem.0", "stem", "."),
    ),
    broken(
        EFFICIENT,
        "head_after_optimizer",
        replace(EFFICIENT, late=_new_head),
        "not_in_optimizer",
        places=("fc",),
    ),
    broken(
        EFFICIENT,
        "grad_none_from_20",
        replace(EFFICIENT, before_step=_none_from_20),
        "updates_stop",
    ),
    broken(
        UNIT,
        "no_zero_grad",
        replace(UNIT, zeroes_grad=False, optimizer=adam(5e-2)),
        "no_zero_grad",
    ),
    broken(
        UNIT,
        "softmax_of_one",
        replace(UNIT, loss=_on_probabilities, model=lambda: nn.Sequential(_unit(), nn.Softmax(-1))),
        "final_activation",
        "vanishing",
        "double_softmax",
        "steps_too_small",
        places=("1",),
    ),
    broken(
        UNIT,
        "sigmoid_twice",
        replace(UNIT, model=lambda: nn.Sequential(_unit(), nn.Sigmoid())),
        "final_activation",
        places=("1",),
    ),
    broken(
        UNIT,
        "scheduled_each_batch",
        replace(UNIT, schedule=lambda opt: torch.optim.lr_scheduler.ExponentialLR(opt, 0.2)),
        "updates_stop",
        "steps_too_small",
    ),
    broken(
        UNIT,
        "dying",
        replace(UNIT, prepare=biased("2", -40.0), optimizer=sgd(0.1)),
        "dead",
        places=("3", "2"),
    ),
]
