"""Programs on real processes that torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torchtap

_END = """
distributed.barrier()
print("right", rank, flush=True)
os._exit(0)  # PyTorch's own threads of gloo abort the interpreter's end now and then.
"""


def run_on_two_ranks(folder: Path, program: str) -> None:
    """As :func:`run_on_ranks`, on two."""
    run_on_ranks(folder, program, 2)


def run_on_ranks(folder: Path, program: str, num_ranks: int) -> None:
    """Run a program that imports ``os`` and has ``distributed`` and ``rank``, and see it end."""
    script = folder / "program.py"
    script.write_text(program + _END)
    source = str(Path(torchtap.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={num_ranks}", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right") == num_ranks
