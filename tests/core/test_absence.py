"""Absent sites, and their reasons as text."""

from __future__ import annotations

import torch
from records import record, run_of
from torch import Tensor, nn

from torchtap.capture.watch import watch
from torchtap.core import text as cells
from torchtap.core.absence import Absence, show_absences, show_absent
from torchtap.core.printed_page import Page
from torchtap.core.site import Site
from torchtap.runs.run import inventory_of_run
from torchtap.runs.show import show_inventory


def test_absent_sites_are_counted_and_reasons_joined() -> None:
    absent = [Absence(Site(f"head{n}"), "the module was not called") for n in range(5)]
    absent += [Absence(Site("x"), f"reason {n}") for n in range(4)]
    lines = Page(*show_absent(absent)).text().split("\n")
    assert lines[1] == "9 sites absent:"
    assert lines[2] == "  head0:output, head1:output and 3 more: the module was not called"
    assert lines[-1] == "  and 2 further reasons"
    assert show_absent([]) == []
    assert (
        "9 sites absent" in show_inventory(inventory_of_run(run_of(record(), absent=absent))).text()
    )


def test_absences_print_each_reason_once_with_its_sites() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.one, self.two = (nn.Linear(2, 2) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model = Skips()
    with watch(model, ["used:grad_output", "one", "two"]) as w:
        model(torch.ones(1, 2))
    lines = repr(w.absent).splitlines()
    assert lines[0] == "3 sites absent, 2 reasons"
    assert lines[2].startswith("no gradient arrived")
    assert "  used:grad_output" in lines
    assert "  one:output, two:output" in lines
    assert "Absence(" not in repr(w.absent) + repr(w.run.absent)
    assert all(cells.breadth(line) <= 100 for line in lines)


def test_absences_are_a_list_of_the_same_entries() -> None:
    entries = [Absence(Site("a"), "why"), Absence(Site("b"), "why")]
    found = run_of(record(), absent=entries).absent
    assert found == entries
    assert (found[0], found[-1], len(found), list(found)) == (*entries, 2, entries)
    assert entries[0] in found
    assert not run_of(record()).absent
    assert repr(run_of(record()).absent) == "Nothing is absent."


def test_many_sites_of_one_reason_are_cut_and_can_be_shown() -> None:
    absent = [Absence(Site(f"head{n}"), "the module was not called") for n in range(100)]
    assert "… 60 more …" in show_absences(absent).text()
    assert "head50:output" in show_absences(absent, limit=None).text()
    assert show_absences(absent).text().count("the module was not called") == 1
