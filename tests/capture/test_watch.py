"""``tt.watch`` records tensors of the calls that were chosen, as they were at that moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from absent import reasons
from containers import Pair
from models import scales, squares
from random_numbers import leaf, wide
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

import torchtap as tt
from torchtap.hooks.marks import open_engines
from torchtap.testing import Net


@dataclass
class Two:
    first: Tensor
    second: Tensor


def texts(run: tt.Run, port: str) -> list[str]:
    return [str(record.site) for record in run.records() if record.site.port == port]


# --- ports ------------------------------------------------------------------------------------


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()


def test_values_are_what_the_layers_compute() -> None:
    model, x = two_layers(), wide(4, 3)
    with tt.watch(model, "*:input,output") as w:
        model(x)
    hidden = F.linear(x, model[0].weight, model[0].bias)  # type: ignore[arg-type]
    assert torch.equal(w.run["0:input"], x)
    assert torch.equal(w.run["0:output"], hidden)
    assert torch.equal(w.run["1:input"], hidden)
    assert torch.equal(w.run["1:output"], hidden.tanh())
    assert torch.equal(w.run[".:output"], hidden.tanh())


def test_gradients_follow_the_hand_formula() -> None:
    model, x, cotangent = two_layers(), leaf(4, 3), wide(4, 2, seed=1)
    with tt.watch(model, "*:grad_output,grad_input") as w:
        model(x).backward(cotangent)
    out = F.linear(x, model[0].weight, model[0].bias).tanh()  # type: ignore[arg-type]
    of_hidden = cotangent * (1 - out * out)
    assert torch.equal(w.run["1:grad_output"], cotangent)
    torch.testing.assert_close(w.run["1:grad_input"], of_hidden, rtol=1e-14, atol=0)
    torch.testing.assert_close(w.run["0:grad_output"], of_hidden, rtol=1e-14, atol=0)
    of_x = of_hidden @ model[0].weight
    torch.testing.assert_close(w.run["0:grad_input"], of_x, rtol=1e-13, atol=1e-15)


def test_output_is_what_is_watched_by_default() -> None:
    model = two_layers()
    with tt.watch(model) as w:
        model(wide(1, 3))
    assert [str(site) for site in w.run.sites] == [".:output", "0:output", "1:output"]


def test_star_means_the_four_ports_of_flow() -> None:
    model = two_layers()
    with tt.watch(model, "1:*") as w:
        model(leaf(1, 3)).sum().backward()
    ports = ["input", "output", "grad_input", "grad_output"]
    assert [site.port for site in w.run.sites] == ports


def test_values_are_detached() -> None:
    model = two_layers()
    with tt.watch(model, "*:*") as w:
        model(leaf(1, 3)).sum().backward()
    assert not any(record.value.requires_grad for record in w.run.records())


def test_a_parameter_of_the_root_is_a_site() -> None:
    weight = nn.Parameter(wide(3))
    model = Net(lambda m, x: x * m.weight, weight=weight)
    with tt.watch(model, ".:param,param_grad") as w:
        model(wide(3, seed=1)).sum().backward()
    assert torch.equal(w.run[".:param[weight]"], weight)
    assert torch.equal(w.run[".:param_grad[weight]"], wide(3, seed=1))


def test_a_parameter_may_be_an_input() -> None:
    model = Net(lambda m: m.inner(m.weight), inner=scales(3.0), weight=nn.Parameter(wide(2)))
    with tt.watch(model, "inner:*") as w:
        model().sum().backward()
    assert torch.equal(w.run["inner:input"], wide(2))
    assert w.run["inner:grad_input"].tolist() == [3.0, 3.0]


def test_a_model_without_arguments_is_watched() -> None:
    model = Net(lambda m: m.weight * 2, weight=nn.Parameter(wide(2)))
    with tt.watch(model, ".:*") as w:
        model().sum().backward()
    assert torch.equal(w.run[".:output"], wide(2) * 2)
    assert "took no tensor" in reasons(w)[".:input"]


# --- leaves -----------------------------------------------------------------------------------

CONTAINERS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any], list[str]]] = {
    "tuple": (lambda a, b: (a, b), tuple, ["0", "1"]),
    "list": (lambda a, b: [a, b], tuple, ["0", "1"]),
    "dict": (lambda a, b: {"a": a, "b": b}, lambda c: c.values(), ["a", "b"]),
    "dict with dots": (lambda a, b: {"a.b": a, 3: b}, lambda c: c.values(), ["a.b", "3"]),
    "named tuple": (Pair, tuple, ["first", "second"]),
    "dataclass": (Two, lambda c: (c.first, c.second), ["first", "second"]),
    "with none": (lambda a, b: (None, a, "text", b, 4), lambda c: (c[1], c[3]), ["1", "3"]),
    "nested": (
        lambda a, b: {"h": (a, [None, b])},
        lambda c: (c["h"][0], c["h"][1][1]),
        ["h.0", "h.1.1"],
    ),
    "model output": (
        lambda a, b: BaseModelOutput(last_hidden_state=a, hidden_states=(b,)),
        lambda c: (c.last_hidden_state, c.hidden_states[0]),
        ["last_hidden_state", "hidden_states.0"],
    ),
}
every_container = pytest.mark.parametrize(
    ("pack", "unpack", "names"), list(CONTAINERS.values()), ids=list(CONTAINERS)
)


@every_container
def test_every_tensor_of_a_nested_output_is_a_leaf(pack: Any, unpack: Any, names: Any) -> None:
    inner = Net(lambda m, x: pack(2 * x, 3 * x))
    model = Net(lambda m, x: [5 * a for a in unpack(m.inner(x))], inner=inner)
    x = leaf(2)
    with tt.watch(model, "inner:output,grad_output") as w:
        first, second = model(x)
        (first.sum() + 7 * second.sum()).backward()
    assert texts(w.run, "output") == [f"inner:output[{name}]" for name in names]
    for name, factor, slope in zip(names, (2, 3), (5, 35), strict=True):
        assert torch.equal(w.run[f"inner:output[{name}]"], factor * x)
        assert w.run[f"inner:grad_output[{name}]"].tolist() == [slope, slope]


@every_container
def test_every_tensor_of_a_nested_input_is_a_leaf(pack: Any, unpack: Any, names: Any) -> None:
    def forward(m: Any, packed: Any) -> Tensor:
        first, second = unpack(packed)
        return 2 * first + 3 * second

    model = Net(lambda m, x: m.inner(pack(x, x * x)), inner=Net(forward))
    x = leaf(2)
    with tt.watch(model, "inner:input,grad_input") as w:
        model(x).sum().backward()
    assert texts(w.run, "input") == [f"inner:input[{name}]" for name in names]
    for name, value, slope in zip(names, (x, x * x), (2, 3), strict=True):
        assert torch.equal(w.run[f"inner:input[{name}]"], value)
        assert w.run[f"inner:grad_input[{name}]"].tolist() == [slope, slope]


def test_positional_arguments_come_before_keywords() -> None:
    inner = Net(lambda m, x, y, *, z, flag: x + 2 * y + 3 * z["k"])
    model = Net(lambda m, x: m.inner(x, x * 2, z={"k": x * 3}, flag=True), inner=inner)
    x = leaf(2)
    with tt.watch(model, "inner:input,grad_input") as w:
        model(x).sum().backward()
    assert texts(w.run, "input") == ["inner:input[0]", "inner:input[1]", "inner:input[z.k]"]
    assert torch.equal(w.run["inner:input[z.k]"], x * 3)
    slopes = [w.run[f"inner:grad_input[{name}]"][0].item() for name in ("0", "1", "z.k")]
    assert slopes == [1, 2, 3]


def test_arguments_may_all_be_keywords() -> None:
    model = Net(lambda m, *, x: m.inner(x=x), inner=Net(lambda m, *, x: 3 * x))
    with tt.watch(model, "*:input,grad_input") as w:
        model(x=leaf(2)).sum().backward()
    assert torch.equal(w.run["inner:input[x]"], wide(2))
    assert w.run[".:grad_input[x]"].tolist() == [3.0, 3.0]


def test_a_bare_argument_has_no_leaf_and_answers_to_0() -> None:
    model = scales(2.0)
    with tt.watch(model, ".:input[0]") as w:
        model(wide(2))
    assert texts(w.run, "input") == [".:input"]
    assert torch.equal(w.run[".:input[0]"], wide(2))


def test_a_leaf_narrows_to_one_tensor() -> None:
    model = Net(lambda m, x: {"a": x, "hidden": [x * 2, x * 3]})
    with tt.watch(model, [".:output[hidden]", "!.:output[hidden.0]"]) as w:
        model(wide(2))
    assert texts(w.run, "output") == [".:output[hidden.1]"]


def test_lstm_gives_its_output_and_both_states() -> None:
    model, x = nn.LSTM(3, 2).double(), wide(4, 1, 3)
    with tt.watch(model, ".:output") as w:
        output, (hidden, cell) = model(x)
    for name, value in (("0", output), ("1.0", hidden), ("1.1", cell)):
        assert torch.equal(w.run[f".:output[{name}]"], value)


# --- calls ------------------------------------------------------------------------------------


def test_calls_of_one_step_are_numbered() -> None:
    model, x = Net(lambda m, x: m.square(m.square(x)), square=squares()), leaf(3)
    with tt.watch(model, "square:*") as w:
        model(x).sum().backward()
    assert torch.equal(w.run.get("square:output", call=0), x**2)
    assert torch.equal(w.run.get("square:output", call=1), (x**2) ** 2)
    assert torch.equal(w.run["square:output"], w.run.get("square:output", call=1))
    torch.testing.assert_close(w.run.get("square:grad_output", call=0), 2 * x.detach() ** 2)
    torch.testing.assert_close(w.run.get("square:grad_input", call=0), 4 * x.detach() ** 3)


def test_calls_are_numbered_by_entry_where_a_module_calls_itself() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return 2 * (m(x + 1) if x < 2 else x)

    model = Net(forward)
    with tt.watch(model, ".:input,output") as w:
        model(torch.zeros(1))
    calls = range(3)
    assert [w.run.get(".:input", call=call).item() for call in calls] == [0, 1, 2]
    assert [w.run.get(".:output", call=call).item() for call in calls] == [16, 8, 4]


def test_gradients_find_their_call_when_branches_go_back_in_turn() -> None:
    model = scales(2.0)
    with tt.watch(model, ".:grad_output") as w:
        losses = [factor * model(leaf(1)).sum() for factor in (3, 5)]
        for loss in losses:  # First in, first out: not the reverse order of a chain.
            loss.backward()
    found = {record.key.call: record.value.item() for record in w.run.records()}
    assert found == {0: 3.0, 1: 5.0}


def test_several_forwards_may_share_one_backward() -> None:
    model = scales(2.0)
    with tt.watch(model, ".:grad_output") as w:
        (model(leaf(1)) + 4 * model(leaf(1, seed=1))).sum().backward()
    assert [w.run.get(".:grad_output", call=call).item() for call in (0, 1)] == [1.0, 4.0]


def test_a_call_that_is_left_out_of_the_loss_shifts_nothing() -> None:
    model = scales(2.0)
    with tt.watch(model, ".:grad_output") as w:
        model(leaf(1))
        with torch.no_grad():
            model(leaf(1))
        (7 * model(leaf(1))).sum().backward()
    assert [(record.call, record.value.item()) for record in w.run.records()] == [(2, 7.0)]


def test_a_shared_module_is_found_under_both_names() -> None:
    shared = squares()
    model = Net(lambda m, x: m.second(m.first(x)), first=shared, second=shared)
    with tt.watch(model, "second") as w:
        model(wide(2))
    assert texts(w.run, "output") == ["first:output", "first:output"]
    assert torch.equal(w.run["second:output"], (wide(2) ** 2) ** 2)


def test_a_part_of_a_model_may_be_called_alone() -> None:
    model = two_layers()
    with tt.watch(model, "0") as w:
        model[0](wide(1, 3))
    assert len(w.run) == 1


# --- tensors that are several things ----------------------------------------------------------


def test_a_module_may_return_its_input() -> None:
    model = Net(lambda m, x: m.same(x) * 3 + x * 2, same=nn.Identity())
    x = leaf(2)
    with tt.watch(model, "same:*") as w:
        model(x).sum().backward()
    assert torch.equal(w.run["same:output"], x)
    assert w.run["same:grad_output"].tolist() == [5.0, 5.0]
    record = w.run.record("same:grad_input")
    assert (record.value.tolist(), record.labels) == ([5.0, 5.0], ("total",))


def test_watching_keeps_the_identity_of_a_returned_input() -> None:
    model, x = nn.Identity(), leaf(2)
    with tt.watch(model, "*:*"):
        assert model(x) is x


def test_one_tensor_in_several_arguments_gets_the_sum_and_says_so() -> None:
    inner = Net(lambda m, q, k, v: 2 * q + 3 * k + 5 * v)
    model = Net(lambda m, x: m.inner(x, x, x), inner=inner)
    with tt.watch(model, "inner:grad_input") as w:
        model(leaf(1)).sum().backward()
    for record in w.run.records():
        assert (record.value.item(), record.labels) == (10.0, ("sum of 3 slots",))


def test_different_tensors_in_several_arguments_are_told_apart() -> None:
    inner = Net(lambda m, q, k: 2 * q + 3 * k)
    model = Net(lambda m, x: m.inner(x, x.clone()), inner=inner)
    with tt.watch(model, "inner:grad_input") as w:
        model(leaf(1)).sum().backward()
    found = {record.site.leaf: (record.value.item(), record.labels) for record in w.run.records()}
    assert found == {"0": (2.0, ()), "1": (3.0, ())}


def test_one_tensor_in_two_outputs_gets_the_total_twice() -> None:
    def forward(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        y = 2 * x
        return y, y

    model = Net(forward)
    with tt.watch(model, ".:grad_output") as w:
        first, second = model(leaf(1))
        (3 * first + 4 * second).sum().backward()
    assert [record.value.item() for record in w.run.records()] == [7.0, 7.0]


def test_the_gradient_of_an_output_counts_all_its_uses() -> None:
    inner = Net(lambda m, x: (2 * x, (2 * x).detach()))

    def forward(m: Any, x: Tensor) -> Tensor:
        y, _ = m.inner(x)
        return 3 * y + y * y

    model, x = Net(forward, inner=inner), leaf(2)
    with tt.watch(model, "inner:grad_output[0]") as w:
        model(x).sum().backward()
    torch.testing.assert_close(w.run["inner:grad_output[0]"], 3 + 4 * x.detach())


# --- overwritten in place ---------------------------------------------------------------------


def test_values_are_those_before_an_in_place_module() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True)).double()
    x = wide(4, 3)
    for _ in range(3):  # Copied at first, then by what was learned.
        with tt.watch(model, "*:input,output") as w:
            for _ in range(3):
                model(x)
                w.step()
        hidden = F.linear(x, model[0].weight, model[0].bias)  # type: ignore[arg-type]
        for step in range(3):
            assert torch.equal(w.run.get("0:output", step=step), hidden)
            assert torch.equal(w.run.get("1:input", step=step), hidden)
            assert torch.equal(w.run.get("1:output", step=step), hidden.relu())


def test_gradients_belong_to_what_was_returned_before_an_in_place_module() -> None:
    model, x = nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True)).double(), leaf(4, 3)
    cotangent = wide(4, 5, seed=1)
    with tt.watch(model, "*:grad_output,grad_input") as w:
        model(x).backward(cotangent)
    passed = cotangent * (F.linear(x, model[0].weight, model[0].bias) > 0)  # type: ignore[arg-type]
    assert torch.equal(w.run["1:grad_output"], cotangent)
    assert torch.equal(w.run["1:grad_input"], passed)
    assert torch.equal(w.run["0:grad_output"], passed)


def test_a_residual_added_in_place_leaves_the_record_alone() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.inner(x)
        y += x
        return y * y

    model, x = Net(forward, inner=scales(2.0)), leaf(3)
    with tt.watch(model, "inner:output,grad_output") as w:
        for _ in range(3):
            model(x).sum().backward()
            w.step()
    for step in range(3):
        assert torch.equal(w.run.get("inner:output", step=step), 2 * x)
        torch.testing.assert_close(w.run.get("inner:grad_output", step=step), 6 * x.detach())


def test_a_write_into_the_callers_array_leaves_the_record_alone() -> None:
    array = wide(3).numpy().copy()
    model = scales(2.0)
    with tt.watch(model, ".:input") as w:
        for _ in range(3):
            model(torch.from_numpy(array))
            array *= 10
            w.step()
    for step in range(3):
        torch.testing.assert_close(w.run.get(".:input", step=step), wide(3) * 10**step)


def test_a_write_into_the_gradient_leaves_the_record_alone() -> None:
    model, x = scales(2.0), leaf(3)
    with tt.watch(model, ".:grad_input,grad_output") as w:
        for _ in range(3):
            model(x).sum().backward()
            x.grad.mul_(100)
    values = [record.value.tolist() for record in w.run.records(".:grad_input")]
    assert values == [[2.0] * 3] * 3


# --- exceptions -------------------------------------------------------------------------------


def attachments(model: nn.Module) -> list[tuple[str, str, int]]:
    """Every table of hooks of the model with the number of its entries, and its attributes."""
    tables = [
        (path, name, len(table))
        for path, module in model.named_modules()
        for name, table in vars(module).items()
        if "hooks" in name and table is not None
    ]
    names = [(path, name, 0) for path, m in model.named_modules() for name in vars(m)]
    of_params = [
        (path, name, len(getattr(param, name) or ()))
        for path, param in model.named_parameters()
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks")
    ]
    return [*tables, *names, *of_params, ("", "marks", len(open_engines))]


class Stumbles(nn.Module):
    """Raises what it is told to, deep inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.inner = nn.Sequential(nn.Linear(2, 2), Net(lambda m, x: self.fall(x)))
        self.error: BaseException | None = None

    def fall(self, x: Tensor) -> Tensor:
        if self.error is not None:
            raise self.error
        return 2 * x

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


ERRORS = [ValueError("stop"), KeyboardInterrupt(), SystemExit(3)]
every_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


@every_error
def test_watching_goes_on_after_an_exception(error: BaseException) -> None:
    model, x = Stumbles(), torch.ones(1, 2, requires_grad=True)
    with tt.watch(model, "*:*") as w:
        model.error = error
        with pytest.raises(type(error)):
            model(x)
        model.error = None
        w.step()
        model(x).sum().backward()
    assert w.run.get("inner.1:grad_output", step=1).tolist() == [[1.0, 1.0]]
    assert torch.equal(w.run.get("inner.1:output", step=1), model(x))
    assert w.run.steps == [0, 1]
    assert [record.call for record in w.run.records(".:input", steps=1)] == [0]


@every_error
def test_an_exception_leaves_nothing_on_the_model(error: BaseException) -> None:
    model = Stumbles()
    model.error = error
    before = attachments(model)
    with pytest.raises(type(error)), tt.watch(model, ["*:*", "*:param_grad"]):
        model(torch.ones(1, 2, requires_grad=True))
    assert attachments(model) == before


def test_what_is_on_the_model_while_it_is_watched_is_noticed() -> None:
    model = Stumbles()
    before = attachments(model)
    with tt.watch(model, ["*:*", "*:param_grad"]):
        model(torch.ones(1, 2))
        assert attachments(model) != before


def test_an_exception_of_the_users_is_the_one_that_comes_out() -> None:
    def fails(record: tt.Record) -> None:
        raise KeyError("of the sink")

    model = nn.Identity()
    with pytest.raises(ValueError, match="of the user"), tt.watch(model, to=fails):
        model(torch.ones(1))
        raise ValueError("of the user")


def test_a_backward_that_raises_does_not_confuse_the_next() -> None:
    class Refuses(torch.autograd.Function):
        refuse = True

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            if Refuses.refuse:
                raise ArithmeticError("no gradient today")
            return gradient

    model = Net(lambda m, x: m.after(Refuses.apply(m.before(x))), before=squares(), after=squares())
    with tt.watch(model, "*:grad_output") as w:
        with pytest.raises(ArithmeticError):
            model(leaf(1)).sum().backward()
        Refuses.refuse = False
        w.step()
        x = leaf(1)
        model(x).sum().backward()
    torch.testing.assert_close(w.run.get("before:grad_output", step=1), 2 * x.detach() ** 2)
    assert {record.backward for record in w.run.records(steps=1)} == {0}


def test_a_construction_that_fails_leaves_nothing_on_the_model() -> None:
    model = two_layers()
    before = attachments(model)
    with pytest.raises(ZeroDivisionError):
        tt.watch(model, every=lambda step: 1 / step)  # type: ignore[arg-type, return-value]
    assert attachments(model) == before


def test_closing_twice_is_fine() -> None:
    w = tt.watch(two_layers())
    w.close()
    w.close()


def test_a_closed_watch_records_nothing_more() -> None:
    model = two_layers()
    with tt.watch(model) as w:
        model(wide(1, 3))
    model(wide(1, 3))
    assert len(w.run) == 3


def test_a_gradient_after_closing_is_not_recorded() -> None:
    model = two_layers()
    with tt.watch(model, "*:grad_output") as w:
        loss = model(wide(1, 3)).sum()
    loss.backward()
    assert len(w.run) == 0


# --- threads ----------------------------------------------------------------------------------


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_two_threads_may_run_one_model() -> None:
    model = Net(lambda m, x: m.outer(m.inner(x)), inner=scales(2.0), outer=squares())

    def work(offset: int) -> None:
        for i in range(25):
            x = torch.full((2,), float(offset + i), requires_grad=True)
            (model(x) * offset).sum().backward()

    with tt.watch(model, "*:*") as w, ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (100, 1000)))
    values = sorted(record.value[0].item() for record in w.run.records("inner:input"))
    assert values == [float(offset + i) for offset in (100, 1000) for i in range(25)]
    assert len({record.key for record in w.run.records("inner:input")}) == 50
    for record in w.run.records("inner:grad_output"):  # d((2x)^2 k)/d(2x) = 2 k (2x)
        x = w.run.get("inner:input", call=record.call)
        offset = 100 if x[0] < 500 else 1000
        assert torch.equal(record.value, 4 * offset * x)


# --- the plan and the repr --------------------------------------------------------------------


def test_a_watch_says_what_it_sees_and_what_that_costs() -> None:
    model, x = two_layers(), leaf(2, 3)
    with tt.watch(model, "*:output,grad_output", to=[tt.Stats(), tt.Memory()]) as w:
        assert repr(w).startswith("Watch of Sequential: open, step 0\n")
        assert "output 3, grad_output 3" in repr(w) and "nothing yet" in repr(w)
        for _ in range(2):
            model(x)
            w.log(loss=1)
            w.step()
        lines = [line.split() for line in repr(w).splitlines() if line]
        said = {first: " ".join(rest) for first, *rest in lines}
    assert (said["sinks"], said["logged"], said["steps"]) == ("Stats, Memory", "loss", "0, 1")
    assert said["kept"] == f"6 records, {w.run.nbytes} B"
    assert said["measured"] == f"3 sites in 2 steps, numbers of {3 * 2 * 16 * 8} B"
    assert said["closing"].startswith("2 steps, ") and said["3"].startswith("sites absent")
    assert repr(w).startswith("Watch of Sequential: closed\n")
    assert "<table>" in w._repr_html_()
    with tt.watch(model, to=lambda record: None) as w, w.pause():
        assert "hand their records on" in repr(w) and ", paused" in repr(w)


def test_a_function_after_each_step_sees_the_step_and_never_stops_the_training() -> None:
    model, x, seen = two_layers(), leaf(2, 3), list[tuple[int, int]]()

    def fails(step: int) -> None:
        raise ValueError(f"at {step}")

    with pytest.raises(ValueError, match="at 0"), tt.watch(model, to=tt.Memory()) as w:
        stop = w.after_step(lambda step: seen.append((step, len(w.run))))
        w.after_step(fails)
        model(x)
        with pytest.raises(ValueError, match="at 0") as raised:
            w.step()
        assert "fails at the end of step 0" in raised.value.__notes__[0]
        model(x)
        w.step()
        stop()
        stop()
        model(x)
        w.step()
    assert seen == [(0, 3), (1, 6)] and len(w.run) == 9


def test_two_watches_at_once_see_the_same() -> None:
    model, x = two_layers(), leaf(2, 3)
    with tt.watch(model, "*:*") as first, tt.watch(model, "*:*") as second:
        model(x).sum().backward()
    assert len(first.run) == len(second.run) == 12
    for site in first.run.sites:
        assert torch.equal(first.run[site], second.run[site])


def test_the_first_of_two_watches_may_close_first() -> None:
    model, x = two_layers(), leaf(2, 3)
    first, second = tt.watch(model, "*:*"), tt.watch(model, "*:*")
    out = model(x)
    first.close()
    out.sum().backward()
    second.close()
    assert second.run[".:grad_output"].tolist() == [[1.0, 1.0]] * 2
    assert ".:grad_output" not in first.run


def test_leaves_whose_keys_read_the_same_are_told_apart() -> None:
    model = Net(lambda net, x: {0: x * 2, "0": x * 3})
    with tt.watch(model, ".:output,grad_output") as w:
        output = model(torch.ones(1, requires_grad=True))
        (output[0] + 5 * output["0"]).sum().backward()
    assert [(r.site.leaf, float(r.value)) for r in w.run.records(".:output")] == [
        ("0", 2.0),
        ("0~2", 3.0),
    ]
    assert float(w.run[".:grad_output[0~2]"]) == 5.0


def test_saved_tensor_hooks_without_a_name_are_accepted() -> None:
    from functools import partial

    model = nn.Linear(2, 2)
    identity = partial(lambda t: t)
    with tt.watch(model, "*:*") as w, torch.autograd.graph.saved_tensors_hooks(identity, identity):
        model(torch.ones(1, 2)).sum().backward()
    assert torch.equal(w.run[".:grad_output"], torch.ones(1, 2))
