"""Measures the index of a run: a million records in memory.

    python benchmarks/runs.py [--markdown FILE]

The records share one value, so that what is measured is the index alone.
"""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import torch

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import Result, begin, parser, show

from torchtap.core.record import FORWARD, UNVERSIONED, Record, new_record
from torchtap.runs.run import Meta, Run
from torchtap.runs.source import HeldSource

NUM_RECORDS, NUM_SITES = 1_000_000, 1_000
HOW = "1,000,000 records of 1,000 sites in 1,000 steps that share one value, in `tt.Memory`."


def filled() -> tuple[tt.Memory, float, float]:
    """A store with a million records, and the seconds that taking them and closing steps took."""
    ports = ("output", "grad_output")
    sites = [tt.Site(f"blocks.{n // 2}.attn", ports[n % 2]) for n in range(NUM_SITES)]
    memory, value, taking, closing = tt.Memory(), torch.zeros(1), 0.0, 0.0
    take = memory.take
    for step in range(NUM_RECORDS // NUM_SITES):
        start = time.perf_counter()
        for site in sites:
            take(new_record(Record, (site, step, 0, FORWARD, -1, (), value, UNVERSIONED)))
        middle = time.perf_counter()
        memory.close_step(step)
        taking, closing = taking + middle - start, closing + time.perf_counter() - middle
    return memory, taking, closing


def timed(action: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    options = begin(parser(__doc__))
    tracemalloc.start()
    memory, _, _ = filled()
    gc.collect()
    held, peak = (number / 1e6 for number in tracemalloc.get_traced_memory())
    tracemalloc.stop()
    rows = [Result("memory of the index", f"{held:.0f} MB", "200 MB", f"peak {peak:.0f} MB")]
    _, taking, closing = filled()
    for name, seconds in (("a record made and taken", taking), ("closing its step", closing)):
        rows.append(Result(f"{name}, each", f"{seconds / NUM_RECORDS * 1e6:.2f} us", "-", ""))

    def run() -> Run:
        modules = {f"blocks.{n}.attn": ("Attention",) for n in range(500)}
        return Run(HeldSource(memory.contents(), Meta(modules=modules)))

    for name, wanted, action in (
        ("run.sites", "0.2 s", lambda: run().sites),
        ("a pattern over them", "0.2 s", lambda: run().select("*.7*:grad_output")),
        ("run.steps", "-", lambda: run().steps),
        ("one value of one step", "-", lambda: run().get("blocks.7.attn", step=700)),
        ("the records of one site", "-", lambda: list(run().records("blocks.7.attn"))),
        ("all records, one by one", "-", lambda: sum(1 for _ in run().records())),
    ):
        best = min(timed(action) for _ in range(3))
        rows.append(Result(name, f"{best:.4f} s", wanted, ""))
    show(rows, options, "What the index of a run costs", __file__, HOW)


if __name__ == "__main__":
    main()
