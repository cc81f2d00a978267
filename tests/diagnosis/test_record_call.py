"""``tt.record_call`` holds one call, and leaves the model as it was."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from containers import OfRows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from untouched import are_same, state_of

import torchtap as tt
from torchtap.core.module_paths import modules_of
from torchtap.diagnosis.calls.replay import replayed
from torchtap.testing import Net, Specimen, zoo

ZOO = [one for one in zoo() if one.raises is None]


@pytest.mark.parametrize("specimen", ZOO, ids=str)
def test_every_module_of_the_zoo_runs_again_to_the_bit(specimen: Specimen) -> None:
    compared = 0
    for path in modules_of(specimen.build())[0]:
        for number in range(2):
            model = specimen.build()
            args, kwargs = specimen.inputs()
            before = state_of(model, args)
            try:
                call = tt.record_call(model, path or ".", *args, call=number, **kwargs)
            except tt.CaptureError:
                assert path or number  # Never called, or not as often.
                break
            assert are_same(before, state_of(model, args)), path
            again = replayed(call)
            assert again, (path, number, again.differing)
            assert str(call).startswith(f"Call {number} of {path or '.'} (")
            compared += len(again.compared)
    assert compared or not specimen.backward


class Loop(nn.Module):
    """Calls one linear eight times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(8):
            x = torch.tanh(self.cell(x))
        return x


def test_gradients_are_of_the_call_alone() -> None:
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(2, 3)
    call = tt.record_call(model, "cell", x, call=5, loss=torch.sum)

    # By hand: the weight of the sixth call is another leaf with the same numbers.
    weight = model.cell.weight.detach().clone().requires_grad_()
    hidden = x
    for number in range(8):
        if number == 5:
            given = hidden
            hidden = nn.functional.linear(hidden, weight, model.cell.bias)
        else:
            hidden = model.cell(hidden)
        hidden = torch.tanh(hidden)
    (expected,) = torch.autograd.grad(hidden.sum(), weight)

    assert torch.equal(call.args[0], given)
    assert torch.equal(call.result.parameters["weight"], expected)
    assert torch.equal(replayed(call).result.parameters["weight"], expected)
    assert any("called 8 times" in note for note in call.notes)


def test_the_gradients_are_those_of_plain_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    x = torch.randn(3, 4)
    call = tt.record_call(model, "1", x, loss=lambda y: y.square().sum())

    hidden = model[0](x)
    normed = model[1](hidden)
    loss = model[2](normed).square().sum()
    weight = model[1].weight
    at_output, at_input, of_weight = torch.autograd.grad(loss, [normed, hidden, weight])
    assert torch.equal(call.result.arriving[""], at_output)
    assert torch.equal(call.result.inputs["0"], at_input)
    assert torch.equal(call.result.parameters["weight"], of_weight)


class Hidden(nn.Module):
    """Returns what it computed on the way, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.a(x))
        return self.b(hidden), hidden


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Hidden()

    def forward(self, x: Tensor) -> Tensor:
        out, hidden = self.inner(x)
        return out * hidden + hidden.square()


def test_an_output_that_another_one_is_computed_from_is_not_counted_twice() -> None:
    torch.manual_seed(0)
    model, x = Around(), torch.randn(2, 3)
    call = tt.record_call(model, "inner", x, loss=torch.sum)
    model(x).sum().backward()
    again = replayed(call)
    assert again
    for name, param in model.inner.named_parameters():
        assert param.grad is not None
        assert torch.equal(again.result.parameters[name], param.grad), name


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_call_in_a_checkpoint_has_its_gradients(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            return checkpoint(self.block, hidden, use_reentrant=reentrant)

    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 3)
    call = tt.record_call(model, "block", x, loss=torch.sum)
    assert replayed(call)
    model(x).sum().backward()  # From the same random state.
    found = call.result.parameters
    assert torch.equal(found["0.weight"], model.block[0].weight.grad)  # type: ignore[arg-type]


def test_autocast_buffers_and_modes_are_those_of_the_call() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(inplace=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = tt.record_call(model, ".", torch.randn(2, 1, 5, 5))
    assert call.output.dtype is torch.bfloat16
    assert int(call.result.buffers["1.num_batches_tracked"]) == 1
    assert int(model.get_buffer("1.num_batches_tracked")) == 0
    model.eval()
    assert replayed(call)


def test_a_backward_runs_outside_of_autocast() -> None:
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(2, 5, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = tt.record_call(model, ".", x, loss=torch.sum)
        assert replayed(call)
        loss = model(x).sum()
    loss.backward()
    assert replayed(call)
    weight = model.self_attn.in_proj_weight
    assert torch.equal(call.result.parameters["self_attn.in_proj_weight"], weight.grad)  # type: ignore[arg-type]


def test_without_gradients_the_forward_is_held() -> None:
    model = nn.Linear(2, 2)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            call = tt.record_call(model, ".", torch.ones(1, 2))
        assert not call.result.parameters
        assert replayed(call)
        assert not call.output.is_inference()


def test_a_backward_that_raises_leaves_the_forward() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Dropout(0.5, inplace=True))
    x = torch.ones(1, 2)
    call = tt.record_call(model, ".", x)
    assert any("the backward raised" in note for note in call.notes)
    assert replayed(call)
    with pytest.raises(RuntimeError, match="inplace"):
        tt.record_call(model, ".", x, loss=torch.sum)


class Counts(nn.Module):
    """Keeps what it saw in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[Tensor] = []
        self.known: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x
        self.seen.append(x)
        self.known["n"] = self.calls
        return x * self.calls


def test_what_modules_keep_in_attributes_is_put_back() -> None:
    model, x = Counts(), torch.ones(2)
    model(x)
    known, seen = dict(model.known), list(model.seen)
    call = tt.record_call(model, ".", x)
    assert torch.equal(call.output, torch.full((2,), 2.0))
    assert model.calls == 1
    assert model.known == known
    assert len(model.seen) == len(seen)
    assert model.last is x
    assert torch.equal(tt.replay(call), call.output)


def test_a_compiled_model_runs_uncompiled() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), backend="eager")
    call = tt.record_call(model, "0", torch.ones(1, 2))  # type: ignore[arg-type]
    assert type(call.module) is nn.Linear
    assert replayed(call)


def test_tied_weights_stay_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    call = tt.record_call(model, ".", torch.randn(2, 3))
    twin = call.module
    assert twin[0].weight is twin[1].weight
    assert replayed(call)


@pytest.mark.parametrize("make", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_of_either_kind_is_held(make: Any) -> None:
    model = make(nn.Linear(3, 2))
    call = tt.record_call(model, ".", torch.randn(2, 3))
    assert len(call.result.parameters) == 3
    assert replayed(call)


# --- what is refused ---------------------------------------------------------------------------


def numbers() -> Iterator[int]:
    yield 1


class Takes(nn.Module):
    def forward(self, x: Tensor, more: Any = None) -> Tensor:
        return x + 1


@pytest.mark.parametrize("held", [numbers(), {"deep": [numbers()]}], ids=["bare", "nested"])
def test_what_cannot_be_held_is_named_with_its_place(held: Any) -> None:
    with pytest.raises(tt.InputError, match=r"Argument more.*generator"):
        tt.record_call(Takes(), ".", torch.ones(1), more=held)


def test_an_attribute_that_cannot_be_held_is_named_with_its_place() -> None:
    model = nn.Sequential(Takes())
    model[0].source = numbers()  # type: ignore[assignment]
    with pytest.raises(tt.InputError, match=r"Attribute 0\.source \(generator\)"):
        tt.record_call(model, ".", torch.ones(1))


def test_a_path_that_is_not_there_is_said_with_what_is_near() -> None:
    model = nn.ModuleDict({"block": nn.Linear(1, 1)})
    with pytest.raises(tt.SiteError, match="did you mean 'block'"):
        tt.record_call(model, "blok", torch.ones(1))
    with pytest.raises(tt.CaptureError, match="never called itself"):
        tt.record_call(model, ".", torch.ones(1))


def test_a_call_that_did_not_happen_is_said() -> None:
    with pytest.raises(tt.CaptureError, match=r"called 1 time .*no call 3"):
        tt.record_call(nn.Sequential(nn.ReLU()), "0", torch.ones(1), call=3)
    with pytest.raises(tt.InputError, match="from 0"):
        tt.record_call(nn.ReLU(), ".", torch.ones(1), call=-1)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
def test_a_scripted_module_is_refused_with_a_way_out() -> None:
    model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)))
    with pytest.raises(tt.CaptureError, match="made of"):
        tt.record_call(model, "0", torch.ones(1, 2))


def test_what_the_model_raises_is_raised_and_leaves_no_trace() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            self.inner(x)
            raise KeyError("mine")

    model = Raises()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError, match="mine"):
        tt.record_call(model, "inner", torch.ones(1, 2))
    assert not model.inner._forward_hooks
    assert not model.inner._forward_pre_hooks
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())


@pytest.mark.parametrize("port", ["input", "grad_output"])
def test_a_call_is_recorded_under_an_open_watch_which_does_not_see_it(port: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(3, 2))
    x = torch.randn(2, 3)

    def held() -> tt.Call:
        torch.manual_seed(1)
        return tt.record_call(model, "2", x)

    plain = held()
    with tt.watch(model, f"*:output,{port}") as w, tt.guard(model) as guard:
        first = model(x)
        call = held()
        first.sum().backward()
        second = model(x)
        second.sum().backward()
    assert replayed(call)
    for name, tensors in plain.tensors().items():
        assert are_same([*tensors.values()], [*call.tensors()[name].values()]), name
    assert torch.equal(w.run.get("3:output", call=0), first)
    assert torch.equal(w.run.get("3:output", call=1), second)
    assert [record.call for record in w.run.records(f"3:{port}")] == [0, 1]
    assert guard.origin is None


def test_a_call_that_raised_is_said_to_have_raised() -> None:
    class Survives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return torch.relu(self.inner(x[:, :2]))
            except RuntimeError:
                return x.clone()

    with pytest.raises(tt.CaptureError, match="Call 0 of inner did not return: it raised"):
        tt.record_call(Survives(), "inner", torch.randn(2, 3))


def test_a_backward_of_the_users_that_raises_leaves_the_forward() -> None:
    class Never(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *given: Tensor) -> Tensor:
            raise AssertionError("only in training")

    model = Net(lambda m, x: Never.apply(m.fc(x)), fc=nn.Linear(3, 3))
    call = tt.record_call(model, "fc", torch.randn(2, 3))
    assert any("only in training" in note for note in call.notes)
    assert replayed(call)


def test_a_mapping_that_copies_its_tensors_with_their_graph_is_refused() -> None:
    def forward(m: Any, given: OfRows) -> Tensor:
        return m.second(OfRows(a=m.fc(given["a"])))

    second = Net(lambda m, given: given["a"] * 2)
    model = Net(forward, fc=nn.Linear(3, 3), second=second)
    x = torch.randn(2, 3)
    assert replayed(tt.record_call(model, ".", OfRows(a=x)))
    with pytest.raises(tt.InputError, match=r"Argument 0\.a cannot be held: a class that holds it"):
        tt.record_call(model, "second", OfRows(a=x))


def test_modules_and_steps_that_take_a_mapping_of_rows_are_compared_and_located() -> None:
    torch.manual_seed(0)
    model = Net(lambda m, given: m.fc(given["a"]), fc=nn.Linear(3, 3))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.fc.bias.add_(1)
    x = OfRows(a=torch.randn(2, 3))
    assert tt.compare(model, other, x).first.cause == "weights"

    def step(given: OfRows) -> None:
        (model(given) * float("inf")).sum().backward()

    origin = tt.locate(model, step, x)
    assert origin is not None and origin.rows == ()  # The mapping refuses one row alone.
