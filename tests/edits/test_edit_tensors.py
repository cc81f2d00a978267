"""Edits in programs of unusual form equal the same change written into the program."""

from __future__ import annotations

import gc
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import torch
from random_numbers import normal
from torch import Tensor, nn
from torch.func import functional_call

import torchtap as tt
from torchtap.testing import Net


class Nested(nn.Module):
    """Calls itself twice at each depth but the last."""

    def forward(self, x: Tensor, depth: int = 0) -> Tensor:
        if depth == 2:
            return x + 1
        return self(x * 2, depth + 1) + self(x * 3, depth + 1) + depth


class Calling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nested = Nested()

    def forward(self, x: Tensor) -> Tensor:
        return self.nested(x)


# By hand, from x = 1, in the order in which calls are entered: the whole, its first half (x = 2)
# with its two leaves, and its second half (x = 3) with its two.
ENTERED = [31.0, 13.0, 5.0, 7.0, 18.0, 7.0, 10.0]


@pytest.mark.parametrize(
    "where", ["nested:output", "nested:output,grad_output", "nested:input,output", "*:*"]
)
def test_calls_inside_calls_have_the_same_numbers_whatever_else_is_watched(where: str) -> None:
    model = Calling()
    with tt.watch(model, where) as w:
        for _ in range(2):
            model(torch.ones(1, requires_grad=True)).backward()
            w.step()
    for step in range(2):
        found = [w.run.get("nested:output", step=step, call=call).item() for call in range(7)]
        assert found == ENTERED


@pytest.mark.parametrize("port", ["output", "output,grad_output", "input,output"])
def test_an_edit_finds_the_call_inside_calls(port: str) -> None:
    def only_output(tensor: Tensor, record: tt.Record) -> Tensor | None:
        return tensor * 0 if record.site.port == "output" else None

    results = []
    for call in range(7):
        model = Calling()
        with tt.edit(model, f"nested:{port}", only_output, calls=call, missing="ignore") as e:
            results.append(model(torch.ones(1, requires_grad=True)).item())
        assert e.fired["nested:output"] == 1
    whole = ENTERED[0]
    # Without one of the parts, the whole is that much less.
    assert results == [0.0, *(whole - part for part in ENTERED[1:])]


def test_a_call_that_raised_has_a_number_whatever_else_is_edited() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        for divisor in (0, 1, 2):
            try:
                x = m.divide(x, divisor)
            except ZeroDivisionError:
                continue
        return x

    def divide(m: Any, x: Tensor, divisor: int) -> Tensor:
        return x + 1 // divisor

    for ports in ("output", "input,output", "output,grad_input"):
        model = Net(forward, divide=Net(divide))
        seen: list[Any] = []

        def note(tensor: Tensor, record: tt.Record, seen: list[int] = seen) -> None:
            if record.site.port == "output":
                seen.append(record.call)

        with tt.edit(model, f"divide:{ports}", note, missing="ignore"):
            model(torch.ones(1, requires_grad=True))
        with tt.watch(model, f"divide:{ports}") as w:
            model(torch.ones(1, requires_grad=True))
        assert seen == [1, 2], ports
        assert [row.call for row in w.run.records("divide:output")] == [1, 2], ports


def test_the_first_edit_that_raises_is_the_last_that_is_asked() -> None:
    model, asked = nn.Sequential(nn.Identity()), []

    def fails(tensor: Tensor) -> Tensor:
        raise KeyError("mine")

    def note(tensor: Tensor) -> None:
        asked.append(tensor)

    for ports in ("output", "input,output"):
        with (
            tt.edit(model, "0:output", fails, missing="ignore"),
            tt.edit(model, f"0:{ports}", note, missing="ignore"),
        ):
            with pytest.raises(KeyError, match="mine"):
                model(torch.ones(1))
            assert len(asked) == (ports != "output")
        asked.clear()
        with tt.edit(model, f"0:{ports}", note):
            try:
                raise ValueError
            except ValueError:  # Somebody else's trouble, further out.
                model(torch.ones(1))
        assert len(asked) == len(ports.split(","))
        asked.clear()


def halves(tensor: Tensor) -> Tensor:
    """Times 2, and a view at the end: the tensor it makes is held by nobody else."""
    return (tensor.reshape(-1, 2) * 2).view(tensor.shape)


def test_arguments_that_are_edited_twice_stay_apart() -> None:
    model = Net(lambda m, x, y: m.minus(x, y), minus=Net(lambda m, x, y: x - y))
    for seed in range(20):
        x = normal(2, 4, seed=seed).requires_grad_()
        with tt.edit(model, "minus:input,grad_input", halves):
            out = model(x, x * 3)
        assert torch.equal(out, 2 * x - 2 * (x * 3))


def test_outputs_that_are_edited_twice_stay_apart() -> None:
    model = Net(lambda m, x: m.pair(x), pair=Net(lambda m, x: (x + 1, x * 5, x)))
    for seed in range(20):
        x = normal(2, 4, seed=seed).requires_grad_()
        with tt.edit(model, "pair:output,grad_output", halves, missing="ignore"):
            first, second, third = model(x)
        assert torch.equal(first, 2 * (x + 1))
        assert torch.equal(second, 2 * (x * 5)) and torch.equal(third, 2 * x)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_teacher_called_with_lent_parameters_leaves_the_edit_in_place(
    requires_grad: bool,
) -> None:
    student, x = nn.Linear(3, 2), torch.randn(4, 3)
    teacher = {
        name: param.detach().clone().requires_grad_(requires_grad)
        for name, param in student.named_parameters()
    }
    with (
        tt.watch(student, ".:param_grad", edits="before") as w,
        tt.edit(student, ".:param_grad", tt.edits.zero()) as e,
    ):
        for _ in range(3):
            student.zero_grad()
            out = student(x)
            lent = functional_call(student, teacher, (x + 1,))
            ((out - lent) ** 2).sum().backward()
            assert not student.weight.grad.any() and not student.bias.grad.any()
            w.step()
    assert e.fired == {".:param_grad[bias]": 3, ".:param_grad[weight]": 3}
    assert len(list(w.run.records(".:param_grad[weight]"))) == 3 and not w.absent
    if requires_grad:  # What the model does not own when the gradient comes is nobody's business.
        assert all(tensor.grad.any() for tensor in teacher.values())


def test_a_parameter_that_is_put_in_the_old_ones_place_is_edited() -> None:
    model = nn.Linear(3, 2)
    with tt.edit(model, ".:param_grad[weight]", tt.edits.zero()) as e:
        for _ in range(2):
            model.weight = nn.Parameter(torch.ones(2, 3))
            model(torch.ones(1, 3)).sum().backward()
            assert not model.weight.grad.any() and model.bias.grad.any()
    assert e.fired == {".:param_grad[weight]": 2}


def test_a_lazy_parameter_is_edited_from_its_first_gradient_on() -> None:
    model = nn.LazyLinear(2)
    with tt.edit(model, ".:param_grad", tt.edits.zero()) as e:
        model(torch.ones(1, 3)).sum().backward()
    assert not model.weight.grad.any() and not model.bias.grad.any()
    assert e.fired == {".:param_grad[bias]": 1, ".:param_grad[weight]": 1}


class Kept(MutableMapping[str, Tensor]):
    """A mapping whose copy shares its items."""

    def __init__(self, **items: Tensor) -> None:
        self.items_here = items

    def __getitem__(self, key: str) -> Tensor:
        return self.items_here[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError("tensors only")
        self.items_here[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_here[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_here)

    def __len__(self) -> int:
        return len(self.items_here)


def test_a_mapping_whose_copy_shares_its_items_is_not_written_into() -> None:
    held = Kept(a=torch.ones(2))
    model = Net(lambda m, x: m.give(x), give=Net(lambda m, x: held))
    with tt.edit(model, "give", tt.edits.scale(2.0)):
        for _ in range(2):
            out = model(torch.ones(1))
            assert type(out) is Kept and out["a"].tolist() == [2.0, 2.0]
    assert held["a"].tolist() == [1.0, 1.0]
    take = Net(lambda m, given: given["a"] + 1)
    model = Net(lambda m, given: m.take(given), take=take)
    with tt.edit(model, "take:input", tt.edits.scale(10.0)):
        assert model(held).tolist() == [11.0, 11.0]
    assert held["a"].tolist() == [1.0, 1.0]


def test_a_function_that_detaches_what_it_is_given_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

    def cut(tensor: Tensor) -> Tensor:
        return tensor.detach_() * 2

    with pytest.raises(tt.EditError, match="'cut' at 0:output"), tt.edit(model, "0", cut):
        model(torch.ones(1, 2))


def test_a_fake_or_meta_tensor_is_edited_like_any_other() -> None:
    from torch._subclasses import FakeTensorMode

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3))
    with tt.edit(model, "0", tt.edits.scale(2.0)) as e:
        assert model(torch.ones(1, 2, device="meta")).shape == (1, 3)
    assert e.fired == {"0:output": 1}
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(2, 3))
        with tt.edit(model, "0", tt.edits.zero()) as e:
            assert model(torch.ones(1, 2)).shape == (1, 3)
    assert e.fired == {"0:output": 1}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_encoder_are_edited() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True

    def double(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out * 2

    with torch.no_grad():
        handle = model.layers[0].register_forward_hook(double)
        right = model(x, src_key_padding_mask=padding)
        handle.remove()
        with tt.edit(model, "layers.0", tt.edits.scale(2.0)):
            assert torch.equal(model(x, src_key_padding_mask=padding), right)
        with tt.edit(model, "layers.1", tt.edits.zero()):
            assert not model(x, src_key_padding_mask=padding).any()
        with (
            pytest.raises(tt.EditError, match=r"float32\[2\] where nested float32 of 2 parts"),
            tt.edit(model, "layers.0", lambda tensor: torch.ones(2)),
        ):
            model(x, src_key_padding_mask=padding)


@pytest.mark.parametrize(
    "fn", [tt.edits.zero(), lambda gradient: gradient * 0], ids=["ready", "own"]
)
def test_a_sparse_gradient_is_zeroed(fn: Any) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with tt.edit(model, ".:param_grad", fn):
        model(torch.tensor([1, 3])).sum().backward()
    assert model.weight.grad.is_sparse and not model.weight.grad.to_dense().any()


def test_noise_and_means_of_complex_tensors_have_both_parts() -> None:
    values = 1j * normal(200, 3)
    model = nn.Sequential(nn.Identity())
    with tt.edit(model, "0", tt.edits.noise(0.5, relative=True)):
        added = model(values) - values
    # Its mean square is the square of half the deviation.
    expected = 0.25 * values.imag.var().item()
    assert added.abs().square().mean().item() == pytest.approx(expected, rel=0.1)
    assert added.real.std() > 0 and added.imag.std() > 0
    with tt.watch(model, "0") as w:
        model(values)
    with tt.edit(model, "0", tt.edits.mean_ablate(w.run)):
        torch.testing.assert_close(model(values)[7], values.mean(0))


def test_what_is_infinite_outside_of_the_region_does_not_reach_a_learned_factor() -> None:
    factor = torch.ones(1, requires_grad=True)
    model, x = nn.Sequential(nn.Identity()), torch.tensor([[float("inf"), 2.0]])
    with tt.edit(model, "0", tt.edits.scale(factor, at={-1: 1})):
        model(x)[:, 1].sum().backward()
    assert factor.grad.item() == 2.0


def test_one_dimension_named_twice_is_an_error() -> None:
    model = nn.Sequential(nn.Identity())
    with (
        pytest.raises(tt.EditError, match=r"dimension -2 of float32\[2, 3\] twice"),
        tt.edit(model, "0", tt.edits.zero(at={0: 0, -2: 1})),
    ):
        model(torch.ones(2, 3))


def test_an_edit_of_one_tensor_that_never_happens_is_an_error() -> None:
    x = torch.ones(2, requires_grad=True)
    with (
        pytest.raises(tt.EditError, match=r"'x' never happened.*no backward was run"),
        tt.edit_tensor(x, tt.edits.zero(), name="x"),
    ):
        x * 2
    with tt.edit_tensor(x, tt.edits.zero(), missing="ignore") as e:
        pass
    assert e.fired == 0
    with pytest.raises(tt.EditError, match=r"closed; call tt.edit_tensor again"), e:
        pass


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("where", ["2.norm", "3.norm:input", "re:[02].norm", "re:(0|2).linear"])
def test_of_equal_compiled_blocks_each_is_edited_and_watched(where: str) -> None:
    model, x = nn.Sequential(*(Block() for _ in range(4))), torch.randn(3, 4)
    plain = model(x)
    compiled: Any = torch.compile(model, backend="eager")
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    with tt.edit(model, where, tt.edits.scale(0.5)) as e, tt.watch(model, where) as w:
        found = [compiled(x), compiled(x)]
        fired = dict(e.fired)
        right = model(x)
    assert all(torch.equal(out, right) for out in found) and not torch.equal(plain, right)
    assert set(fired.values()) == {2} and not w.absent
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before
    torch.testing.assert_close(compiled(x), plain)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_watch_that_nobody_closed_lets_the_compilers_setting_go() -> None:
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    model = nn.Sequential(nn.Linear(2, 2))
    w = tt.watch(model, "0")
    model(torch.ones(1, 2))
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    del w, model
    gc.collect()
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before
