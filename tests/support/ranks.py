"""Programs on real processes that torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torchtap

ABORTED = b"terminate called without an active exception"
"""The words of C++ when the interpreter ends while a thread of gloo waits for it: this aborts a
rank of any script now and then, on a loaded machine one in six, also without torchtap."""

_END = """
distributed.barrier()
print("right", rank, flush=True)
os._exit(0)  # PyTorch's own threads of gloo abort the interpreter's end now and then.
"""


def run_on_two_ranks(folder: Path, program: str) -> None:
    """Run a function as :func:`run_on_ranks` does, on two."""
    run_on_ranks(folder, program, 2)


def run_on_ranks(folder: Path, program: str, num_ranks: int) -> None:
    """Run a program that imports ``os`` and has ``distributed`` and ``rank``, and see it end."""
    script = folder / "program.py"
    script.write_text(program + _END)
    assert run_file(folder, script, num_ranks).count("right") == num_ranks


def run_file(folder: Path, script: Path, num: int, words: Sequence[str] = ()) -> str:
    """Run a program on some ranks, and return what they print.

    Args:
        folder: the first of its words, where it may write.
        script: the program.
        num: how many ranks.
        words: further ones.
    """
    source = Path(torchtap.__file__).parent.parent
    paths = [source, Path(__file__).parent, script.parent]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}",
         str(script), str(folder), *words],
        capture_output=True,
        text=True,
        timeout=120 if not words else 600,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
