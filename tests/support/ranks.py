"""Programs on two real processes that torchrun starts."""

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
    """Run a program that imports ``os`` and has ``distributed`` and ``rank``, and see it end."""
    script = folder / "program.py"
    script.write_text(program + _END)
    source = str(Path(torchtap.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("right") == 2
