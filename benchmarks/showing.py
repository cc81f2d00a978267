"""What the page of a run costs: written in how long, how large, and ready in a browser in how long.

    .venv/bin/python benchmarks/showing.py [--steps 10000]

Medians of five, of one thread: seconds to write; bytes; milliseconds until the page is ready in a
headless Chromium, and until rows are sorted and filtered (from the event to the second frame).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchtap as tt
from torchtap.core.text import count, size
from torchtap.runs.run import Run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from browser import Visit, chromium

_ROUNDS = 5
_EVENT = """code => new Promise(done => {
  const start = performance.now();
  Function(code)();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
})"""
_SORT = "document.querySelector('#sites th[data-column=absmax] button').click()"
_FILTER = """const filter = document.getElementById('filter');
filter.value = filter.value ? '' : '*@Linear:grad_output';
filter.dispatchEvent(new Event('input'));"""


def main() -> None:
    """Entry point of the script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10_000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    head = ("run", "sites", "steps", "written", "page", "ready", "sorted", "filtered")
    print(("{:<24}" + "{:>10}" * 7).format(*head))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, run in (
            ("EfficientNet-Lite0, maps", pictures()),
            ("deep MLP", trained(asked.steps)),
        ):
            row = measured(run, Path(folder) / f"{name}.html", browser)
            sites, steps = count(len(run.sites)), count(len(run.steps))
            print(("{:<24}" + "{:>10}" * 7).format(name, sites, steps, *row), flush=True)


def measured(run: Run, path: Path, browser: Any) -> list[str]:
    """Return the figures of one page as text."""
    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        tt.report(run, path)
        seconds.append(time.perf_counter() - start)
    ready, is_sorted, is_filtered = [], [], []
    for _ in range(_ROUNDS):
        visit = Visit(browser, path)
        ready.append(
            visit.page.evaluate("performance.getEntriesByName('torchtap ready')[0].startTime")
        )
        visit.page.click("#tab-table")
        visit.page.wait_for_timeout(200)
        is_sorted.append(visit.page.evaluate(_EVENT, _SORT))
        is_filtered.append(visit.page.evaluate(_EVENT, _FILTER))
        visit.close()
    millis = [f"{statistics.median(one):.0f} ms" for one in (ready, is_sorted, is_filtered)]
    return [f"{statistics.median(seconds):.2f} s", size(path.stat().st_size), *millis]


def pictures() -> Run:
    """Maps of 20 modules of EfficientNet-Lite0, which sees the cat."""
    from torchtap.cli.demo import demo_batch, load_demo

    model, batch = load_demo(), demo_batch()[0]
    names = [name for name, one in model.named_modules() if isinstance(one, nn.BatchNorm2d)]
    with tt.watch(model, [f"{name}:output" for name in names[:: len(names) // 20][:20]]) as w:
        model(batch)
    return w.run


def trained(steps: int) -> Run:
    """About 350 sites of a deep net, over many steps."""
    layers = [one for _ in range(25) for one in (nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))]
    net = nn.Sequential(*layers, nn.Linear(16, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    with tt.watch(net, ["*:output,grad_output", "*:param_grad,update"], to=tt.Stats()) as w:
        for _ in range(steps):
            loss = net(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss.item())
            w.step()
    return w.run


if __name__ == "__main__":
    main()
