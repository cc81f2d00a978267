"""Measures small values, sparse ones and queries: CPU of all threads, beside other ways.

    python benchmarks/small_values.py [--rounds 7] [--markdown FILE]

Sides take turns, a different one first in each round; a ratio is the median of those of each round,
and the control is the plain side once more, to itself.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import Result, begin, parser, show

NUM_SITES, NUM_STEPS = 30, 1000
Side = Callable[[Path], object]
HOW = (
    "CPU of all threads of the process. Sides take turns, a different one first in each round; a "
    "ratio is the median of those of each round, and the control is the plain side once more, to "
    "itself."
)
QUERIES = {
    "one site": "select count(*), avg(mean) from {} where site = '7:output'",
    "all sites": "select site, max(l2), avg(std) from {} group by site order by site",
    "sorted": "select site, step, l2 from {} order by l2 desc limit 5",
}


def cpu_of(side: Side, folder: Path) -> float:
    start = time.process_time()
    side(folder)
    return time.process_time() - start


def in_turns(sides: dict[str, Side], rounds: int, home: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(-1, rounds):  # The first round is not counted.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            folder = home / f"{name.replace('/', ' ')} {number}"
            spent = cpu_of(sides[name], folder)
            shutil.rmtree(folder, ignore_errors=True)
            if number >= 0:
                found[name].append(spent)
    return found


def ratio(found: dict[str, list[float]], name: str, to: str, less: str | None = None) -> float:
    """The median over rounds; with ``less``, of what both take beyond that side."""
    base = found[less] if less else [0.0] * len(found[to])
    each = zip(found[name], found[to], base, strict=True)
    return median((one - none) / (other - none) for one, other, none in each)


def small_values(rounds: int, home: Path) -> list[Result]:
    from safetensors.torch import save_file

    layers = [nn.Linear(16, 16) for _ in range(NUM_SITES)]
    net, x = nn.Sequential(*layers).eval(), torch.randn(4, 16)

    def plain(_: Path) -> None:
        for _step in range(NUM_STEPS):
            net(x)

    def file_a_step(path: Path) -> None:
        path.mkdir()
        now: dict[str, torch.Tensor] = {}

        def keep(name: str) -> Any:
            return lambda _module, _given, out: now.__setitem__(name, out.clone())

        hooks = [one.register_forward_hook(keep(str(k))) for k, one in enumerate(layers)]
        for step in range(NUM_STEPS):
            net(x)
            save_file(now, path / f"{step}.safetensors")
        for hook in hooks:
            hook.remove()

    def watched(sink: Callable[[Path], Any]) -> Side:
        def side(path: Path) -> None:
            with tt.watch(net, ["?", "??"], to=sink(path)) as w:
                for _step in range(NUM_STEPS):
                    net(x)
                    w.step()

        return side

    sides: dict[str, Side] = {
        "plain": plain,
        "plain again": plain,
        "safetensors/step": file_a_step,
        "function": watched(lambda _: lambda record: None),
        "tt.Disk": watched(tt.Disk),
    }
    with torch.no_grad():
        found = in_turns(sides, rounds, home)
    spent = {name: median(each) / NUM_STEPS * 1e6 for name, each in found.items()}
    control = ratio(found, "plain again", "plain")
    detail = f"{spent['safetensors/step']:.0f} -> {spent['tt.Disk']:.0f} us a step"
    detail += f", plain {spent['plain']:.0f}, control {control:.2f}x"
    of_hooks = f"{spent['function']:.0f} us a step with a function that does nothing"
    what = f"{NUM_SITES} values of 256 B a step, to a safetensors file a step"
    disk, files = "tt.Disk", "safetensors/step"
    beyond = ratio(found, disk, files, less="plain")
    return [
        Result(what, f"{ratio(found, disk, files):.2f}x", "1x", detail),
        Result("the same beyond the plain loop", f"{beyond:.2f}x", "1x", of_hooks),
    ]


def queries(rounds: int, home: Path) -> list[Result]:
    import duckdb

    layers = [nn.Linear(16, 16) for _ in range(NUM_SITES)]
    net, x, path = nn.Sequential(*layers).eval(), torch.randn(4, 16), home / "measured"
    sinks = [tt.Disk(path, values=None), tt.Stats()]
    with torch.no_grad(), tt.watch(net, ["?", "??"], to=sinks) as w:
        for _ in range(4000):
            net(x)
            w.step()
    run, file = tt.open(path), path / "rank-00000" / "attempt-000" / "statistics.parquet"
    results = []
    for name, query in QUERIES.items():

        def on_file(_: Path, asked: str = query.format(f"'{file}'")) -> None:
            duckdb.sql(asked).fetchall()

        def on_run(_: Path, asked: str = query.format("statistics")) -> None:
            run.sql(asked).fetchall()

        sides: dict[str, Side] = {"file": on_file, "file again": on_file, "run": on_run}
        found = in_turns(sides, 3 * rounds, home)
        spent = {side: median(each) * 1e3 for side, each in found.items()}
        detail = f"{spent['file']:.1f} -> {spent['run']:.1f} ms"
        detail += f", control {ratio(found, 'file again', 'file'):.2f}x"
        what = f"run.sql, {name}, of 120,000 rows, to duckdb on the Parquet file"
        results.append(Result(what, f"{ratio(found, 'run', 'file'):.2f}x", "1.5x", detail))
    return results


def rows(home: Path) -> list[Result]:
    net, path = nn.Identity(), home / "rows"
    with tt.watch(net, to=tt.Disk(path)) as w:
        for step in range(10_000):
            net(torch.full((1, 16), float(step)))
            w.step()
    run = tt.open(path)
    spent = [cpu_of(lambda _: run.rows(".:output", range(10_000)), home) for _ in range(3)]
    what, again = "10,000 rows of as many small values", f"{min(spent[1:]):.3f} s again"
    return [Result(what, f"{spent[0]:.3f} s", "0.1 s", again)]


def sparse(home: Path) -> list[Result]:
    net, path = nn.Embedding(1_000_000, 128, sparse=True), home / "sparse"
    with tt.watch(net, "*:param_grad", to=tt.Disk(path)) as w:
        for _ in range(2):
            net.weight.grad = None
            net(torch.randint(0, 1_000_000, (32,))).sum().backward()
            w.step()
    files = [file for file in path.rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in files) / 2
    itself = 32 * (128 * 4 + 8)
    detail = f"{total / 1e3:.1f} kB a step, indices and values {itself / 1e3:.1f} kB, dense 512 MB"
    return [Result("sparse gradients, to their own bytes", f"{total / itself:.2f}x", "2x", detail)]


def main() -> None:
    """Print the table."""
    found = parser(__doc__ or "")
    found.set_defaults(rounds=7)
    options = begin(found)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        results = small_values(options.rounds, home) + queries(options.rounds, home)
        results += rows(home) + sparse(home)
    show(results, options, "What small values, queries and sparse values cost", __file__, HOW)


if __name__ == "__main__":
    main()
