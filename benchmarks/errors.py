"""Measures a note of ``tt.explain_errors``: milliseconds beside the exception without one.

    python benchmarks/errors.py [--threads 1] [--rounds 25] [--markdown FILE]

Nothing runs for a note until something is raised, so a training that goes well pays nothing. The
first note in a process reads and parses source, and is measured in processes of its own. Needs
transformers.
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parent))
from report import HOW, Result, begin, compare, parser, show

Failing = Callable[[], object]
DEEP = 900
PROCESSES = 7
COLLECTIONS = (
    "After the imports a full garbage collection of Python is due, of 70 to 110 ms; it falls into "
    "whatever allocates next, the note or the exception without one. Of the first of a process, "
    "collections are timed apart, and told where one of all objects fell into it."
)
_MUCH = 5.0
"""Milliseconds of a collection that is told: of all objects, and not of the latest alone."""


def wrong_width() -> Failing:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(8, 2))
    x = torch.ones(5, 4)
    return lambda: net(x)


def wrong_width_in_gpt2() -> Failing:
    import transformers

    config = transformers.GPT2Config(n_embd=32, n_layer=12, n_head=2, vocab_size=50)
    config.bos_token_id = config.eos_token_id = 0
    model = transformers.GPT2LMHeadModel(config)
    model.transformer.h[9].mlp.c_fc = nn.Linear(8, 128)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    return lambda: model(tokens)


def overwritten() -> Failing:
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))

    def step() -> None:
        y = net(torch.ones(2, 8)).exp()
        y += 1
        y.sum().backward()

    return step


def freed() -> Failing:
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20)))

    def step() -> None:
        loss = net(torch.ones(2, 8)).exp().sum()
        loss.backward()
        loss.backward()

    return step


def in_a_long_file() -> Failing:
    """The failing line stands in no function, so that the whole file is parsed."""
    lines = ["import torch", *(f"def f{n}(a, b):\n    return [a + b * {n}]\n" for n in range(700))]
    path = Path(tempfile.mkdtemp()) / "train.py"
    path.write_text("\n".join([*lines, "torch.ones(2, 3) @ torch.ones(4, 5)", ""]))
    code = compile(path.read_text(), str(path), "exec")
    return lambda: exec(code, {"__name__": "__main__"})


def deep() -> Failing:
    def into(x: Tensor, depth: int) -> Tensor:
        return x @ torch.ones(4, 5) if depth == 0 else into(x, depth - 1)

    x = torch.ones(2, 3)
    return lambda: into(x, DEEP)


CASES: dict[str, tuple[Callable[[], Failing], float]] = {
    "a width that does not fit, in a Sequential": (wrong_width, 10),
    "a width that does not fit, in GPT-2 of transformers": (wrong_width_in_gpt2, 10),
    "a result of 20 layers that was overwritten": (overwritten, 10),
    "a second backward through 20 layers": (freed, 10),
    "a width that does not fit, in a script of 2,100 lines": (in_a_long_file, 10),
    f"a width that does not fit, below {DEEP} frames": (deep, 50),
}


def plain(failing: Failing) -> Callable[[], None]:
    def step() -> None:
        with contextlib.suppress(RuntimeError):
            failing()

    return step


def explained(failing: Failing) -> Callable[[], None]:
    def step() -> None:
        try:
            with tt.explain_errors():
                failing()
        except RuntimeError as error:
            assert "ways out" in error.__notes__[0] and "fault" not in error.__notes__[0]

    return step


def repeated(rounds: int) -> list[Result]:
    """Notes in a process that has given some before."""
    rows = []
    for name, (build, most) in CASES.items():
        failing = build()
        explained(failing)()
        found = compare(plain(failing), explained(failing), rounds=rounds, repeats=5)
        control = f"{found.before * 1e3:.2f} ms without, control {found.control:.3f}x"
        rows.append(Result(name, f"{found.more * 1e3:.1f} ms more", f"{most:.0f} ms", control))
    return rows


def first(rounds: int) -> list[Result]:
    """The first note of a process, the same exception having been raised without one before."""
    rows = []
    for at, (name, (_, most)) in enumerate(CASES.items()):
        spent = [_in_process(at) for _ in range(min(PROCESSES, rounds))]
        own = [one.noted - one.collecting for one in spent]
        due = [one.collecting for one in spent if one.collecting > _MUCH]
        detail = f"median of {len(spent)} processes, {min(own):.1f} to {max(own):.1f} ms"
        if due:
            detail += f"; a full collection fell into {len(due)}, {max(due):.0f} ms more"
        what = f"first of a process: {name}"
        rows.append(Result(what, f"{median(own):.1f} ms more", f"{most:.0f} ms", detail))
    return rows


class First(NamedTuple):
    """Milliseconds of the first note of a process.

    Attributes:
        noted: more than the exception without one.
        collecting: of these, spent in garbage collections.
    """

    noted: float
    collecting: float


def _in_process(at: int) -> First:
    command = [sys.executable, __file__, "--first", str(at)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return First(*map(float, said.split()[-2:]))


def measure_first(at: int) -> None:
    """In a process of its own: print the milliseconds of the first note, and of collections."""
    torch.set_num_threads(1)
    build, _ = list(CASES.values())[at]
    failing = build()
    tt.explain_errors()  # Imported, as by a program that uses it.
    collections: list[float] = []

    def collecting(phase: str, info: object) -> None:
        now = time.thread_time()
        collections.append(-now if phase == "start" else now)

    gc.callbacks.append(collecting)
    plain(failing)()
    spent = []
    for step in (plain(failing), explained(failing)):
        collections.clear()
        start = time.thread_time()
        step()
        spent.append((time.thread_time() - start, sum(collections)))
    (before, collected_before), (after, collected) = spent
    print(1e3 * (after - before + collected_before), 1e3 * collected)


def main() -> None:
    if "--first" in sys.argv:
        measure_first(int(sys.argv[-1]))
        return
    options = begin(parser(__doc__))
    rows = [*repeated(options.rounds), *first(options.rounds)]
    show(rows, options, "What a note of tt.explain_errors costs", __file__, f"{HOW} {COLLECTIONS}")


if __name__ == "__main__":
    main()
