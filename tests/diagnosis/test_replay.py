"""A held call runs again to the bit: on a twin, from a folder, from the shell."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import module_db
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import torchtap as tt
from torchtap.cli import app
from torchtap.core.module_paths import modules_of
from torchtap.diagnosis.calls.replay import ReplayWarning, replayed
from torchtap.testing import Specimen, zoo

ZOO = [one for one in zoo() if one.raises is None]
SAMPLES = list(module_db.samples((torch.float32,), most=1))


def held_again(call: tt.Call, folder: Path) -> None:
    """The call runs again from a folder, and as much is compared as from memory."""
    call.save(folder / "case")
    again = replayed(folder / "case")
    assert again, again.differing
    assert again.compared.keys() == replayed(call).compared.keys()


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_every_module_of_the_zoo_runs_again_from_a_folder(
    specimen: Specimen, tmp_path: Path
) -> None:
    for path in modules_of(specimen.build())[0]:
        args, kwargs = specimen.inputs()
        try:
            call = tt.record_call(specimen.build(), path or ".", *args, **kwargs)
        except tt.CaptureError:
            continue
        held_again(call, tmp_path)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_module_of_torch_runs_again_to_the_bit(
    sample: module_db.Sample, tmp_path: Path
) -> None:
    module, args, kwargs = sample.build()
    with module_db.quiet():
        call = tt.record_call(module, ".", *args, **kwargs)
        assert replayed(call), replayed(call).differing
        held_again(call, tmp_path)


@pytest.mark.slow
def test_every_sample_of_every_module_of_torch_runs_again_to_the_bit() -> None:
    for sample in module_db.samples():
        module, args, kwargs = sample.build()
        with module_db.quiet():
            again = replayed(tt.record_call(module, ".", *args, **kwargs))
        assert again, (sample, again.differing)


class Draws(nn.Module):
    """Draws from every generator that there is."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(4)

    def forward(self, x: Tensor) -> Tensor:
        drawn = random.random() + np.random.rand() + self.numbers.random()
        return x * drawn + torch.randn(x.shape) + torch.randn(x.shape, generator=self.own)


def test_every_generator_is_as_at_the_call(tmp_path: Path) -> None:
    call = tt.record_call(nn.Sequential(nn.Dropout(0.5), Draws()), ".", torch.ones(4))
    random.seed(9)
    torch.manual_seed(9)
    states = torch.get_rng_state(), random.getstate()
    assert torch.equal(tt.replay(call), call.output)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    held_again(call, tmp_path)


def test_a_twin_with_other_weights_modes_and_seeds_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LSTM(4, 3))
    call = tt.record_call(model, ".", torch.randn(5, 4))
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    with torch.no_grad():
        for tensor in (*twin.parameters(), *twin.buffers()):
            tensor.zero_()
    torch.manual_seed(7)

    again = replayed(call, module=twin)
    assert again, again.differing
    assert again.result.parameters
    assert not any(one.any() for one in twin.parameters())
    assert not twin.training
    with pytest.raises(tt.InputError, match="same structure"):
        replayed(call, module=nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(tt.InputError, match="same sizes"):
        replayed(tt.record_call(nn.Linear(2, 2), ".", torch.ones(2)), module=nn.Linear(2, 3))


def test_a_difference_is_said_with_its_size() -> None:
    call = tt.record_call(nn.Linear(3, 2), ".", torch.ones(2, 3))
    wrong = dataclasses.replace(call.result, output=call.output + 0.5)
    with pytest.warns(ReplayWarning, match="output: 4 of 4 elements differ, by at most 0.5"):
        out = tt.replay(dataclasses.replace(call, result=wrong))
    assert torch.equal(out, call.output)


@pytest.mark.parametrize("what", ["random", "modes", "weights", "buffers"])
def test_without_one_of_the_parts_it_differs(what: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    model[1].eval()
    model[1].running_mean.fill_(0.3)
    call = tt.record_call(model, ".", torch.randn(4, 8))
    module, around = copy.deepcopy(call.module), dict(call.around)
    if what == "random":
        around["random"] = {
            **around["random"],
            "torch": torch.Generator().manual_seed(5).get_state(),
        }
    elif what == "modes":
        module.eval()
    elif what == "weights":
        next(module.parameters()).data.mul_(1.001)
    else:
        next(module.buffers()).zero_()
    assert replayed(call)
    assert not replayed(dataclasses.replace(call, module=module, around=around))


class Nested(nn.Module):
    """Takes and returns values of every kind."""

    def forward(self, packed: PackedSequence, more: dict[str, Any], *, scale: float) -> Any:
        out = packed.data * scale * more["w"][0] + more["sparse"].to_dense().sum()
        assert more["w"][0] is more["again"]
        return {"out": out, "shape": out.shape, "none": None, "dtype": out.dtype}


def test_nested_values_keep_their_kinds_and_identity(tmp_path: Path) -> None:
    weight = torch.randn(2, requires_grad=True)
    more = {
        "w": (weight, slice(1, None), torch.bfloat16, 1 + 2j, float("nan")),
        "again": weight,
        "sparse": torch.eye(3).to_sparse(),
    }
    packed = pack_sequence([torch.randn(3, 2), torch.randn(1, 2)])
    call = tt.record_call(Nested(), ".", packed, more, scale=0.5)
    assert call.args[1]["w"][0] is call.args[1]["again"]
    assert isinstance(call.args[0], PackedSequence)
    assert call.result.inputs
    held_again(call, tmp_path)


def test_a_block_of_gpt2_runs_again_to_the_bit(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16)
    model = transformers.GPT2Model(config)
    tokens = torch.randint(0, 32, (2, 6))
    call = tt.record_call(model, "h.1", tokens)
    assert "argument 1.layers.1.keys" in call.result.arriving  # The cache is part of the output.
    assert replayed(call)
    held_again(call, tmp_path)
    assert replayed(call, module=transformers.GPT2Model(config).h[1])


# --- from the shell ----------------------------------------------------------------------------


def test_the_command_says_what_was_compared_and_exits_with_1_where_it_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = tt.record_call(nn.Sequential(nn.Linear(3, 2)), "0", torch.ones(1, 3))
    call.save(tmp_path / "case")
    assert app.run(["replay", str(tmp_path / "case")]) == 0
    said = capsys.readouterr().out
    assert "equal to the bit" in said
    assert "1 output" in said

    wrong = dataclasses.replace(call.result, output=call.output + 1)
    dataclasses.replace(call, result=wrong).save(tmp_path / "other")
    assert app.run(["replay", str(tmp_path / "other"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["same"]
    assert told["compared"]["output"].startswith("2 of 2 elements differ")


@pytest.mark.parametrize("kind", ["nothing", "torn", "other", "gone class"])
def test_what_is_no_call_is_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tt.record_call(nn.ReLU(), ".", torch.ones(1)).save(tmp_path / "case")
    text = folder / "call.json"
    whole = text.read_text()
    if kind == "nothing":
        text.unlink()
    elif kind == "torn":
        text.write_text(whole[:100])
    elif kind == "other":
        text.write_text('{"format": "something"}')
    else:
        text.write_text(whole.replace("activation:ReLU", "activation:Gone"))
    assert app.run(["replay", str(folder)]) == 2
    assert "call.save" in capsys.readouterr().err
    with pytest.raises(tt.InputError):
        tt.replay(folder)


# --- what replays that trace a graph lose ------------------------------------------------------


class Doubles(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def custom_backward(x: Tensor) -> Tensor:
    return Doubles.apply(x)


def written_at_an_index(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = x[1] * 2
    return y


def written_through_a_view(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 1:].mul_(3)
    return y.square()


def written_out(x: Tensor) -> Tensor:
    held = torch.empty_like(x)
    torch.add(x.detach(), 1, out=held)
    return x * held


class Applies(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x))


@pytest.mark.parametrize(
    "function",
    [straight_through, custom_backward, written_at_an_index, written_through_a_view, written_out],
)
def test_a_backward_that_no_graph_of_the_forward_tells_is_repeated(
    function: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Applies(function), nn.Linear(3, 1)), torch.randn(4, 3)
    call = tt.record_call(model, "0", x, loss=torch.sum)
    model(x).sum().backward()
    again = replayed(call)
    assert again
    for name, param in model[0].named_parameters():
        assert param.grad is not None
        assert torch.equal(again.result.parameters[name], param.grad)
    held_again(call, tmp_path)


def test_a_call_replaces_an_earlier_one_and_makes_the_folders_above_it(tmp_path: Path) -> None:
    for size in (2, 5):
        call = tt.record_call(nn.Linear(size, size), ".", torch.ones(1, size))
        assert replayed(call.save(tmp_path / "new" / "case"))
        script = call.export(tmp_path / "other" / "case.py")
        assert replayed(script)
    names = sorted(one.name for one in tmp_path.rglob("*") if one.is_file())
    assert names == ["call.json", "call.safetensors", "case.py", "case.safetensors"]
