"""The helpers that other tests lean on: the zoo, the truth, the networks, torch's samples."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import module_db
import pytest
import torch
from models import TinyGPT, resnet18, resnet34, small
from random_numbers import normal
from torch import Tensor, nn
from truth import PORTS, Truth, TwinError, assert_matches, truth

from torchtap.core.site import Site
from torchtap.core.tree import leaves
from torchtap.testing import Net, Specimen, default_loss, zoo

every_specimen = pytest.mark.parametrize("specimen", zoo(), ids=str)
every_specimen_with_a_twin = pytest.mark.parametrize(
    "specimen", [specimen for specimen in zoo() if specimen.twin], ids=str
)
SAMPLES = list(module_db.samples(most=1))


@dataclasses.dataclass
class Outcome:
    """Everything that one run of a specimen leaves behind."""

    tensors: list[Tensor]
    silent: set[str]
    recomputed: set[str]
    drew: bool


def run(specimen: Specimen, model: nn.Module) -> Outcome:
    """Forward, backward; outputs, gradients and buffers."""
    called: list[str] = []
    for path, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, path=path: called.append(path))
    args, kwargs = specimen.inputs()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found: list[Tensor] = []
    if specimen.raises is not None:
        with pytest.raises(specimen.raises):
            model(*args, **kwargs)
    else:
        found += [tensor for _, tensor in leaves(model(*args, **kwargs))]
    silent = {path for path, _ in model.named_modules()} - set(called)
    drew = not torch.equal(before, torch.get_rng_state())
    num_called = len(called)
    loss = default_loss(found)
    assert (loss is not None) == specimen.backward
    if loss is not None:
        loss.backward()
    found += [p.grad for p in model.parameters() if p.grad is not None]
    found += [tensor for _, tensor in leaves([args, kwargs])] + list(model.buffers())
    return Outcome(found, silent, set(called[num_called:]), drew)


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    """Equal bit for bit; nan equals nan."""

    def dense(tensor: Tensor) -> Tensor:
        return (tensor.to_dense() if tensor.is_sparse else tensor).detach()

    return len(left) == len(right) and all(
        a.dtype == b.dtype
        and torch.equal(torch.nan_to_num(dense(a)), torch.nan_to_num(dense(b)))
        and torch.equal(dense(a).isnan(), dense(b).isnan())
        for a, b in zip(left, right, strict=True)
    )


# --- the zoo ----------------------------------------------------------------------------------


def test_names_in_the_zoo_are_unique_identifiers() -> None:
    names = [specimen.name for specimen in zoo()]
    assert len(set(names)) == len(names) > 90
    assert all(name.isidentifier() for name in names)
    assert all(specimen.trap for specimen in zoo())


@every_specimen
def test_a_specimen_is_the_same_every_time(specimen: Specimen) -> None:
    first, second = specimen.build(), specimen.build()
    assert same(list(first.state_dict().values()), list(second.state_dict().values()))
    assert same(run(specimen, first).tensors, run(specimen, second).tensors)


@every_specimen
def test_building_draws_no_global_random_numbers(specimen: Specimen) -> None:
    before = torch.get_rng_state()
    specimen.build()
    specimen.inputs()
    assert torch.equal(before, torch.get_rng_state())


@every_specimen
def test_the_marks_of_a_specimen_are_true(specimen: Specimen) -> None:
    found = run(specimen, specimen.build())
    assert found.drew == specimen.random
    assert bool(found.recomputed) == specimen.recomputes
    assert found.silent == set(specimen.silent)


@every_specimen
def test_a_specimen_can_be_copied(specimen: Specimen) -> None:
    model = specimen.build()
    clone = copy.deepcopy(model)
    assert same(run(specimen, model).tensors, run(specimen, clone).tensors)


def test_default_loss_weighs_every_element_differently() -> None:
    first = torch.ones(2, 2, requires_grad=True)
    second = torch.full((2,), 3 + 4j, requires_grad=True)
    loss = default_loss({"a": [first, None], "b": (second, torch.ones(3), 7)})
    assert loss is not None and loss.dtype == torch.float64
    loss.backward()
    weights = torch.arange(7).double().cos()
    torch.testing.assert_close(first.grad, weights[:4].view(2, 2).float())
    torch.testing.assert_close(second.grad, (weights[5:] * (0.6 + 0.8j)).to(torch.complex64))


@pytest.mark.parametrize("output", [None, torch.ones(2), [], {"a": 1}, "text"])
def test_default_loss_of_nothing_differentiable_is_none(output: Any) -> None:
    assert default_loss(output) is None


# --- the truth against formulas by hand -------------------------------------------------------


def weights(rows: int, columns: int) -> Tensor:
    """The gradient that ``default_loss`` gives to a bare output."""
    return torch.arange(rows * columns).double().cos().view(rows, columns)


def input_rows() -> Tensor:
    return normal(2, 3, seed=3)


def assert_true(found: Truth, expected: Mapping[tuple[str, str, int], Tensor | None]) -> None:
    for (path, port, call), right in expected.items():
        value = found[path, port, call, 0]
        if right is None:
            assert value is None, (path, port, call)
        else:
            assert value is not None, (path, port, call)
            torch.testing.assert_close(value.double(), right.double(), rtol=1e-6, atol=1e-6)


def truth_of(name: str) -> tuple[nn.Module, Truth]:
    """A specimen, and what flows in it."""
    specimen = next(specimen for specimen in zoo() if specimen.name == name)
    model = specimen.build()
    args, kwargs = specimen.inputs()
    return model, truth(model, args, kwargs, default_loss)


def test_truth_of_two_layers_is_the_formula() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = input_rows()
    found = truth(model, (x,), {}, default_loss)
    hidden = model[0](x).detach()
    grad = weights(2, 2)
    at_tanh = grad @ model[2].weight.detach().double()
    at_first = at_tanh * (1 - hidden.double().tanh() ** 2)
    expected = {
        ("", "input", 0): x,
        ("", "grad_input", 0): None,
        ("0", "output", 0): hidden,
        ("0", "grad_output", 0): at_first,
        ("0", "grad_input", 0): None,
        ("1", "input", 0): hidden,
        ("1", "grad_input", 0): at_first,
        ("1", "grad_output", 0): at_tanh,
        ("2", "grad_input", 0): at_tanh,
        ("2", "grad_output", 0): grad,
        ("", "grad_output", 0): grad,
    }
    assert_true(found, expected)
    assert found.loss == pytest.approx(float((model(x).detach().double() * grad).sum()))


def residual(m: Any, x: Tensor) -> Tensor:
    hidden = m.relu(m.a(x))
    out = m.b(hidden)
    out += hidden
    return m.relu(out)


@pytest.mark.parametrize("double", [True, False])
def test_truth_of_an_in_place_residual_is_the_formula(double: bool) -> None:
    torch.manual_seed(1)
    relu = nn.ReLU(inplace=True)
    model = Net(residual, a=nn.Linear(3, 3), b=nn.Linear(3, 3), relu=relu)
    x = input_rows()
    found = truth(model, (x,), {}, default_loss, double=double)
    a, b = model.get_submodule("a"), model.get_submodule("b")
    first = a(x).detach()
    hidden = first.relu()
    second = b(hidden).detach()
    grad = weights(2, 3)
    inside = grad * (second + hidden > 0)
    through_b = inside @ b.weight.detach().double()
    expected = {
        ("a", "output", 0): first,
        ("relu", "input", 0): first,
        ("relu", "output", 0): hidden,
        ("b", "output", 0): second,
        ("relu", "input", 1): second + hidden,
        ("relu", "output", 1): (second + hidden).relu(),
        ("relu", "grad_output", 1): grad,
        ("relu", "grad_input", 1): inside,
        ("b", "grad_output", 0): inside,
        ("b", "grad_input", 0): through_b,
        ("relu", "grad_output", 0): through_b + inside,
        ("relu", "grad_input", 0): (through_b + inside) * (first > 0),
        ("a", "grad_output", 0): (through_b + inside) * (first > 0),
    }
    assert_true(found, expected)


def test_truth_of_f_x_x_is_the_sum_in_both_slots() -> None:
    model, found = truth_of("same_tensor_twice")
    weight = model.get_submodule("inner.a").weight.detach().double()
    hidden = found["inner", "input", 0, 0]
    product = found["inner.a", "output", 0, 0]
    assert hidden is not None and product is not None
    grad = weights(2, 3)
    right = (grad * hidden) @ weight + grad * product
    for slot in (0, 1):
        torch.testing.assert_close(
            found["inner", "grad_input", 0, slot], right, rtol=1e-6, atol=1e-6
        )
    assert found.entries["inner", "input", 0, 0].slots == (0, 1)
    assert_true(found, {("last", "grad_output", 0): right})


def test_truth_of_an_identity_has_the_part_and_the_total() -> None:
    model, found = truth_of("identity")
    hidden = found["a", "output", 0, 0]
    late = found["b", "output", 0, 0]
    assert hidden is not None and late is not None
    grad = weights(2, 3)
    weight = model.get_submodule("b").weight.detach().double()
    part = ((grad * hidden) @ weight) * hidden.double().cos()
    total = part + grad * late
    entry = found.entries["same", "input", 0, 0]
    assert entry.is_handed_through and entry.total is not None
    torch.testing.assert_close(entry.total, total, rtol=1e-6, atol=1e-6)
    expected = {
        ("same", "grad_input", 0): part,
        ("same", "grad_output", 0): total,
        ("a", "grad_output", 0): total,
    }
    assert_true(found, expected)


def test_truth_of_an_output_used_inside_is_the_total() -> None:
    _, found = truth_of("output_used_inside")
    root, inner = found["", "grad_output", 0, 0], found["a", "grad_output", 0, 0]
    outside = found.entries["", "output", 0, 0].through
    assert root is not None and inner is not None and outside is not None
    torch.testing.assert_close(root, inner)
    torch.testing.assert_close(outside, weights(2, 3), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(root, outside)


def test_truth_of_a_view_written_to_is_the_formula() -> None:
    _, found = truth_of("slice_changed")
    value = found["view", "output", 0, 0]
    assert value is not None
    right = 3 * weights(2, 2) * (3 * value.double()).cos()
    padded = torch.cat((right, torch.zeros(2, 1)), dim=1)
    expected = {
        ("view", "grad_output", 0): right,
        ("view", "grad_input", 0): padded,
        ("a", "grad_output", 0): padded,
    }
    assert_true(found, expected)


@every_specimen
def test_truth_is_had_of_every_specimen_that_has_a_twin(specimen: Specimen) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    state, given = copy.deepcopy(model.state_dict()), copy.deepcopy((args, kwargs))
    random_state = torch.get_rng_state()
    options: dict[str, Any] = {"double": specimen.double, "raises": specimen.raises}
    if not specimen.twin:
        with pytest.raises(TwinError, match="wrote through another"):
            truth(model, args, kwargs, default_loss, **options)
        return
    found = truth(model, args, kwargs, default_loss, **options)
    assert (found.loss is not None) == specimen.backward
    assert bool(found.expected(["grad_input", "grad_output"])) == specimen.backward
    assert (found.error is not None) == (specimen.raises is not None)
    ran = {key.path for key in found.entries}
    assert not ran & set(specimen.silent)
    # The model itself and its arguments are as they were.
    assert same(list(state.values()), list(model.state_dict().values()))
    given_leaves, now = leaves(list(given)), leaves([args, kwargs])
    assert same([tensor for _, tensor in given_leaves], [tensor for _, tensor in now])
    assert torch.equal(random_state, torch.get_rng_state())
    assert specimen.name == "foreign_hooks" or not any(
        module._forward_pre_hooks or module._forward_hooks for module in model.modules()
    )


# --- comparing with the truth -----------------------------------------------------------------


@dataclasses.dataclass
class Fake:
    """A record, as far as the comparison looks at it."""

    site: Site
    call: int
    value: Tensor
    phase: str = "forward"
    labels: tuple[str, ...] = ()


def faithful(found: Truth) -> Iterator[Fake]:
    """A complete recording, made from the truth."""
    for key in sorted(found.entries):
        entry = found.entries[key]
        for port in PORTS:
            value = found[key.path, port, key.call, key.n] if port.endswith(key.port) else None
            if value is not None:
                yield Fake(Site(key.path, port, entry.leaf), key.call, value.to(entry.value.dtype))


def example() -> tuple[Truth, list[Fake]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    found = truth(model, (input_rows(),), {}, default_loss)
    return found, list(faithful(found))


def test_a_faithful_recording_matches() -> None:
    found, records = example()
    assert assert_matches(records, found, rtol=1e-6, atol=0) == len(records) == 14


@every_specimen_with_a_twin
def test_every_truth_matches_itself(specimen: Specimen) -> None:
    args, kwargs = specimen.inputs()
    options: dict[str, Any] = {"double": specimen.double, "raises": specimen.raises}
    found = truth(specimen.build(), args, kwargs, default_loss, **options)
    assert assert_matches(faithful(found), found, rtol=1e-6, atol=1e-30) > 0


@pytest.mark.parametrize("port", PORTS)
def test_a_wrong_value_is_found(port: str) -> None:
    found, records = example()
    wrong = next(record for record in records if record.site.port == port)
    wrong.value = wrong.value.clone()
    wrong.value[0, 0] += 1e-3
    with pytest.raises(AssertionError, match=r"another value|off by"):
        assert_matches(records, found, rtol=1e-6, atol=0)


@pytest.mark.parametrize("position", range(14))
def test_a_missing_record_is_found(position: int) -> None:
    found, records = example()
    with pytest.raises(AssertionError, match="1 not recorded, of 14"):
        assert_matches(records[:position] + records[position + 1 :], found, rtol=1e-6, atol=0)


def test_a_record_too_many_is_found() -> None:
    found, records = example()
    with pytest.raises(AssertionError, match="recorded twice"):
        assert_matches([*records, records[0]], found, rtol=1e-6, atol=0)
    gradient = next(record for record in records if record.site == Site("0", "grad_output"))
    gradient.site = Site("0", "grad_input")
    with pytest.raises(AssertionError, match="no gradient arrives"):
        assert_matches([gradient], found, rtol=1e-6, atol=0)


def test_another_dtype_or_shape_is_found() -> None:
    found, records = example()
    first = records[0]
    for value in (first.value.double(), first.value[:1]):
        with pytest.raises(AssertionError, match="expected"):
            assert_matches([dataclasses.replace(first, value=value)], found, rtol=1, atol=1)


def test_a_part_of_a_model_can_be_compared() -> None:
    found, records = example()
    some = [r for r in records if r.site.path == "2" and r.site.port == "grad_output"]
    assert assert_matches(some, found, rtol=1e-6, atol=0, ports=["grad_output"], paths="2".__eq__)


# --- the networks -----------------------------------------------------------------------------


def test_the_networks_have_the_modules_that_their_names_promise() -> None:
    def num_convolutions(model: nn.Module) -> int:
        return sum(isinstance(module, nn.Conv2d) for module in model.modules())

    assert num_convolutions(resnet34(width=2)) == 36
    assert num_convolutions(resnet18(width=2)) == 20
    ran = [m for m in TinyGPT().modules() if not isinstance(m, nn.ModuleList)]
    assert len(ran) == 33


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", small())
def test_a_network_has_a_truth(name: str, training: bool) -> None:
    build, inputs = small()[name]
    before = torch.get_rng_state()
    model = build().train(training)
    found = truth(model, (inputs(),), {}, default_loss)
    assert torch.equal(before, torch.get_rng_state())
    # Every module gets a gradient, except for those that take tokens or the picture.
    ports = ["grad_output"]
    assert {key[0] for key in found.expected(ports)} == {key.path for key in found.entries}
    assert assert_matches(faithful(found), found, rtol=1e-6, atol=0) > 10


# --- torch's own samples ----------------------------------------------------------------------


def test_there_are_many_samples() -> None:
    ids = [sample.id for sample in SAMPLES]
    assert len(set(ids)) == len(ids) > 200
    assert len({sample.name for sample in SAMPLES}) > 100


def test_samples_are_the_same_every_time_and_run_both_ways() -> None:
    before = torch.get_rng_state()
    for sample in SAMPLES:
        module, args, kwargs = sample.build()
        again, other_args, other_kwargs = sample.build()
        assert again is not module and module.training == sample.training
        mine = [*module.state_dict().values(), *(t for _, t in leaves([args, kwargs]))]
        theirs = [*again.state_dict().values(), *(t for _, t in leaves([other_args, other_kwargs]))]
        assert same(mine, theirs), sample.id
        with module_db.quiet():
            loss = default_loss(module(*args, **kwargs))
        assert loss is not None, sample.id
        loss.backward()
    assert torch.equal(before, torch.get_rng_state())
