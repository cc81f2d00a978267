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
        each = found.more / calls * 1e6
        detail = f"; {calls:,} calls of modules, {each:.1f} us more each"
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


def spent(function: Callable[[], object]) -> tuple[float, object]:
    """Seconds that a call computed, and what it returned."""
    start = time.thread_time()
    found = function()
    return time.thread_time() - start, found


def grown(number: int, rounds: int) -> list[Result]:
    """Measure what each part of a watch takes for a model of so many modules."""
    times: dict[str, list[float]] = {}
    sizes = []
    for _ in range(rounds):
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(number)))
        batch = torch.randn(2, 4)
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/run.safetensors"
            plain, _ = spent(lambda model=model, batch=batch: model(batch).sum().backward())
            attach, watch = spent(lambda model=model: tt.watch(model, WHERE, to=tt.Stats()))
            assert isinstance(watch, tt.Watch)
            gc.collect()
            tracemalloc.start()
            spent(lambda model=model, batch=batch: model(batch).sum().backward())
            end, _ = spent(watch.step)
            sizes.append(tracemalloc.get_traced_memory()[0] / (2 * number + 2))
            tracemalloc.stop()
            second, _ = spent(lambda model=model, batch=batch: model(batch).sum().backward())
            printing, _ = spent(lambda watch=watch: str(watch))
            close, _ = spent(watch.close)
            save, _ = spent(lambda watch=watch, file=file: watch.run.save(file))
            opening, run = spent(lambda file=file: tt.open(file))
            assert isinstance(run, tt.Run)
            table, _ = spent(lambda run=run: str(run.table()))
        parts = {
            "plan and attach": attach,
            "a step, more than plain": second - plain,
            "end a step": end,
            "print the watch": printing,
            "close": close,
            "save": save,
            "open": opening,
            "print the table": table,
        }
        for name, seconds in parts.items():
            times.setdefault(name, []).append(seconds)
    rows = []
    for name, found in times.items():
        best = min(found)
        detail = f"{best / number * 1e6:.1f} us a module"
        rows.append(Result(f"{number:,} modules: {name}", f"{best * 1e3:.2f} ms", "-", detail))
    memory = f"{min(sizes):,.0f} B"
    rows.append(Result(f"{number:,} modules: Python memory of a site", memory, "-", "-"))
    return rows


def main() -> None:
    options = begin(parser(__doc__))
    rows = real(options.rounds)
    for number in (1, 100, 10_000):
        rows += grown(number, 1 if number > 1000 else 5)
    how = (
        "Outputs and their gradients of all modules, measured every step; then what each part of "
        "a watch takes for 1, 100 and 10,000 Linear(4, 4), the least of several times. "
        f"{HOW}"
    )
    show(rows, options, "Real sizes", __file__, how)


if __name__ == "__main__":
    main()
