"""The inventory of a run, read from memory or from a file without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from records import record, run_of

from torchtap.core.absence import Absence
from torchtap.core.record import RECOMPUTE
from torchtap.core.site import Site
from torchtap.runs.inventory import Inventory, MeasuredEntry, SiteEntry, inventory_of_file
from torchtap.runs.run import inventory_of_run
from torchtap.runs.show import show_inventory


def test_a_site_that_was_kept_and_measured_has_one_line() -> None:
    kept = SiteEntry(Site("a"), "float32", (2, 3), 1, 1, 24)
    measured = tuple(MeasuredEntry(Site(path), "float32", (2, 3)) for path in "abc")
    inventory = Inventory("Net", (kept,), 1, 0, (0,), (), measured, 5)
    lines = show_inventory(inventory).text().splitlines()
    assert "Also 3 sites measured in 5 steps, 1 of them above; " in "\n".join(lines)
    assert [line.split()[0] for line in lines if ":output" in line] == [
        "a:output",
        "b:output",
        "c:output",
    ]


def test_a_file_lists_as_the_run_it_holds(tmp_path: Path) -> None:
    run = run_of(
        record("</script>", torch.zeros(2, 3)),
        record("z", torch.zeros(2, dtype=torch.complex128)),
        record("h", torch.zeros(2, 2, dtype=torch.bfloat16), port="grad_output"),
        record("h", torch.zeros(3, 2, dtype=torch.bfloat16), call=1, port="grad_output"),
        record("h", torch.zeros((), dtype=torch.bool), step=4, leaf="0.x"),
        record("h", torch.zeros(3), phase=RECOMPUTE),
        absent=[Absence(Site("gone"), "never ran")],
    )
    saved = run.save(tmp_path / "run.safetensors")
    assert inventory_of_file(saved) == inventory_of_run(run)
    assert inventory_of_file(saved).sites[1].dtype == "complex128"


def test_listing_a_file_does_not_import_torch(tmp_path: Path) -> None:
    saved = run_of(record()).save(tmp_path / "run.safetensors")
    code = (
        "import sys; from torchtap.runs.inventory import inventory_of_file; "
        f"print(len(inventory_of_file({str(saved)!r}).sites), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1", "False"]
