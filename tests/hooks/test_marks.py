"""``tt.mark``: tensors inside a forward as sites."""

from __future__ import annotations

import pytest
import torch
from absent import reasons, reasons_at
from models import relu_mlp
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def test_a_mark_with_the_name_of_a_module_is_ignored_and_reported() -> None:
    model = Net(lambda net, x: tt.mark(net.fc(x) * 100, "fc"), fc=nn.Linear(2, 2))
    with tt.watch(model, "fc") as w:
        output = model(torch.ones(1, 2))
    assert torch.equal(w.run["fc:output"] * 100, output.detach())
    assert "a module has it" in reasons_at(w, "fc:output")[0]


def test_only_tensors_can_be_marked() -> None:
    with pytest.raises(tt.InputError, match=r"tt.mark 'x' got dict; expected a tensor"):
        tt.mark({}, "x")  # type: ignore[arg-type]


class Marked(nn.Module):
    def __init__(self, *, loops: int = 1) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.loops = loops

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.loops):
            x = tt.mark(2 * x, "doubled")
        return self.inner(x * x)


def test_a_mark_is_a_site() -> None:
    model, x = Marked(), torch.ones(2, requires_grad=True)
    with tt.watch(model, ["doubled:output,grad_output"]) as w:
        model(x).sum().backward()
    assert w.run["doubled:output"].tolist() == [2.0, 2.0]
    assert w.run["doubled:grad_output"].tolist() == [4.0, 4.0]


def test_a_mark_in_a_loop_counts_its_calls() -> None:
    model = Marked(loops=3)
    with tt.watch(model, "doubled") as w:
        model(torch.ones(1))
    assert [(r.call, r.value.item()) for r in w.run.records()] == [(0, 2.0), (1, 4.0), (2, 8.0)]


def test_a_star_takes_marks_too() -> None:
    model = Marked()
    with tt.watch(model, "*") as w:
        model(torch.ones(1))
    assert {str(site) for site in w.run.sites} == {".:output", "inner:output", "doubled:output"}


def test_a_mark_can_be_taken_away() -> None:
    model = Marked()
    with tt.watch(model, ["*", "!doubled"]) as w:
        model(torch.ones(1))
    assert "doubled:output" not in w.run


def test_a_mark_returns_its_very_tensor() -> None:
    x = torch.ones(1)
    assert tt.mark(x, "x") is x
    with tt.watch(Marked()):
        assert tt.mark(x, "x") is x


def test_a_mark_outside_of_a_watched_forward_is_not_recorded() -> None:
    with tt.watch(Marked(), "doubled") as w:
        tt.mark(torch.ones(1), "doubled")
        assert len(w.run) == 0


def test_a_mark_that_is_never_reached_is_an_error_at_the_end() -> None:
    model = Marked(loops=0)
    w = tt.watch(model, ["inner", "doubled"])
    model(torch.ones(1))
    with pytest.raises(tt.SiteError, match=r"no module 'doubled', and no tt\.mark"):
        w.close()


def test_a_misspelt_mark_is_an_error_that_names_the_near_one() -> None:
    model = Marked()
    w = tt.watch(model, ["inner", "dubled"])
    model(torch.ones(1))
    with pytest.raises(tt.SiteError, match="did you mean 'doubled'"):
        w.step()


def test_a_mark_pattern_on_a_model_that_never_ran_is_only_absent() -> None:
    with tt.watch(Marked(), "doubled") as w:
        pass
    assert list(reasons(w)) == ["doubled:output"]


def test_a_pattern_that_fits_nothing_is_an_error_at_once_without_marks() -> None:
    with pytest.raises(tt.SiteError):
        tt.watch(relu_mlp(), "doubled")
