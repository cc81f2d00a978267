"""Measures watching at real sizes, and how its parts grow with the number of modules.

    python benchmarks/sizes.py [--threads 1] [--rounds 25] [--markdown FILE]

Each row of a training alternates blocks of plain and watched steps, see ``report.compare``.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import HOW, Result, Step, begin, compare, parser, show

WHERE = "*:output,grad_output"


class LSTMOfSteps(nn.Module):
    """An LSTM cell that is called once for each step of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(32, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Take a sequence, ``[steps, batch, 32]``."""
        state = torch.zeros(x.shape[1], 64), torch.zeros(x.shape[1], 64)
        for one in x:
            state = self.cell(one, state)
        found: Tensor = self.head(state[0])
        return found


def trained(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> Step:
    """A forward and backward."""

    def step() -> None:
        run(model).square().mean().backward()
        model.zero_grad()

    return step


def resnet50() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """ResNet-50, one image of 224 px."""
    image = torch.randn(1, 3, 224, 224)
    model = ResNetForImageClassification(ResNetConfig())
    return model.train(), lambda one: one(image).logits


def gpt() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """GPT-2 of 124 million parameters, 64 tokens."""
    tokens = torch.randint(0, 50257, (1, 64))
    return GPT2LMHeadModel(GPT2Config()).train(), lambda one: one(tokens).logits


def lstm() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """An LSTM cell over 200 steps, batch 8."""
    sequence = torch.randn(200, 8, 32)
    return LSTMOfSteps(), lambda one: one(sequence)


def real(rounds: int) -> list[Result]:
    """Trainings of real sizes, every step measured."""
    rows = []
    for name, build in (
        ("ResNet-50, one image of 224 px", resnet50),
        ("GPT of 124 M, 64 tokens", gpt),
        ("LSTM of 200 steps, batch 8", lstm),
    ):
        model, run = build()
        step, records = trained(model, run), [0]

        # One model, and one memory: two of this size would take each other's caches.
        def watched(model: nn.Module = model) -> tt.Watch:
            return tt.watch(model, WHERE, to=tt.Stats())

        def measured(step: Step = step, records: list[int] = records) -> None:
            step()
            records[0] += 1

        found = compare(step, measured, rounds=rounds, repeats=1, inside=watched)
        calls = called(model, run)
        detail = f"; {calls:,} calls of modules"
        rows.append(found.result(name, "-", detail))
    return rows


def called(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> int:
    """The number of calls of modules in one forward."""
    seen = [0]

    def count(*_: object) -> None:
        seen[0] += 1

    handles = [one.register_forward_hook(count) for one in model.modules()]
    run(model)
    for handle in handles:
        handle.remove()
    return seen[0]


def spent(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a call computed, and what it returned."""
    start = time.thread_time()
    found = function()
    return time.thread_time() - start, found


def grown(number: int, rounds: int) -> tuple[list[Result], int]:
    """Measure what each part of a watch takes for a model of so many modules.

    Returns:
        the rows, and bytes of Python memory.
    """
    times: dict[str, list[float]] = {}
    size = 0
    for _ in range(rounds):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(number)))
        step = trained(model, lambda one: one(torch.ones(2, 4)))
        plain = min(spent(step)[0] for _ in range(3))
        gc.collect()
        tracemalloc.start()
        watch = tt.watch(model, WHERE, to=tt.Stats())
        step()
        watch.step()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        watch.close()
        attach, watch = spent(lambda model=model: tt.watch(model, WHERE, to=tt.Stats()))
        step()
        found = {
            "plan and attach": attach,
            "a step, more than plain": min(spent(step)[0] for _ in range(3)) - plain,
            "end a step": spent(watch.step)[0],
            "print the watch": spent(lambda watch=watch: str(watch))[0],
            "close": spent(watch.close)[0],
            **read(watch.run),
        }
        for name, seconds in found.items():
            times.setdefault(name, []).append(seconds)
    rows = []
    for name, seconds in ((name, min(each)) for name, each in times.items()):
        detail = f"{seconds / number * 1e6:.1f} us a module"
        rows.append(Result(f"{number:,} modules: {name}", f"{seconds * 1e3:.2f} ms", "-", detail))
    return rows, size


def read(run: tt.Run) -> dict[str, float]:
    """Return the seconds that a run takes to be saved, opened and printed."""
    with tempfile.TemporaryDirectory() as folder:
        save, file = spent(lambda: run.save(f"{folder}/run.safetensors"))
        opening, saved = spent(lambda: tt.open(file))
        table, _ = spent(lambda: str(saved.table()))
    return {"save": save, "open": opening, "print the table": table}


def main() -> None:
    options = begin(parser(__doc__))
    rows = real(options.rounds)
    sizes = {}
    for number in (1, 100, 10_000):
        found, sizes[number] = grown(number, 1 if number > 1000 else 5)
        rows += found
    more = (sizes[10_000] - sizes[100]) / 2 / 9_900
    rows.append(Result("Python memory of a site", f"{more:,.0f} B", "-", "100 to 10,000 modules"))
    how = (
        "Outputs and their gradients of all modules, measured every step; then what each part of "
        "a watch takes for 1, 100 and 10,000 Linear(4, 4), the least of several times. "
        f"{HOW}"
    )
    show(rows, options, "Real sizes", __file__, how)


if __name__ == "__main__":
    main()
