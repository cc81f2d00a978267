"""Measures ``tt.guard``: its price for a training step, and the time to find an origin.

python benchmarks/guarding.py [--rounds 25] [--markdown FILE]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import TinyGPT, resnet18
from report import HOW, Result, begin, compare, parser, show

Batch = tuple[Tensor, Tensor]
Make = Callable[[int], tuple[nn.Module, Batch]]


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
    (plain, batch), (model, _) = make(size), make(size)
    step, other = training(plain, batch), training(model, batch)
    with tt.guard(model) as guard:
        for _ in range(2):
            step(), other()
        found = compare(step, other, rounds=rounds, repeats=max(1, 64 // size))
        assert guard.origin is None
    return found.result(name, wanted)


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
    with tt.guard(model, on="warn") as guard:
        began = time.thread_time()
        step()
        spent = time.thread_time() - began
    assert guard.origin is not None
    detail = f"plain step {plain * 1e3:.0f} ms"
    return Result(f"{name}, from the step to the origin", f"{spent:.2f} s", "-", detail)


def main() -> None:
    options = begin(parser(__doc__))
    rows = [
        guarded(name, wanted, make, size, options.rounds)
        for name, wanted, make, size in (
            ("tiny GPT, batch 8", "1.05x", gpt, 8),
            ("tiny GPT, batch 64", "1.01x", gpt, 64),
            ("ResNet-18 of 64x64, batch 4", "1.05x", resnet, 4),
            ("ResNet-18 of 64x64, batch 32", "1.01x", resnet, 32),
        )
    ]
    rows += [origin("tiny GPT, batch 8", *gpt(8)), origin("ResNet-18, batch 4", *resnet(4))]
    show(rows, options, "What a guard costs a training", __file__, HOW)


if __name__ == "__main__":
    main()
