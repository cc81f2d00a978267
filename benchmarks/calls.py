"""How many calls run again to the bit, how large they are, and what an audit shows.

    python benchmarks/calls.py [--samples N]

Prints the tables of `benchmarks/diagnosis.md`. A call is recorded, run again from memory and from
the folder that it was saved in, and compared: outputs, buffers, gradients of arguments and of
parameters. `--samples` limits how many of each module of `module_db` are taken (all by default).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.core.module_paths import modules_of
from torchtap.diagnosis.calls.replay import replayed
from torchtap.testing import zoo

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import module_db


class Tally:
    """The outcome of a set of calls."""

    def __init__(self) -> None:
        self.calls = self.same = self.saved = self.tensors = self.nbytes = self.held = 0

    def take(self, call: tt.Call) -> None:
        """Run it again, from memory and from a folder."""
        again = replayed(call)
        self.calls += 1
        self.same += bool(again)
        self.tensors += len(again.compared)
        self.held += call.nbytes
        with tempfile.TemporaryDirectory() as folder:
            call.save(folder)
            self.nbytes += sum(one.stat().st_size for one in Path(folder).iterdir())
            self.saved += bool(replayed(folder))

    def row(self, name: str) -> str:
        """Its line in the table."""
        held, size = self.held / self.calls / 1024, self.nbytes / self.calls / 1024
        return (
            f"| {name} | {self.calls:,} | {self.same:,} | {self.saved:,} | {self.tensors:,} | "
            f"{held:.1f} KiB | {size:.1f} KiB |"
        )


def of_zoo() -> Iterator[tt.Call]:
    """The first two calls of every module of every specimen."""
    for specimen in zoo():
        for path in modules_of(specimen.build())[0] if specimen.raises is None else ():
            for number in range(2):
                args, kwargs = specimen.inputs()
                try:
                    yield tt.record_call(
                        specimen.build(), path or ".", *args, call=number, **kwargs
                    )
                except tt.CaptureError:
                    break


def of_module_db(most: int | None) -> Iterator[tt.Call]:
    """Ready samples of every module of torch.nn."""
    for sample in module_db.samples(most=most):
        module, args, kwargs = sample.build()
        yield tt.record_call(module, ".", *args, **kwargs)


# ---------------------------------------------------------------------- some by name


class Net(nn.Module):
    """A body with children, as a function."""

    def __init__(self, body: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.body = body
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, x: Tensor) -> Any:
        """The body."""
        return self.body(self, x)


def attends(net: Any, x: Tensor) -> Any:
    """One tensor as query, key and value."""
    return net.inner(x, x, x)[0]


def eight_times(net: Any, x: Tensor) -> Any:
    """One linear, again and again."""
    for _ in range(8):
        x = torch.tanh(net.inner(x))
    return x


def checkpointed(net: Any, x: Tensor) -> Any:
    """The kind that autograd's saved tensors run again."""
    return checkpoint(net.inner, net.first(x), use_reentrant=False)


def reentrant(net: Any, x: Tensor) -> Any:
    """The kind that is a node."""
    return checkpoint(net.inner, net.first(x), use_reentrant=True)


def gpt2() -> tt.Call:
    """A block of transformers' GPT-2, in training mode, with its cache."""
    import transformers

    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=64, vocab_size=99)
    return tt.record_call(transformers.GPT2Model(config), "h.1", torch.randint(0, 99, (2, 12)))


def in_bfloat16() -> tt.Call:
    """A block under autocast."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        return tt.record_call(model, ".", torch.randn(2, 5, 16))


def dropped() -> nn.Module:
    """Calls that write in place, and draw random numbers."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.5))


NAMED: dict[str, Callable[[], tt.Call]] = {
    "block of GPT-2, with its cache": gpt2,
    "TransformerEncoderLayer under autocast bf16": in_bfloat16,
    "MultiheadAttention, q is k is v": lambda: tt.record_call(
        Net(attends, inner=nn.MultiheadAttention(8, 2)), "inner", torch.randn(5, 2, 8)
    ),
    "LSTM of two layers with dropout": lambda: tt.record_call(
        nn.LSTM(8, 6, 2, dropout=0.5), ".", torch.randn(5, 2, 8)
    ),
    "BatchNorm2d in train mode": lambda: tt.record_call(
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)), "1", torch.randn(2, 2, 8, 8)
    ),
    "in-place ReLU and Dropout": lambda: tt.record_call(dropped(), ".", torch.randn(4, 8)),
    "call 5 of 8 of one Linear": lambda: tt.record_call(
        Net(eight_times, inner=nn.Linear(8, 8)), "inner", torch.randn(4, 8), call=5
    ),
    "in a checkpoint": lambda: tt.record_call(
        Net(checkpointed, first=nn.Linear(8, 8), inner=dropped()), "inner", torch.randn(4, 8)
    ),
    "in a reentrant checkpoint": lambda: tt.record_call(
        Net(reentrant, first=nn.Linear(8, 8), inner=dropped()), "inner", torch.randn(4, 8)
    ),
}


def scripts(calls: list[tt.Call]) -> str:
    """How many exported scripts exit with 0 in a process of their own."""
    fine = 0
    for call in calls:
        with tempfile.TemporaryDirectory() as folder:
            script = call.export(f"{folder}/case.py")
            fine += subprocess.run([sys.executable, script], capture_output=True).returncode == 0
    return f"{fine} of {len(calls)} exported scripts of the named calls exit with 0."


def replay_table(most: int | None) -> str:
    """Calls that run again to the bit."""
    lines = [
        "| calls of | calls | to the bit | from a folder | tensors compared | held | on disk |",
        "|---|---|---|---|---|---|---|",
    ]
    sets = {"every module of the zoo": of_zoo(), "`module_db`": of_module_db(most)}
    for name, calls in sets.items():
        tally = Tally()
        for call in calls:
            tally.take(call)
        lines.append(tally.row(name))
    named = {name: make() for name, make in NAMED.items()}
    for name, call in named.items():
        tally = Tally()
        tally.take(call)
        lines.append(tally.row(name))
    return "\n".join([*lines, "", scripts(list(named.values()))])


# ---------------------------------------------------------------------- the audit


class Variance(nn.Module):
    """The variance as E[x^2] - E[x]^2, planted."""

    def forward(self, x: Tensor) -> Tensor:
        """The figures of each row."""
        return x + (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


class Loop(nn.Module):
    """One addition after the other, planted."""

    def forward(self, x: Tensor) -> Tensor:
        """The sum of many small parts."""
        total = x * 0
        for _ in range(20_000):
            total = total + x / 7
        return total


class Far(nn.Module):
    """Beyond float16, planted."""

    def forward(self, x: Tensor) -> Tensor:
        """Large in between."""
        return (x * 3e4).square() / 3e4


class Near(nn.Module):
    """All values close to a large one."""

    def forward(self, x: Tensor) -> Tensor:
        """Shifted."""
        return x + 1000


def audit_table() -> str:
    """Audits of healthy and of planted modules."""
    model = nn.Sequential(
        *(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Dropout(0.2)),
        *(nn.Softmax(-1), Far(), Near(), Variance(), nn.Linear(64, 64), Loop()),
    )
    start = time.process_time()
    table = tt.audit(model, torch.randn(8, 64), dtypes=("bfloat16", "float16", "fp8"))
    took = time.process_time() - start
    lines = ["| " + " | ".join(table.columns) + " |", "|---" * len(table.columns) + "|"]
    for row in table:
        cells = [
            row[name] if isinstance(row[name], str) else f"{row[name]:.2g}"
            for name in table.columns
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{took:.1f} s of the thread for {len(table)} modules."])


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=None)
    most = parser.parse_args().samples
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    print(audit_table(), "\n")
    print(replay_table(most))


if __name__ == "__main__":
    main()
