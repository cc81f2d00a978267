"""The codes of absences, of watches that miss values for known reasons."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import torchtap as tt
from torchtap.core.absence import CODES


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 2)
        self.held = nn.Linear(2, 2)
        self.frozen = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)
        self.cut = nn.Linear(2, 2)
        self.blocks = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cut(x).detach()
        return self.held(self.frozen(self.used(x)))


def _codes(run: tt.Run) -> dict[str, str]:
    return {str(entry.site): entry.code for entry in run.absent}


def _missing() -> tt.Run:
    model = _Net()
    model.frozen.requires_grad_(False)
    optimizer = torch.optim.SGD(model.used.parameters(), lr=0.1)
    where = "*:output,grad_output,param_grad,update"
    with tt.watch(model, where, to=tt.Stats()) as w:
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        w.step()
    return w.run


def test_each_reason_has_its_code_also_in_a_file(tmp_path: Path) -> None:
    run = _missing()
    for found in (_codes(run), _codes(tt.open(run.save(tmp_path / "run.safetensors")))):
        assert found["held:update[weight]"] == "not_in_optimizer"
        assert found["frozen:param_grad[weight]"] == "no_grad_required"
        assert found["unused:output"] == "not_called"
        assert found["cut:grad_output"] == "no_gradient"
        assert found["cut:param_grad[weight]"] == "no_gradient"
        assert found["blocks:output"] == "container"
        assert set(found.values()) <= CODES


def test_a_reason_without_a_code_of_its_own_is_other() -> None:
    assert tt.Absence(tt.Site(""), "the dog ate it").code == "other"
