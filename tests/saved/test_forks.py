"""Forks while tensors are in a spill file."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest


@pytest.mark.parametrize("is_flushed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_fork_in_between_changes_no_gradient(tmp_path: Path, is_flushed: bool) -> None:
    """Parent and child go back through the same graph, and then both go on."""
    script = tmp_path / "forks.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys, torch, torchtap as tt

            def chain(x):
                for _ in range(6):
                    x = x.sin().exp()
                return x.sum()

            signal.alarm(60)  # A child that hangs is ended.
            torch.set_num_threads(1)
            folder = os.path.join({str(tmp_path)!r}, "spill")
            os.mkdir(folder)
            x = torch.randn(512, 512, requires_grad=True)
            expected = torch.autograd.grad(chain(x), x)[0]
            off = tt.offload("disk", dir=folder)
            with off:
                loss = chain(x)
            if {is_flushed}:
                off.flush()
            child = os.fork()
            found = torch.autograd.grad(loss, x, retain_graph=True)[0]
            assert torch.equal(found, expected)
            for _ in range(3):
                with off:
                    later = chain(x)
                assert torch.equal(torch.autograd.grad(later, x)[0], expected)
            off.close()
            if child == 0:
                del loss
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0, "in the child"
            again = torch.autograd.grad(loss, x)[0]  # After the child has dropped its graph.
            assert torch.equal(again, expected)
            assert os.listdir(folder) == []
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
