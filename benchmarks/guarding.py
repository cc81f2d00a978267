"""Measures ``tt.guard``: its price for a training step by parts, and the time to find an origin.

python benchmarks/guarding.py [--rounds 120] [--markdown FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.preserved import RandomState
from torchtap.diagnosis.origins import guard_engine
from torchtap.diagnosis.origins.guard_engine import GuardEngine
from torchtap.diagnosis.origins.kept_buffers import Buffers
from torchtap.diagnosis.origins.kept_calls import Kept

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import TinyGPT, resnet18
from report import HOW, Result, begin, compare, parser, show

Batch = tuple[Tensor, Tensor]
Make = Callable[[int], tuple[nn.Module, Batch]]
PIECES: tuple[tuple[Any, str, str], ...] = (
    (Kept, "enter", "a call of the model begins"),
    (RandomState, "read", "  of it: states of the random generators"),
    (Buffers, "keep", "  of it: buffers"),
    (Kept, "leave", "the call ends"),
    (Kept, "arrive", "a gradient arrives at its output"),
    (GuardEngine, "before_step", "the optimizer's step begins"),
    (guard_engine, "gradients_are_finite", "  of it: the gradients are read"),
    (GuardEngine, "after_step", "the optimizer's step ends"),
)
"""Functions of a guard that run once in a step, and what each does."""
NOTE = (
    "One model is trained on both sides, with one memory; the guard is opened before its blocks, "
    "and closed after them."
)


def training(model: nn.Module, batch: Batch, lr: float = 1e-3) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    x, y = batch

    def step() -> None:
        optimizer.zero_grad()
        logits = model(x)
        nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten()).backward()
        optimizer.step()

    return step


def gpt(batch: int) -> tuple[nn.Module, Batch]:
    tokens = torch.randint(65, (batch, 65))
    return TinyGPT(), (tokens[:, :-1], tokens[:, 1:])


def resnet(batch: int) -> tuple[nn.Module, Batch]:
    return resnet18(num_classes=10), (torch.randn(batch, 3, 64, 64), torch.randint(10, (batch,)))


def guarded(name: str, wanted: str, make: Make, size: int, rounds: int) -> Result:
    """One model on both sides; turns are short, so that both see the machine equally busy."""
    model, batch = make(size)
    step = training(model, batch)
    found = compare(
        step, step, rounds=rounds, repeats=4 if size == 8 else 1, inside=lambda: tt.guard(model)
    )
    wall = f", {found.wall:.3f}x by the time of day"
    return found.result(name, wanted, f", {found.more * 1e6:.0f} us more{wall}")


@contextmanager
def timed(owner: Any, name: str, times: list[float]) -> Iterator[None]:
    """Note the seconds of each call of a function."""
    function = getattr(owner, name)

    def run(*args: Any) -> Any:
        start = time.thread_time()
        result = function(*args)
        times.append(time.thread_time() - start)
        return result

    setattr(owner, name, run)
    try:
        yield
    finally:
        setattr(owner, name, function)


def pieces(name: str, make: Make, size: int, rounds: int) -> list[Result]:
    """Microseconds of each part of a guard, in the middle of a training, where caches are cold."""
    model, batch = make(size)
    step = training(model, batch)
    times: list[list[float]] = [[] for _ in PIECES]
    with ExitStack() as around:
        for (owner, function, _), own in zip(PIECES, times, strict=True):
            around.enter_context(timed(owner, function, own))
        around.enter_context(tt.guard(model))
        for _ in range(rounds):
            step()
    size_of = sum(one.numel() * one.element_size() for one in model.parameters()) / 1e6
    rows = []
    for (_, function, what), own in zip(PIECES, times, strict=True):
        detail = f"{size_of:.1f} MB" if function == "gradients_are_finite" else ""
        rows.append(Result(f"{name}, {what}", f"{median(own) * 1e6:.0f} us", "-", detail))
    return rows


def origin(name: str, model: nn.Module, batch: Batch) -> Result:
    """Seconds from the step that is not finite to its origin, and those of a plain step."""
    step = training(model, batch)
    step()
    began = time.thread_time()
    step()
    plain = time.thread_time() - began
    param = next(model.parameters())
    with torch.no_grad():
        param.view(-1)[0] = float("nan")
    found: list[tt.Origin] = []
    with tt.guard(model, on=found.append):
        began = time.thread_time()
        step()
        spent = time.thread_time() - began
    assert found
    detail = f"plain step {plain * 1e3:.0f} ms"
    return Result(f"{name}, from the step to the origin", f"{spent:.2f} s", "-", detail)


def main() -> None:
    options = begin(parser(__doc__))
    rounds = options.rounds
    rows = [
        guarded("tiny GPT, batch 8", "1.05x", gpt, 8, rounds),
        guarded("tiny GPT, batch 64", "1.01x", gpt, 64, rounds),
        guarded("ResNet-18 of 64x64, batch 4", "1.05x", resnet, 4, rounds),
        guarded("ResNet-18 of 64x64, batch 32", "1.01x", resnet, 32, rounds),
    ]
    rows += pieces("tiny GPT, batch 64", gpt, 64, min(rounds, 40))
    rows += pieces("ResNet-18, batch 32", resnet, 32, min(rounds, 40))
    rows += [origin("tiny GPT, batch 8", *gpt(8)), origin("ResNet-18, batch 4", *resnet(4))]
    show(rows, options, "What a guard costs a training", __file__, f"{HOW} {NOTE}")


if __name__ == "__main__":
    main()
