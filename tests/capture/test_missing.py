"""Why a site has no record."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from absent import reasons, reasons_at
from models import ones, scales, two_scales
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def test_parts_called_alone_say_why_there_are_no_parameters() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with tt.watch(model, "0.0:param,output") as w:
        model[0][0](torch.ones(1, 2))
    assert "only parts further inside were" in reasons_at(w, "0.0:param")[0]


def test_a_container_is_absent_because_it_is_never_called() -> None:
    model = Net(lambda net, x: net.blocks[0](x), blocks=nn.ModuleList([nn.ReLU()]))
    with tt.watch(model, "*") as w:
        model(torch.ones(1))
    assert reasons_at(w, "blocks:output") == ["it has no forward: a container is never called"]


def test_reasons_stay_what_they_were_once_the_model_is_freed(tmp_path: Path) -> None:
    model = Net(lambda net, x: net.blocks[0](x), blocks=nn.ModuleList([nn.Linear(1, 1)]))
    disk = tt.Disk(tmp_path / "run")
    w = tt.watch(model, "*:output,update", to=[tt.Memory(), disk])
    model(torch.ones(1)).sum().backward()
    before = reasons(w)
    del model
    gc.collect()
    assert reasons(w) == before
    w.close()
    w.run.save(tmp_path / "run.safetensors")
    made_none = "no optimizer made a step with it"
    assert before == {
        "blocks:output": "it has no forward: a container is never called",
        "blocks.0:update[weight]": made_none,
        "blocks.0:update[bias]": made_none,
    }
    for run in (tt.open(tmp_path / "run"), tt.open(tmp_path / "run.safetensors")):
        assert {str(site): reason for site, reason in run.absent} == before


def test_a_container_beside_a_compiled_part_is_reported_as_a_container() -> None:
    blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model = Net(lambda m, x: m.head(x), blocks=blocks, head=nn.Linear(3, 1))
    model.head.compile(backend="eager")
    for ran in (False, True):
        with tt.watch(model, "*:output") as w:
            if ran:
                model(torch.ones(2, 3))
        assert reasons_at(w, "blocks:output") == ["it has no forward: a container is never called"]


def test_a_model_that_never_ran_is_listed_as_absent() -> None:
    with tt.watch(two_scales(), "0") as w:
        pass
    assert [str(entry.site) for entry in w.absent] == ["0:output"]
    assert "was not called" in w.absent[0].reason


def test_a_module_that_its_parent_skips_is_listed_as_absent() -> None:
    model = Net(lambda m, x: m.used(x), used=scales(2.0), skipped=scales(3.0))
    with tt.watch(model) as w:
        model(ones())
    assert [str(entry.site) for entry in w.absent] == ["skipped:output"]
    assert "parent skipped it" in w.absent[0].reason


def test_a_module_that_ran_is_not_listed_as_absent() -> None:
    model = two_scales()
    with tt.watch(model) as w:
        model(ones())
    assert w.absent == []


def test_an_absent_site_says_why_when_it_is_asked_for() -> None:
    model = Net(lambda m, x: m.used(x), used=scales(2.0), skipped=scales(3.0))
    with tt.watch(model) as w:
        model(ones())
    with pytest.raises(tt.SiteError, match="parent skipped it"):
        w.run["skipped:output"]


class _Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.error: Exception | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.part(x)
        if self.error is not None:
            raise self.error
        return 2 * y


@pytest.mark.parametrize("to", [tt.Memory, tt.Stats])
@pytest.mark.parametrize("watched", [".:output", ".:*", ".:saved"])
def test_a_call_that_raised_is_absent_because_it_raised(to: Any, watched: str) -> None:
    model, x = _Raises(), torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, watched, to=to()) as w:
        model(x).sum().backward()
        assert not w.absent
        for error in (ValueError("of the model"), KeyError("once"), ValueError("of the model")):
            model.error = error
            with pytest.raises(type(error)):
                model(x)
    raised = ["2 calls raised ValueError", "a call raised KeyError"]
    ports = {".:output": ["output"], ".:saved": ["saved"]}
    for port in ports.get(watched, ["output", "grad_output", "grad_input"]):
        assert reasons_at(w, f".:{port}") == raised
    assert reasons_at(w, ".:input") == []


def test_a_module_that_returned_nothing_while_an_error_was_handled_did_not_raise() -> None:
    model = Net(lambda m, x: None)
    with tt.watch(model, "*:output") as w:
        try:
            raise ValueError("of the program")
        except ValueError:
            model(torch.ones(1))
    assert reasons_at(w, ".:output") == ["it returned no tensor that fits"]


def test_an_edit_never_happened_because_the_module_raised() -> None:
    model = _Raises()
    model.error = ValueError("of the model")
    with pytest.raises(tt.EditError, match="a call raised ValueError"):  # noqa: SIM117
        with tt.edit(model, ".:output", lambda value: value):
            with pytest.raises(ValueError, match="of the model"):
                model(torch.ones(1, 2))
