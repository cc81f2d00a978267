"""Measures watching: ratios of watched to plain, both measured in turns in one run.

    python benchmarks/watching.py [--threads 1] [--rounds 25] [--markdown FILE]

Each row alternates blocks of plain and watched steps, see ``report.compare``. The table goes to
stdout.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import nn

import torchtap as tt
from torchtap.stats.kernels import native

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from models import TinyGPT, resnet18
from report import HOW, Result, Step, begin, compare, parser, show


def fastest(step: Step, repeats: int) -> float:
    """Seconds per step in one block."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


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
    for every, wanted in ((1, "1.15"), (10, "1.02")):
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
            found = compare(plain, watched, rounds=rounds, repeats=20)
        rows.append(found.result(f"tiny GPT, every={every}", wanted))
        if every == 1:
            closed = compare(plain, step, rounds=rounds, repeats=20)
            rows.append(closed.result("tiny GPT, after close()", "1.00"))
    return rows


def copied_gpt(rounds: int) -> list[Result]:
    """The tiny GPT with every value copied, beside hooks that clone it."""
    rows = []
    for where in ("*:output", "*:output,grad_output"):
        model, twin, kept = TinyGPT(), TinyGPT(), list[object]()

        def hook(_: nn.Module, __: object, output: torch.Tensor, kept: list[object] = kept) -> None:
            kept.append(output.detach().clone())

        def both(_: nn.Module, __: object, output: torch.Tensor, kept: list[object] = kept) -> None:
            kept.append(output.detach().clone())
            output.register_hook(lambda gradient: kept.append(gradient.clone()))

        for module in twin.modules():
            if type(module).forward is not nn.Module.forward:
                module.register_forward_hook(hook if where == "*:output" else both)
        hooked, step = gpt_step(twin), gpt_step(model)
        with tt.watch(model, where, to=kept.append, copy="always") as w:

            def by_hand(hooked: Step = hooked, kept: list[object] = kept) -> None:
                hooked()
                kept.clear()

            def watched(step: Step = step, w: tt.Watch = w, kept: list[object] = kept) -> None:
                step()
                w.step()
                kept.clear()

            for _ in range(3):
                watched()
                by_hand()
            found = compare(by_hand, watched, rounds=rounds, repeats=20)
        rows.append(found.result(f"{where}, copy='always' to hooks that clone", "1.00"))
    return rows


def one_forward(rounds: int) -> list[Result]:
    """A watch that is opened and closed around one forward of the tiny GPT."""
    model, tokens = TinyGPT(), torch.randint(0, 65, (4, 32))
    rows, closing = [], []

    def hooked() -> None:
        handles = [one.register_forward_hook(lambda *_: None) for one in model.modules()]
        model(tokens)
        for handle in handles:
            handle.remove()

    for name, where, sink in (
        ("values kept", "*", tt.Memory),
        ("statistics", "*", tt.Stats),
        ("statistics, and of gradients", "*:output,grad_output", tt.Stats),
    ):

        def watched(where: str = where, sink: Callable[[], tt.Sink] = sink) -> None:
            with tt.watch(model, where, to=sink()):
                model(tokens)

        watched()
        found = compare(lambda: model(tokens), watched, rounds=rounds, repeats=10)
        rows.append(found.result(f"a watch around one forward, {name}", "1.50"))
        closing.append(Result(f"closing it, {name}", *closed(model, tokens, where, sink, rounds)))
    scales = {
        "34 empty hooks around one forward": hooked,
        "34 hooks that clone, straight into three tables each": cloning(model, tokens),
        "34 hooks that measure into rows made before": measuring(model, tokens),
    }
    found = {
        name: compare(lambda: model(tokens), step, rounds=rounds, repeats=10)
        for name, step in scales.items()
    }
    scale = [one.result(f"for scale: {name}", "-") for name, one in found.items()]
    return [*rows, *closing, *scale]


def put_in(modules: list[nn.Module], hook: Callable[..., None]) -> None:
    """Put one hook into the tables of modules, as a watch does, and hide it from nothing."""
    for module in modules:
        module._forward_hooks_with_kwargs[0] = module._forward_hooks_always_called[0] = True
        module._forward_hooks[0] = hook


def take_out(modules: list[nn.Module]) -> None:
    """Take it out again."""
    for module in modules:
        del module._forward_hooks[0]
        del module._forward_hooks_with_kwargs[0], module._forward_hooks_always_called[0]


def cloning(model: nn.Module, tokens: torch.Tensor) -> Step:
    """The least that keeps values: hooks that clone, and an alias that counts later writes."""
    modules, nothing = list(model.modules()), torch.empty(0)

    def step() -> None:
        kept = []

        def hook(_: nn.Module, __: object, ___: object, output: torch.Tensor) -> None:
            alias = output.detach()
            kept.append((alias.clone(), alias, alias._version))
            alias.data = nothing

        put_in(modules, hook)
        model(tokens)
        take_out(modules)

    return step


def measuring(model: nn.Module, tokens: torch.Tensor) -> Step:
    """The least that measures: hooks that call the kernel, with one row for all."""
    modules, row = list(model.modules()), torch.zeros(16, dtype=torch.float64)
    lists = native.SparseLog(1 << 18, 1 << 10)
    aim = native.KernelArgs(row, torch.zeros(8192, dtype=torch.int64), 2048, lists, 0)

    def hook(_: nn.Module, __: object, ___: object, output: torch.Tensor) -> None:
        native.take_address(output.data_ptr(), output.numel(), 0, aim.address, 1)

    def step() -> None:
        lists.clear()
        put_in(modules, hook)
        model(tokens)
        take_out(modules)

    return step


def closed(
    model: nn.Module, tokens: torch.Tensor, where: str, sink: Callable[[], tt.Sink], rounds: int
) -> tuple[str, str, str]:
    """Microseconds that opening and closing a watch take, with one forward in between."""
    times: list[tuple[float, float]] = []
    for _ in range(rounds * 4):
        start = time.thread_time()
        watch = tt.watch(model, where, to=sink())
        opened = time.thread_time()
        model(tokens)
        again = time.thread_time()
        watch.close()
        times.append((opened - start, time.thread_time() - again))
    open_, close = (median(one) * 1e6 for one in zip(*times, strict=True))
    return f"{close:.0f} us", "100 us", f"opening it {open_:.0f} us"


def first_watch(rounds: int) -> list[Result]:
    """Milliseconds that the first watch of a process takes, its imports included."""
    rows = []
    for name, how in (("values kept", ""), ("statistics", "to=tt.Stats()")):
        program = _FIRST_WATCH.format(how=how)
        command = [sys.executable, "-c", program]
        printed = [
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            for _ in range(max(rounds // 3, 5))
        ]
        first, collected, second = (median(map(float, one)) for one in zip(*printed, strict=True))
        detail = f"the second {second:.1f} ms; of the first {collected:.0f} ms in the collector"
        rows.append(
            Result(f"first watch of a process, {name}", f"{first:.0f} ms", "100 ms", detail)
        )
    return rows


_FIRST_WATCH = """
import gc, time, torch
import torchtap as tt
torch.set_num_threads(1)
model, x, spent, began = torch.nn.Linear(8, 8), torch.ones(1, 8), [], []
def count(phase, _):
    began.append(time.thread_time()) if phase == "start" else spent.append(
        time.thread_time() - began[-1])
gc.callbacks.append(count)
def one():
    start = time.thread_time()
    with tt.watch(model, {how}):
        model(x)
    return (time.thread_time() - start) * 1e3
print(one(), sum(spent) * 1e3, one())
"""


def watched_calls(rounds: int) -> list[Result]:
    """Microseconds per call of a tiny Linear, forward and backward apart."""
    plain, watched = nn.Linear(8, 8), nn.Linear(8, 8)
    batch, calls = torch.randn(4, 8), 500
    memory = tt.Memory()
    times: dict[nn.Module, list[tuple[float, float]]] = {plain: [], watched: []}
    with tt.watch(nn.Sequential(watched), "0:output,grad_output", to=memory) as w:
        for number in range(rounds * 2):
            for linear in (plain, watched) if number % 2 else (watched, plain):
                start = time.thread_time()
                outputs = [linear(batch) for _ in range(calls)]
                middle = time.thread_time()
                total = torch.stack(outputs).sum()
                again = time.thread_time()
                total.backward()
                times[linear].append((middle - start, time.thread_time() - again))
                linear.zero_grad()
                del outputs, total
            w.step()
            memory.clear()
    rows = []
    for place, name in enumerate(("forward", "backward")):
        before = median(block[place] for block in times[plain]) / calls * 1e6
        pairs = zip(times[plain], times[watched], strict=True)
        more = median(two[place] - one[place] for one, two in pairs) / calls * 1e6
        detail = f"plain {before:.2f} us"
        rows.append(Result(f"tiny Linear, {name}", f"+{more:.2f} us", "+4 us", detail))
    return rows


def bare_hook(rounds: int) -> Result:
    """Time of PyTorch itself for one empty forward hook plus one tensor hook."""
    plain, hooked = nn.Linear(8, 8), nn.Linear(8, 8)
    batch = torch.randn(4, 8)

    def hook(_: nn.Module, __: object, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: None)

    hooked.register_forward_hook(hook)

    def calls(linear: nn.Module) -> Step:
        return lambda: [linear(batch) for _ in range(500)]

    found = compare(calls(plain), calls(hooked), rounds=rounds * 2, repeats=1)
    detail = f"plain {found.before / 500 * 1e6:.2f} us"
    name = "for scale: empty hook + register_hook, forward"
    return Result(name, f"+{found.more / 500 * 1e6:.2f} us", "-", detail)


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
        found = compare(lambda: train(twin), watched, rounds=rounds, repeats=2)
    with tt.watch(model, leaf, to=kept.append) as w:
        watched()
        watched()
        copying = compare(lambda: train(twin), watched, rounds=rounds, repeats=2)
    more = f"; copy='auto', which copies what the in-place ReLUs overwrite: {copying.ratio:.3f}x"
    return found.result("ResNet-18, 8 x 64 px, no copies", "1.10", more)


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
        *copied_gpt(options.rounds),
        *one_forward(options.rounds),
        *first_watch(options.rounds),
        *watched_calls(options.rounds),
        bare_hook(options.rounds),
        watched_resnet(max(options.rounds // 3, 3)),
        flat_memory(options.steps),
    ]
    show(rows, options, "What watching costs", __file__, HOW)


if __name__ == "__main__":
    main()
