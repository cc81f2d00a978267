"""A design: a model, a task and a way to train it, of which cases are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from trainings.case import Case, Watched, Watching

Loss = Callable[[nn.Module, int], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
# The steps of the last score: data that no training sees.
UNSEEN = range(10_000, 10_004)


def adam(lr: float = 1e-3, *, decay: float = 0.0, eps: float = 1e-8) -> MakeOptimizer:
    """AdamW; with ``decay`` 0 it is Adam."""
    return lambda params: torch.optim.AdamW(params, lr=lr, weight_decay=decay, eps=eps)


def sgd(lr: float = 1e-2, *, momentum: float = 0.0, decay: float = 0.0) -> MakeOptimizer:
    """Plain SGD."""
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum, weight_decay=decay)


PLAIN_ADAM = adam()


@dataclass(frozen=True, slots=True)
class Design:
    """One training in plain PyTorch; a fault is planted by replacing a field."""

    name: str
    model: Callable[[], nn.Module]
    loss: Loss
    optimizer: MakeOptimizer = PLAIN_ADAM
    steps: int = 60
    seed: int = 0
    # Called with the model before the optimizer exists, and after.
    prepare: Callable[[nn.Module], object] = lambda model: None
    late: Callable[[nn.Module], object] = lambda model: None
    # Which parameters the optimizer gets.
    trained: Callable[[nn.Module], Iterable[nn.Parameter]] = lambda model: model.parameters()
    # Called with the step, after backward and before the optimizer's step; and after it.
    before_step: Callable[[int, nn.Module], object] = lambda step, model: None
    after_step: Callable[[int, nn.Module], object] = lambda step, model: None
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    clip: float | None = None
    context: Callable[[], AbstractContextManager[object]] = nullcontext
    # Multiplies the loss before backward, as a loss scaler does; gradients are divided again.
    scale: float = 1.0
    micro_batches: int = 1
    zeroes_grad: bool = True
    logs: bool = True

    def train(self, watching: Watching, judge: Loss) -> float:
        """Train, watched; the loss on unseen data by ``judge``."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = self.model()
            self.prepare(model)
            optimizer = self.optimizer(self.trained(model))
            schedule = None if self.schedule is None else self.schedule(optimizer)
            self.late(model)
            watched = watching(model)
            try:
                for step in range(self.steps):
                    self._step(step, model, optimizer, watched)
                    if schedule is not None:
                        schedule.step()
            finally:
                watched.close()
            return score(model, judge)

    def _step(self, step: int, model: nn.Module, optimizer: Optimizer, watched: Watched) -> None:
        if self.zeroes_grad:
            optimizer.zero_grad()
        total = 0.0
        for part in range(self.micro_batches):
            with self.context():
                loss = self.loss(model, step * self.micro_batches + part)
            (loss * self.scale / self.micro_batches).backward()
            total += float(loss.detach()) / self.micro_batches
        self._divide(model)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        self.before_step(step, model)
        optimizer.step()
        self.after_step(step, model)
        if self.logs:
            watched.log(loss=total)
        watched.step()

    def _divide(self, model: nn.Module) -> None:
        if self.scale != 1.0:
            for param in model.parameters():
                if param.grad is not None:
                    param.grad.div_(self.scale)


def score(model: nn.Module, judge: Loss) -> float:
    """The loss on unseen data in eval mode; Inf where it is not finite."""
    model.eval()
    value = sum(float(judge(model, step).detach()) for step in UNSEEN) / len(UNSEEN)
    return value if math.isfinite(value) else math.inf


def healthy(design: Design) -> Case:
    """A training without a fault."""
    return Case(design.name, lambda watching: design.train(watching, design.loss))


def broken(
    base: Design,
    name: str,
    design: Design,
    *kinds: str,
    places: tuple[str, ...] = (),
    judge: Loss | None = None,
) -> Case:
    """A training with one fault; it is judged by the loss of its healthy sibling."""
    name = f"{base.name}_{name}"
    named = replace(design, name=name)
    by = base.loss if judge is None else judge
    return Case(name, lambda w: named.train(w, by), kinds, places, base.name)


def draw(step: int, *shape: int) -> Tensor:
    """Normal numbers of a step, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(step))


def pick(step: int, high: int, *shape: int) -> Tensor:
    """Integers below ``high`` of a step, the same every time."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(step + 77_777))
