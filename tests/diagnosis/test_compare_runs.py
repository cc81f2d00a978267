"""Two runs: compared as they were recorded, in memory, in files and in folders."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compare_situations import NAMES, conv_net, gpt, images, port_of, tokens
from torch import Tensor, nn

import torchtap as tt

EVERYTHING = "*:input,output,grad_input,grad_output,param,param_grad,buffer"


def recorded(
    model: nn.Module,
    *args: Any,
    where: str = EVERYTHING,
    to: Any = None,
    steps: int = 1,
    first: int | None = None,
    change: Callable[[int, nn.Module], object] | None = None,
) -> tt.Run:
    """The run of a model, of which a function may change something before each step."""
    torch.manual_seed(0)
    with tt.watch(model, where, to=to) as w:
        if first is not None:
            w.step(first)
        for step in range(steps):
            if change is not None:
                change(step, model)
            output = model(*args)
            if output.requires_grad:
                output.square().mean().backward()
            w.step()
    return w.run


def changed(change: Callable[[Any], object], model: nn.Module | None = None) -> nn.Module:
    found = copy.deepcopy(gpt() if model is None else model)
    with torch.no_grad():
        change(found)
    return found


def _set(module: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(module, name, value)


FAULTS: list[tuple[str, Callable[[Any], object], str, str, str]] = [
    ("weights", lambda m: m.blocks[1].fc.weight.mul_(1.5), "blocks.1.fc", "weights", "weight"),
    ("one weight", lambda m: m.blocks[0].attn.k.weight[3, 5].add_(1e-2), "blocks.0.attn.k",
     "weights", "weight"),
    ("gelu", lambda m: _set(m.blocks[0].act, approximate="tanh"), "blocks.0.act", "computation",
     "approximate is 'none'"),
    ("eps", lambda m: _set(m.blocks[1].ln2, eps=1e-3), "blocks.1.ln2", "computation", "eps is"),
    ("residual", lambda m: _set(m.blocks[1], residual=False), "blocks.1", "computation",
     "input of blocks.1.ln2"),
    ("mode", lambda m: m.blocks[0].drop.train(), "blocks.0.drop", "mode", "training"),
    ("relu", lambda m: _set(m.blocks[1], act=nn.ReLU()), "blocks.1.act", "computation",
     "GELU against ReLU"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "path", "cause", "text"), [fault[1:] for fault in FAULTS],
                         ids=[fault[0] for fault in FAULTS])  # fmt: skip
def test_the_planted_cause_is_named_first(
    change: Callable[[Any], object], path: str, cause: str, text: str
) -> None:
    one, two = recorded(gpt(), tokens()), recorded(changed(change), tokens())
    found = tt.compare(one, two)
    assert found.first is not None and not found.same
    assert (found.first.path, found.first.port, found.first.cause) == (path, "output", cause), found
    assert text in found.first.text, found.first.text
    assert not (found.only_a or found.only_b)


def test_a_run_does_not_differ_from_itself_in_memory_file_and_folder(tmp_path: Path) -> None:
    held = recorded(gpt(), tokens())
    file = held.save(tmp_path / "run.safetensors")
    recorded(gpt(), tokens(), to=tt.Disk(tmp_path / "run"))
    for other in (held, file, str(tmp_path / "run"), tt.open(tmp_path / "run")):
        found = tt.compare(held, other)
        assert found.same and not found.rows and found.first is None, found
        assert not (found.only_a or found.only_b)


def test_other_data_are_named_at_the_input_of_the_model() -> None:
    net = conv_net()
    one, two = recorded(net, *images()), recorded(net, images()[0] + 0.1)
    first = tt.compare(one, two).first
    assert first is not None
    assert (first.path, first.port, first.cause) == (".", "input", "input")


def test_buffers_are_named() -> None:
    net = conv_net().eval()
    other = changed(lambda m: m[1].running_var.mul_(2), net)
    first = tt.compare(recorded(net, *images()), recorded(other, *images())).first
    assert first is not None
    assert (first.path, first.cause) == ("1", "buffers") and "running_var" in first.text


def test_a_port_is_aligned_without_and_with_a_map() -> None:
    model = gpt()
    port = port_of(model)
    one, two = recorded(model, tokens()), recorded(port, tokens())
    for names in ({}, NAMES):
        found = tt.compare(one, two, map=names)
        assert found.same, found
        pairs = {(path, other) for path, other, _ in found.pairs}
        assert {
            ("blocks.1.attn.q", "body.layers.1.self_attention.q"),
            ("blocks.0.fc", "body.layers.0.mlp.0"),
            ("blocks.1.ln2", "body.layers.1.post_norm"),
            ("norm", "final"),
        } <= pairs
    with torch.no_grad():
        port.final.weight.mul_(1.1)
    first = tt.compare(one, recorded(port, tokens())).first
    assert first is not None
    assert (first.path, first.other, first.cause) == ("norm", "final", "weights")


def test_outputs_alone_tell_where_and_say_what_was_not_recorded() -> None:
    other = changed(lambda m: m.blocks[1].fc.weight.mul_(1.5))
    runs = [recorded(model, tokens(), where="*") for model in (gpt(), other)]
    first = tt.compare(runs[0], runs[1]).first
    assert first is not None and first.path == "blocks.1.fc"
    assert "Not recorded: input, param, buffer" in first.text


def test_statistics_alone_tell_where_and_give_a_lower_bound() -> None:
    other = changed(lambda m: m.blocks[1].fc.weight.mul_(1.5))
    kept = [recorded(model, tokens()) for model in (gpt(), other)]
    measured = [recorded(model, tokens(), to=tt.Stats()) for model in (gpt(), other)]
    exact, bound = tt.compare(*kept), tt.compare(*measured)
    assert bound.first is not None
    assert (bound.first.path, bound.first.cause) == ("blocks.1.fc", "weights"), bound
    assert any("statistics" in note for note in bound.notes)
    totals = {(row.path, row.port): row.total for row in exact.rows if row.port == "output"}
    for row in bound.rows:
        if row.port == "output":
            assert 0 < row.total <= totals[row.path, row.port] * (1 + 1e-6)
    assert tt.compare(measured[0], measured[0]).same
    assert tt.compare(kept[0], measured[0]).same  # One of each kind.


def test_the_first_step_that_differs_ends_the_comparison() -> None:
    def change(step: int, model: Any) -> None:
        if step == 2:
            with torch.no_grad():
                model[4].weight.mul_(1.01)

    one = recorded(conv_net(), *images(), steps=4)
    two = recorded(conv_net(), *images(), steps=4, change=change)
    found = tt.compare(one, two)
    assert found.first is not None
    assert (found.first.step, found.first.path, found.first.cause) == (2, "4", "weights")
    assert any("steps 0 to 2" in note and "1 later step was not" in note for note in found.notes)


def test_rounding_of_one_step_does_not_make_the_next_one_differ() -> None:
    def trained(dtype: torch.dtype) -> tt.Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(16, 4, dtype=torch.float64).to(dtype)
        with tt.watch(model, "*:*,param,param_grad,update") as w:
            for _ in range(5):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
                w.step()
        return w.run

    found = tt.compare(trained(torch.float64), trained(torch.float32))
    assert found.same, found
    assert any("Rounding of earlier steps" in note for note in found.notes)


def test_steps_that_only_one_has_are_said() -> None:
    one = recorded(conv_net(), *images(), steps=3)
    two = recorded(conv_net(), *images(), steps=2)
    found = tt.compare(one, two)
    assert found.same
    assert any("reference alone has step 2" in note for note in found.notes)
    apart = recorded(conv_net(), *images(), steps=2, first=100)
    found = tt.compare(two, apart)
    assert found.same and any("in their order" in note for note in found.notes)


def test_a_run_of_gradients_names_the_backward() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    class Hand(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Scaled.apply(x)

    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 2))
    two = copy.deepcopy(one)
    two[1] = Hand()
    x = torch.randn(3, 4)
    first = tt.compare(recorded(one, x), recorded(two, x)).first
    assert first is not None
    assert (first.path, first.port, first.phase) == ("1", "grad_input", "backward")
    assert first.cause == "computation"


def test_another_learning_rate_is_named_at_the_update() -> None:
    def trained(lr: float) -> tt.Run:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with tt.watch(model, "*:input,output,param,param_grad,update") as w:
            for _ in range(2):
                optimizer.zero_grad()
                model(torch.ones(4, 3)).square().mean().backward()
                optimizer.step()
                w.step()
        return w.run

    first = tt.compare(trained(0.1), trained(0.2)).first
    assert first is not None
    assert (first.port, first.phase, first.step) == ("update", "optimizer", 0)
    assert "lr is 0.1 in the reference and 0.2" in first.text


def test_shapes_that_differ_are_named() -> None:
    one, two = nn.Sequential(nn.Linear(4, 16)), nn.Sequential(nn.Linear(4, 8))
    x = torch.ones(3, 4)
    first = tt.compare(recorded(one, x), recorded(two, x)).first
    assert first is not None and first.total == float("inf") and first.path == "0"
    assert "float32[3, 16]" in first.text and "float32[3, 8]" in first.text


def test_runs_with_nothing_in_common_are_refused_with_a_way_out() -> None:
    one = recorded(nn.Sequential(nn.Linear(4, 4)), torch.ones(2, 4), where="0:output")
    two = recorded(nn.Sequential(nn.Conv1d(1, 1, 1), nn.Conv1d(1, 1, 1)), torch.ones(1, 1, 3),
                   where="1:output")  # fmt: skip
    with pytest.raises(tt.CompareError, match=r"nothing in common.*map="):
        tt.compare(one, two)
    with tt.watch(nn.ReLU()) as w:
        pass
    with pytest.raises(tt.CompareError, match="Nothing was recorded"):
        tt.compare(one, w.run)
    with pytest.raises(tt.CompareError, match="take no inputs"):
        tt.compare(one, one, torch.ones(1))


def test_near_misses_are_said() -> None:
    class Net(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            self.add_module(name, nn.Linear(3, 5))
            self.head = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.get_submodule(self.name)(x))

    x = torch.ones(2, 3)
    one = recorded(Net("attn"), x, where="attn:output")
    two = recorded(Net("atn"), x, where=["atn:input", "head:output"])  # type: ignore[arg-type]
    with pytest.raises(tt.CompareError, match="nothing in common"):
        tt.compare(one, two)
    one, two = recorded(Net("attn"), x), recorded(Net("atn"), x)
    found = tt.compare(one, two)
    assert ("attn", "atn", 0) in found.pairs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_within_rounding_and_says_what_it_hides(dtype: torch.dtype) -> None:
    model = gpt()
    one, two = recorded(model, tokens()), recorded(copy.deepcopy(model).to(dtype), tokens())
    found = tt.compare(one, two)
    assert found.same, found
    assert any(str(dtype).removeprefix("torch.") in note for note in found.notes)


def test_a_run_full_of_nan_equals_itself_and_says_so() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))
    runs = [recorded(net, torch.ones(2, 2)), recorded(net, torch.ones(2, 2), to=tt.Stats())]
    for run in runs:
        found = tt.compare(run, run)
        assert found.same and any("NaN in both" in note for note in found.notes)


def test_ranks_are_said() -> None:
    run = recorded(nn.Linear(2, 2), torch.ones(1, 2))
    from dataclasses import replace

    other = tt.Run(run.records(), replace(run.meta, rank=1, world_size=2))
    found = tt.compare(run, other)
    assert found.same
    assert any("rank 0 of 1" in note and "rank 1 of 2" in note for note in found.notes)


def test_the_other_way_round_is_the_mirror() -> None:
    one = recorded(gpt(), tokens())
    two = recorded(changed(lambda m: m.blocks[1].fc.weight.mul_(1.5)), tokens())
    there, back = tt.compare(one, two), tt.compare(two, one)
    assert there.first is not None and back.first is not None
    assert (there.first.path, there.first.cause) == (back.first.path, back.first.cause)
    totals = [[(row.path, row.port, row.total) for row in each.rows] for each in (there, back)]
    assert totals[0] == totals[1]


def _steps(*scales: float) -> tt.Run:
    """A run of a step for each scale of one batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    with tt.watch(model, "*:input,output,param") as w:
        for scale in scales:
            model(torch.full((2, 2), scale))
            w.step()
    return w.run


def test_the_headline_says_how_many_steps_were_compared_and_which_departs() -> None:
    short, long = _steps(1.0, 2.0), _steps(1.0, 2.0, 3.0, 4.0)
    there, back = tt.compare(short, long), tt.compare(long, short)
    assert there.same and back.same
    assert (list(there.steps), there.steps_alone) == ([0, 1], (0, 2))
    assert (list(back.steps), back.steps_alone) == ([0, 1], (2, 0))
    said = "do not differ in the 2 steps that both have; the {} has 2 more."
    for found, longer in ((there, "candidate"), (back, "reference")):
        assert said.format(longer) in " ".join(str(found).split())
    assert "do not differ in 2 steps." in str(tt.compare(short, short))

    other = _steps(1.0, 2.0, 3.5, 4.0)
    for found in (tt.compare(long, other), tt.compare(other, long)):
        assert found.first is not None
        assert (found.first.step, found.first.path, found.first.cause) == (2, ".", "input")
        assert "differ, first in step 2 at .:input" in str(found)
        assert (list(found.steps), found.to_dict()["steps"]) == ([0, 1, 2], [0, 1, 2])
