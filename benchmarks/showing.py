"""The price of showing a run: its page, in a browser, and `torchtap top` beside a training.

    python benchmarks/showing.py [--steps 10000] [--rounds 5] [--markdown FILE]

Needs Chromium, Playwright and the packages of the demo.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchtap as tt
from torchtap.core.text import count, size
from torchtap.runs.run import Run

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from browser import Visit, chromium
from report import Result, begin, compare, parser, show

HOW = (
    "Medians over the rounds. Written: seconds that the thread computed. Ready: from the start of "
    "loading until everything works. Sorted, filtered: milliseconds that the page's thread "
    "computed (script, style, layout and painting), by the browser's own clock. `top` follows a "
    "training in another process at one frame a second; its share is of one core. The training's "
    "steps with `top` running are compared with those while it is stopped, in turns."
)
_FRAMES = 10
_SORT = "document.querySelector('#sites th[data-column=absmax] button').click()"
_FILTER = """const filter = document.getElementById('filter');
filter.value = filter.value ? '' : '*@Linear:grad_output';
filter.dispatchEvent(new Event('input'));"""


def main() -> None:
    """Entry point of the script."""
    words = parser(__doc__ or "")
    words.set_defaults(rounds=5)
    words.add_argument("--steps", type=int, default=10_000)
    options = begin(words)
    rows: list[Result] = []
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder)
        run = pictures()
        name, most = "EfficientNet-Lite0, maps of 20 modules", ("3 s", "1 MB", "500 ms")
        rows += of_page(name, run, path, browser, options.rounds, limits=most)
        run = trained(options.steps)
        name = f"{count(len(run.sites))} sites, {count(len(run.steps))} steps"
        rows += of_page(
            name, run, path, browser, options.rounds, limits=("20 s", "3 MB", "1000 ms")
        )
        rows += of_top(path / "live", options.rounds)
    show(rows, options, "The price of showing", __file__, HOW)


def of_page(
    name: str, run: Run, folder: Path, browser: Any, rounds: int, *, limits: tuple[str, str, str]
) -> list[Result]:
    """The rows of one page."""
    path, seconds = folder / "page.html", []
    for _ in range(rounds):
        start = time.thread_time()
        tt.report(run, path)
        seconds.append(time.thread_time() - start)
    ready, is_sorted, is_filtered = [], [], []
    for _ in range(rounds):
        visit = Visit(browser, path)
        mark = "performance.getEntriesByName('torchtap ready')[0].startTime"
        ready.append(visit.page.evaluate(mark))
        visit.page.click("#tab-table")
        visit.page.wait_for_timeout(300)
        is_sorted.append(computed(visit, _SORT))
        is_filtered.append(computed(visit, _FILTER))
        visit.close()
    found = [
        (f"{statistics.median(seconds):.2f} s", limits[0], "written"),
        (size(path.stat().st_size), limits[1], "page"),
        (f"{statistics.median(ready):.0f} ms", limits[2], "ready"),
        (f"{statistics.median(is_sorted):.0f} ms", "100 ms", "sorted"),
        (f"{statistics.median(is_filtered):.0f} ms", "100 ms", "filtered"),
    ]
    return [Result(f"{name}: {what}", got, most, "") for got, most, what in found]


def computed(visit: Visit, code: str) -> float:
    """Return the milliseconds that the page's thread computed for an event, to the second frame."""
    session = visit.context.new_cdp_session(visit.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        found = session.send("Performance.getMetrics")["metrics"]
        return next(1e3 * one["value"] for one in found if one["name"] == "TaskDuration")

    start = spent()
    visit.page.evaluate(
        """code => new Promise(done => {
          Function(code)();
          requestAnimationFrame(() => requestAnimationFrame(done));
        })""",
        code,
    )
    return spent() - start


def pictures() -> Run:
    """Maps of 20 modules of EfficientNet-Lite0, which sees the cat."""
    from torchtap.cli.demo import demo_batch, load_demo

    model, batch = load_demo(), demo_batch()[0]
    names = [name for name, one in model.named_modules() if isinstance(one, nn.BatchNorm2d)]
    with tt.watch(model, [f"{name}:output" for name in names[:: len(names) // 20][:20]]) as w:
        model(batch)
    return w.run


@contextmanager
def training(to: Any) -> Iterator[tuple[tt.Watch, Callable[[], None]]]:
    """A deep net of about 350 sites that is watched, and one step of its training."""
    layers = [one for _ in range(25) for one in (nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))]
    net = nn.Sequential(*layers, nn.Linear(16, 4))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    with tt.watch(net, ["*:output,grad_output", "*:param_grad,update"], to=to) as w:

        def step() -> None:
            loss = net(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss.item())
            w.step()

        yield w, step


def trained(steps: int) -> Run:
    """A run of about 350 sites over many steps."""
    with training(tt.Stats()) as (w, step):
        for _ in range(steps):
            step()
    return w.run


def of_top(path: Path, rounds: int) -> list[Result]:
    """The rows of ``torchtap top``: its share of a core, and its price for the training."""
    with training([tt.Disk(path, values=None), tt.Stats()]) as (w, step):
        for _ in range(20):
            step()
        w.sync()
        words = [sys.executable, "-m", "torchtap", "top", str(path)]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as top:
            try:
                end = time.monotonic() + 5  # Until it has started.
                while time.monotonic() < end:
                    step()
                begun, start = cpu_seconds(top.pid), time.monotonic()
                while time.monotonic() < start + _FRAMES:
                    step()
                share = (cpu_seconds(top.pid) - begun) / (time.monotonic() - start)

                def stopped() -> None:
                    top.send_signal(signal.SIGSTOP)
                    step()

                def running() -> None:
                    top.send_signal(signal.SIGCONT)
                    step()

                beside = compare(stopped, running, rounds=3 * rounds, repeats=50)
            finally:
                top.kill()
    name = f"top, {count(len(w.run.sites))} sites"
    return [
        Result(f"{name}: share of a core", f"{100 * share:.1f} %", "20 %", "one frame a second"),
        beside.result(f"{name}: a step of the training", "1.00x"),
    ]


def cpu_seconds(process: int) -> float:
    """Return the seconds that a process computed."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
