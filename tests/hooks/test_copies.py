"""Copies and files of a model that torchtap is attached to: what they are without it."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import same
from copies import COPIES, written_by_torch
from models import mlp, relu_mlp, rows, seeded
from random_numbers import leaf
from torch import nn

import torchtap as tt
from torchtap.testing import Specimen, zoo

SEEN = ["*:*", "*:param,param_grad,update,buffer,saved"]
EDITED = "*:input,output,grad_input,grad_output,param_grad"
ATTACHED: dict[str, Callable[[nn.Module], Any]] = {
    "watched": lambda model: tt.watch(model, SEEN),
    "measured": lambda model: tt.watch(model, "*:*", to=tt.Stats()),
    "edited": lambda model: tt.edit(model, EDITED, lambda tensor: None, missing="ignore"),
    "offloaded": lambda model: tt.offload("disk", model=model, min_bytes=0, missing="ignore"),
    "frozen": lambda model: tt.freeze(model, "*:param,buffer"),
    "frozen with gradients": lambda model: tt.freeze(model, keep_grad=True),
}
every_attachment = pytest.mark.parametrize("attach", ATTACHED.values(), ids=list(ATTACHED))


def users_hook(module: nn.Module, args: Any, kwargs: Any = None, output: Any = None) -> None:
    """A hook of the user's."""


def build() -> nn.Sequential:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU()))
    model[0].register_forward_hook(users_hook, with_kwargs=True, always_call=True)
    model[1].register_forward_pre_hook(users_hook, with_kwargs=True)
    model[0].weight.note = "the user's"
    return model


def plain() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU()))


def run(model: nn.Module) -> None:
    """A step that leaves the model as it was, so that files can be compared."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model(torch.randn(4, 3, requires_grad=True)).sum().backward()
    model.zero_grad()
    for buffer, before in buffers:
        buffer.data.copy_(before)


def tables(model: nn.Module) -> list[Any]:
    """Keys, hooks and attributes of every hook table."""
    return [
        (path, name, list(table.items()), dict(vars(table)))
        for path, module in model.named_modules()
        for name, table in vars(module).items()
        if isinstance(table, OrderedDict)
    ]


def by_python(model: nn.Module) -> bytes:
    stream = io.BytesIO()
    pickle._Pickler(stream, 4).dump(model)
    return stream.getvalue()


WRITERS: dict[str, Callable[[nn.Module], bytes]] = {
    **{f"pickle {n}": lambda model, n=n: pickle.dumps(model, n) for n in range(2, 6)},  # type: ignore[misc]
    "pickle in Python": by_python,
    "torch.save": written_by_torch,
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=list(WRITERS))
@every_attachment
def test_a_file_is_that_of_the_unwatched_model_to_the_byte(attach: Any, write: Any) -> None:
    model = build()
    expected = write(model)
    with attach(model):
        assert write(model) == expected
        run(model)
        assert write(model) == expected
    assert write(model) == expected


@every_attachment
def test_a_copy_has_the_hooks_of_the_user_and_none_of_torchtap(attach: Any) -> None:
    model = build()
    expected = tables(copy.deepcopy(model))
    assert sum(len(items) for *_, items, _ in expected) == 5  # Two hooks and their three marks.
    with attach(model):
        twin = copy.deepcopy(model)
        again = copy.deepcopy(twin)
        assert tables(twin) == tables(again) == expected
        assert tables(pickle.loads(pickle.dumps(model))) == expected
    assert [param.requires_grad for param in twin.parameters()] == [True] * 4
    twin(torch.ones(2, 3))


@every_attachment
def test_nothing_stays_on_the_tables_and_parameters(attach: Any) -> None:
    model = build()
    saved = written_by_torch(model)
    before, attributes = tables(model), [dict(vars(param)) for param in model.parameters()]
    first = attach(model)
    with attach(model):
        first.__exit__(None, None, None)
        assert written_by_torch(model) == saved
    assert tables(model) == before
    assert [dict(vars(param)) for param in model.parameters()] == attributes


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@every_attachment
def test_a_copy_can_be_scripted(attach: Any) -> None:
    model = plain()
    with attach(model):
        scripted = torch.jit.script(copy.deepcopy(model).eval())
    x = torch.ones(2, 3)
    assert torch.equal(scripted(x), model.eval()(x))


@every_attachment
def test_a_file_loads_with_the_users_own_safe_globals(attach: Any) -> None:
    model = plain()
    with attach(model):
        stream = io.BytesIO(written_by_torch(model))
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.ReLU]):
        assert type(torch.load(stream, weights_only=True)) is nn.Sequential


def test_a_copy_of_a_watched_encoder_takes_the_fused_kernel(fused_calls: list[int]) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    with tt.watch(layer, "*:*"):
        twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin(torch.ones(1, 2, 8))
    assert fused_calls == [1]


def test_a_handle_that_the_model_holds_itself_takes_the_copied_hook_off() -> None:
    model = plain()
    model.handle = model[0].register_forward_hook(users_hook)  # type: ignore[assignment]
    with tt.watch(model, "*:*"):
        twin = copy.deepcopy(model)
        assert len(twin[0]._forward_hooks) == 1
        twin.handle.remove()
        assert not twin[0]._forward_hooks
        model.handle.remove()
        run(model)
    assert not model[0]._forward_hooks


def test_tied_parameters_of_a_frozen_model_are_tied_in_its_copy() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with tt.freeze(model, "0"), tt.freeze(model, "1:param[weight]"):
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert twin[0].weight is twin[1].weight is not model[0].weight
            assert twin[0].weight.requires_grad and twin[0].bias.requires_grad
        assert not model[0].weight.requires_grad


def test_what_did_not_require_grad_before_the_freeze_does_not_in_the_copy() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    with tt.freeze(model):
        twin = copy.deepcopy(model)
    assert twin.weight.requires_grad and not twin.bias.requires_grad


def keys(model: nn.Module) -> list[Any]:
    return [(path, name, [*dict(items)], held) for path, name, items, held in tables(model)]


@pytest.mark.parametrize("specimen", zoo(), ids=str)
def test_a_copy_of_a_specimen_has_nothing_of_torchtap(specimen: Specimen) -> None:
    model = specimen.build()
    expected, before = keys(copy.deepcopy(model)), keys(model)
    has_params = any(True for _ in model.parameters())
    handles = [tt.watch(model, "*:*"), tt.edit(model, "*", tt.edits.zero(), missing="ignore")]
    handles += [tt.freeze(model)] if has_params else []
    twin = copy.deepcopy(model)
    assert keys(twin) == expected
    for handle in handles:
        handle.close()
    assert keys(model) == before
    assert [one.requires_grad for one in twin.parameters()] == [
        one.requires_grad for one in model.parameters()
    ]


ALL = ["*:*", "*:param,param_grad"]


@pytest.mark.parametrize("copied", list(COPIES.values()), ids=list(COPIES))
def test_a_copy_of_a_watched_model_is_silent(copied: Any) -> None:
    model, x = relu_mlp(), rows()
    with tt.watch(model, "*:*") as w:
        twin = copied(model)
        out = twin(x)
        out.sum().backward()
        assert len(w.run) == 0
        model(x)
        assert same(w.run["2:output"], out)


def test_a_copy_outlives_the_watch() -> None:
    model = relu_mlp()
    with tt.watch(model, ALL):
        twin = copy.deepcopy(model)
    assert same(twin(rows()), model(rows()))


def test_a_copy_can_be_watched() -> None:
    model = relu_mlp()
    with tt.watch(model, ALL):
        twin = copy.deepcopy(model)
        with tt.watch(twin, "2") as w:
            out = twin(rows())
    assert same(w.run["2:output"], out)


_LOAD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchtap":
            raise ImportError("there is no torchtap here")

sys.meta_path.insert(0, Blocker())
import torch
model = torch.load(sys.argv[1], weights_only=False)
print(model(torch.ones(1, 3)).sum().item())
try:
    import torchtap
except ImportError as error:
    print(error)
"""


def test_a_pickle_of_a_watched_model_loads_where_there_is_no_torchtap(tmp_path: Path) -> None:
    model, file = relu_mlp(), tmp_path / "model.pt"
    with tt.watch(model, ALL):
        model(rows()).sum().backward()
        torch.save(model, file)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    value, blocked = done.stdout.splitlines()
    assert float(value) == model(torch.ones(1, 3)).sum().item()
    assert blocked == "there is no torchtap here"


def test_an_output_of_a_watched_model_can_be_saved() -> None:
    model, stream = relu_mlp(), io.BytesIO()
    with tt.watch(model, "*:*"), warnings.catch_warnings():
        warnings.simplefilter("error")
        out = model(rows())
        torch.save(out, stream)
    stream.seek(0)
    assert same(torch.load(stream), out)


def test_the_state_dict_of_a_watched_model_is_unchanged() -> None:
    model = relu_mlp()
    before = list(model.state_dict())
    with tt.watch(model, ALL):
        assert list(model.state_dict()) == before


ONES = torch.ones(2, 3)


@pytest.mark.parametrize("copied", COPIES.values(), ids=list(COPIES))
def test_a_copy_of_an_edited_model_is_plain(copied: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    plain = model(ONES)
    everything = "*:input,output,grad_input,grad_output,param_grad"
    with tt.edit(model, everything, tt.edits.zero(), missing="ignore") as edit:
        twin = copied(model)
        out = twin(ONES)
        out.sum().backward()
        assert edit.fired == {}
    assert torch.equal(out, plain) and twin[0].weight.grad.any()


def test_a_copy_of_an_edited_model_is_not_edited() -> None:
    model, x = mlp().double(), leaf(5, 3)
    with tt.edit(
        model, ["*:output", "*:grad_output,param_grad"], tt.edits.zero(), missing="ignore"
    ):
        twin = copy.deepcopy(model)
    twin(x).sum().backward()
    assert twin[0].weight.grad.any()
