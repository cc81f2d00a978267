"""What watching costs: ratios of watched to plain, both measured in turns in one run.

    python benchmarks/watching.py [--threads 1] [--rounds 25] [--markdown FILE]

Each row alternates blocks of plain and watched steps and compares the fastest block of each, which
is what is left when other programs on the machine are quiet. The table goes to stdout.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from models import TinyGPT, resnet18
from report import Result, begin, parser, show

Step = Callable[[], object]


def fastest(step: Step, repeats: int) -> float:
    """Seconds per step in one block."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def compare(plain: Step, other: Step, *, rounds: int, repeats: int) -> tuple[float, float]:
    """Fastest block of each, measured in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, step in enumerate((plain, other)):
            best[place] = min(best[place], fastest(step, repeats))
    return best[0], best[1]


def gpt_step(model: nn.Module) -> Step:
    """A forward and backward of 4 x 32 tokens."""
    tokens = torch.randint(0, 65, (4, 32))

    def step() -> None:
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        model.zero_grad()

    return step


def watched_gpt(rounds: int) -> list[Result]:
    """The tiny GPT with outputs and gradients of all modules kept."""
    rows = []
    for every, wanted in ((1, "1.35"), (10, "1.04")):
        model, twin = TinyGPT(), TinyGPT()
        plain, step = gpt_step(twin), gpt_step(model)
        kept: list[tt.Record] = []
        with tt.watch(model, "*:output,grad_output", to=kept.append, every=every) as w:

            def watched(step: Step = step, w: tt.Watch = w, kept: list[tt.Record] = kept) -> None:
                step()
                w.step()
                kept.clear()

            for _ in range(3):
                watched()
            before, after = compare(plain, watched, rounds=rounds, repeats=20)
        detail = f"{before * 1e3:.2f} ms -> {after * 1e3:.2f} ms"
        rows.append(Result(f"tiny GPT, every={every}", f"{after / before:.3f}x", wanted, detail))
        if every == 1:
            before, after = compare(plain, step, rounds=rounds, repeats=20)
            detail = f"{before * 1e3:.2f} ms -> {after * 1e3:.2f} ms"
            ratio = f"{after / before:.3f}x"
            rows.append(Result("tiny GPT, after close()", ratio, "1.00", detail))
    return rows


def watched_calls(rounds: int) -> list[Result]:
    """Microseconds per call of a tiny Linear, forward and backward apart."""
    plain, watched = nn.Linear(8, 8), nn.Linear(8, 8)
    batch, calls = torch.randn(4, 8), 500
    memory = tt.Memory()
    best = {plain: [1.0, 1.0], watched: [1.0, 1.0]}
    with tt.watch(nn.Sequential(watched), "0:output,grad_output", to=memory) as w:
        for _ in range(rounds * 2):
            for linear, times in best.items():
                start = time.perf_counter()
                outputs = [linear(batch) for _ in range(calls)]
                middle = time.perf_counter()
                total = torch.stack(outputs).sum()
                again = time.perf_counter()
                total.backward()
                end = time.perf_counter()
                times[0] = min(times[0], (middle - start) / calls)
                times[1] = min(times[1], (end - again) / calls)
                linear.zero_grad()
                del outputs, total
            w.step()
            memory.clear()
    rows = []
    for place, name in enumerate(("forward", "backward")):
        before, after = best[plain][place] * 1e6, best[watched][place] * 1e6
        detail = f"plain {before:.2f} us"
        rows.append(Result(f"tiny Linear, {name}", f"+{after - before:.2f} us", "+4 us", detail))
    return rows


def bare_hook(rounds: int) -> Result:
    """What PyTorch itself takes for one empty forward hook plus one tensor hook."""
    plain, hooked = nn.Linear(8, 8), nn.Linear(8, 8)
    batch = torch.randn(4, 8)

    def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: None)

    hooked.register_forward_hook(hook)
    kept: list[torch.Tensor] = []

    def call(linear: nn.Module) -> Step:
        return lambda: kept.append(linear(batch))

    best = [1.0, 1.0]
    for _ in range(rounds * 2):
        for place, linear in enumerate((plain, hooked)):
            best[place] = min(best[place], fastest(call(linear), 500))
            kept.clear()
    detail = f"plain {best[0] * 1e6:.2f} us"
    name = "for scale: empty hook + register_hook, forward"
    return Result(name, f"+{(best[1] - best[0]) * 1e6:.2f} us", "-", detail)


def watched_resnet(rounds: int) -> Result:
    """ResNet-18, batch 8 of 64 px, all leaf outputs and gradients kept without copies."""
    model, twin = resnet18(num_classes=10), resnet18(num_classes=10)
    batch = torch.randn(8, 3, 64, 64)
    kept: list[tt.Record] = []

    def leaf(site: tt.Site, module: nn.Module) -> bool:
        return site.port in ("output", "grad_output") and not list(module.children())

    def train(network: nn.Module) -> None:
        network(batch).sum().backward()
        network.zero_grad()

    with tt.watch(model, leaf, to=kept.append, copy="never") as w:

        def watched() -> None:
            train(model)
            w.step()
            kept.clear()

        watched()
        before, after = compare(lambda: train(twin), watched, rounds=rounds, repeats=2)
    with tt.watch(model, leaf, to=kept.append) as w:
        watched()
        watched()
        _, copying = compare(lambda: train(twin), watched, rounds=rounds, repeats=2)
    detail = (
        f"{before * 1e3:.0f} ms -> {after * 1e3:.0f} ms; copy='auto', which copies what the "
        f"in-place ReLUs overwrite: {copying / before:.3f}x"
    )
    return Result("ResNet-18, 8 x 64 px, no copies", f"{after / before:.3f}x", "1.10", detail)


def flat_memory(steps: int) -> Result:
    """Python memory over many steps with a callable sink."""
    model = TinyGPT(layers=1)
    step = gpt_step(model)
    seen = [0]

    def sink(record: tt.Record) -> None:
        seen[0] += 1

    with tt.watch(model, "*:*,param_grad", to=sink) as w:
        for _ in range(50):
            step()
            w.step()
        gc.collect()
        tracemalloc.start()
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(steps):
            step()
            w.step()
        gc.collect()
        growth = tracemalloc.get_traced_memory()[0] - first
        tracemalloc.stop()
    detail = f"{seen[0]:,} records through a callable sink"
    return Result(f"{steps:,} steps, Python memory", f"{growth / 1024:+.1f} KiB", "flat", detail)


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--steps", type=int, default=2000)
    options = begin(flags)
    rows = [
        *watched_gpt(options.rounds),
        *watched_calls(options.rounds),
        bare_hook(options.rounds),
        watched_resnet(max(options.rounds // 3, 3)),
        flat_memory(options.steps),
    ]
    how = "Ratios of the fastest blocks of plain and watched steps, run in turns."
    show(rows, options, "What watching costs", __file__, how)


if __name__ == "__main__":
    main()
