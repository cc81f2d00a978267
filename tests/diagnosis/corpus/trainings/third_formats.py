"""Petals told apart in 16 bits, in small batches, with a closure, with much dropout, and fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.case import Case, Watching
from trainings.design import Design as D, adam, broken, draw, healthy, pick, score, sgd
from trainings.faults import biased, everywhere, frozen, shuffled, times, without
from trainings.parts import cross_entropy, fit, mse, on_inputs, on_targets, perceptron


def _petals(step: int, num: int = 96) -> tuple[Tensor, Tensor]:
    """Points of a flower of six petals, in three colours by turns."""
    angle = 2 * math.pi * torch.rand(num, generator=torch.Generator().manual_seed(step))
    size = (1.5 + torch.sin(6 * angle)) * (0.7 + 0.1 * draw(step + 1, num))
    x = torch.stack([size * angle.cos(), size * angle.sin()], 1)
    return x, (angle / (2 * math.pi) * 6).long() % 3


def _few(step: int) -> tuple[Tensor, Tensor]:
    return _petals(step, 6) if step < 9_000 else _petals(step, 200)


def _lengths(step: int) -> tuple[Tensor, Tensor]:
    x = draw(step, 64, 4)
    return x, x[:, :1] * 2 - x[:, 1:2] + 0.5 * x[:, 2:3] * x[:, 3:]


def _bits(step: int) -> tuple[Tensor, Tensor]:
    """Ask whether three of eight bits add up to an odd number."""
    x = pick(step, 2, 256, 8).float()
    return 2 * x - 1, (x[:, :3].sum(1) % 2).long()


class InBfloat16(nn.Module):
    """A network whose weights are of 16 bits."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net.bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        """float32 in and out."""
        out: Tensor = self.net(x.bfloat16())
        return out.float()


def _net(*end: nn.Module) -> nn.Sequential:
    return perceptron(2, 64, 64, 3, end=end)


def _thick(drop: float = 0.6) -> nn.Module:
    """Wide, and most of it is dropped on purpose."""
    return nn.Sequential(
        nn.Linear(2, 256),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(128, 3),
    )


def _normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.ReLU(),
        nn.Linear(64, 3),
    )


def _half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def _brain() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _light(out: Tensor, y: Tensor) -> Tensor:
    """A term of a small weight: its gradients are below what 16 bits hold."""
    return 1e-7 * mse(out.float(), y)


def _cycles(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.CyclicLR(optimizer, 0.02, 0.6, step_size_up=15, cycle_momentum=False)


@dataclass(frozen=True, slots=True)
class Closed:
    """A training by LBFGS, which calls a closure several times a step."""

    name: str
    lr: float = 0.5
    change: Callable[[nn.Module], object] = lambda model: None
    data: Callable[[int], tuple[Tensor, Tensor]] = _petals
    trained: Callable[[nn.Module], object] = lambda model: model.parameters()
    steps: int = 20

    def train(self, watching: Watching) -> float:
        """One batch for all steps, as LBFGS wants it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(227)
            model = perceptron(2, 24, 24, 3, act=nn.Tanh)
            self.change(model)
            optimizer = torch.optim.LBFGS(self.trained(model), lr=self.lr, max_iter=4)  # type: ignore[arg-type]
            x, y = (torch.cat(parts) for parts in zip(*map(self.data, range(20)), strict=True))

            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return loss

            watched = watching(model)
            for _ in range(self.steps):
                loss = optimizer.step(closure)
                watched.log(loss=float(loss))
                watched.step()
            watched.close()
            return score(model, fit(_petals))


BRAIN = D(
    "petals_bfloat16",
    _net,
    fit(_petals),
    sgd(0.3, momentum=0.9),
    steps=100,
    seed=221,
    context=_brain,
)
WEIGHTS = D(
    "petals_weights_bfloat16",
    lambda: InBfloat16(_net()),
    fit(_petals),
    adam(1e-2),
    steps=100,
    seed=222,
)
SCALED = D(
    "lengths_half",
    lambda: perceptron(4, 32, 1, act=nn.SiLU),
    fit(_lengths, _light),
    adam(1e-2, eps=1e-14),
    steps=100,
    seed=223,
    context=_half,
    scale=2.0**20,
)
FEW = D("petals_few", _net, fit(_few), adam(5e-3), steps=80, seed=224, micro_batches=4)
THICK = D("petals_thick", _thick, fit(_petals), adam(1e-2), steps=120, seed=225)
FAST = D("petals_fast", _normed, fit(_petals), sgd(1.5), steps=80, seed=226, schedule=_cycles)
ODD = D(
    "odd_bits",
    lambda: perceptron(8, 64, 2),
    fit(_bits),
    sgd(0.5, momentum=0.9),
    steps=120,
    seed=228,
)

CASES = [
    *(healthy(each) for each in (BRAIN, WEIGHTS, SCALED, FEW, THICK, FAST, ODD)),
    Case("petals_closure", Closed("petals_closure").train),
    broken(BRAIN, "hot", replace(BRAIN, optimizer=sgd(30.0, momentum=0.9)), "lr_high", "exploding"),
    broken(
        BRAIN,
        "of_other_petals",
        replace(BRAIN, loss=fit(on_targets(_petals, shuffled))),
        "labels",
        judge=BRAIN.loss,
    ),
    broken(
        WEIGHTS,
        "rounded_away",
        replace(WEIGHTS, optimizer=adam(2e-5)),
        "stale_low_precision",
        "steps_too_small",
        places=("net.0", "net.2", "net.4", "net", "."),
    ),
    broken(
        WEIGHTS,
        "kept_as_they_were",
        replace(WEIGHTS, optimizer=sgd(1e-3)),
        "stale_low_precision",
        "steps_too_small",
        places=("net.0", "net.2", "net.4", "net", "."),
    ),
    broken(SCALED, "not_scaled", replace(SCALED, scale=1.0), "underflow", "vanishing"),
    broken(FEW, "never_cleared", replace(FEW, zeroes_grad=False), "no_zero_grad"),
    broken(
        FEW,
        "softmax_at_the_end",
        replace(FEW, model=lambda: _net(nn.Softmax(-1))),
        "double_softmax",
        places=("5",),
    ),
    broken(
        FEW,
        "rectified_at_the_end",
        replace(FEW, model=lambda: _net(nn.ReLU()), prepare=biased("4", -1.5)),
        "final_activation",
        "dead",
        places=("5",),
    ),
    broken(
        THICK,
        "drops_all_but_a_few",
        replace(THICK, model=lambda: _thick(0.99)),
        "dropout_high",
        places=("2", "5"),
    ),
    broken(
        THICK,
        "middle_frozen",
        replace(THICK, prepare=frozen("0", "3")),
        "frozen",
        places=("0", "3"),
    ),
    broken(
        THICK,
        "tiny_weights",
        replace(
            THICK,
            optimizer=sgd(0.05),
            prepare=everywhere(
                nn.Linear, lambda layer: [p.data.mul_(1e-3) for p in layer.parameters()]
            ),
        ),
        "small_init",
        "vanishing",
        "collapsed",
        places=("0", "3", "6"),
    ),
    broken(
        FAST,
        "always_in_eval",
        replace(FAST, late=lambda model: model.eval()),
        "bn_eval",
        places=("1", "4"),
    ),
    broken(
        FAST,
        "last_not_given",
        replace(FAST, trained=without("6")),
        "not_in_optimizer",
        places=("6",),
    ),
    broken(
        FAST,
        "in_milli_degrees",
        replace(FAST, loss=fit(on_inputs(_petals, lambda _, x: x + 3e6))),
        "data_scale",
        places=("0", "."),
        judge=fit(on_inputs(_petals, lambda _, x: x + 3e6)),
    ),
    broken(
        ODD,
        "no_activation",
        replace(ODD, model=lambda: perceptron(8, 64, 2, act=nn.Identity)),
        "no_activation",
        "collapsed",
        places=("0", "1", "2"),
    ),
    broken(
        ODD,
        "answers_moved",
        replace(ODD, loss=fit(on_targets(_bits, shuffled))),
        "labels",
        "collapsed",
        judge=ODD.loss,
    ),
    Case(
        "petals_closure_same_weights",
        Closed(
            "",
            change=everywhere(
                nn.Linear, lambda layer: nn.init.constant_(layer.get_parameter("weight"), 0.3)
            ),
        ).train,
        ("symmetric",),
        ("0", "2", "4"),
        "petals_closure",
    ),
    Case(
        "petals_closure_far_from_zero",
        Closed("", change=times("0", 400.0)).train,
        ("saturated", "large_init"),
        ("0", "1"),
        "petals_closure",
    ),
    Case(
        "petals_closure_of_others",
        Closed("", data=on_targets(_petals, shuffled)).train,
        ("labels",),
        (),
        "petals_closure",
    ),
]
