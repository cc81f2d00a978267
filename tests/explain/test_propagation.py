"""Relevance propagation and DeepLift: captum's where it has a rule, and the formulas by hand."""

from __future__ import annotations

import captum.attr
import pytest
import torch
from captum.attr._utils.lrp_rules import EpsilonRule
from models import relu_mlp, rows, seeded, small
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

TARGET = torch.tensor([0, 2])


class Plain(nn.Module):
    """Modules that captum has rules for, each used once, and nothing in place."""

    def __init__(self, pool: nn.Module, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.pool = pool
        self.conv2 = nn.Conv2d(4, 8, 3)
        self.first = first
        self.fc1 = nn.Linear(32, 6)
        self.second = second
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.conv2(self.pool(self.relu(self.conv1(x)))))
        return self.fc2(self.second(self.fc1(h.flatten(1))))


def pictures() -> Tensor:
    return normal(2, 3, 9, 9, seed=1).requires_grad_()


@pytest.mark.parametrize("epsilon", [1e-9, 0.05])
@pytest.mark.parametrize("pool", [nn.MaxPool2d, nn.AvgPool2d])
@pytest.mark.filterwarnings("ignore:Setting (backward|forward):UserWarning")
def test_relevance_agrees_with_captum(pool: type[nn.Module], epsilon: float) -> None:
    model = seeded(lambda: Plain(pool(2), nn.Tanh(), nn.ReLU()))
    for module in model.children():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.AvgPool2d):
            module.rule = EpsilonRule(epsilon)
    expected = captum.attr.LRP(model).attribute(pictures(), target=TARGET)
    found = tt.attribute(model, pictures(), target=TARGET, method="lrp", epsilon=epsilon)
    torch.testing.assert_close(found.values, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.ELU, nn.Sigmoid])
@pytest.mark.filterwarnings("ignore:Setting (backward|forward):UserWarning")
def test_multipliers_agree_with_captum(activation: type[nn.Module]) -> None:
    model = seeded(lambda: Plain(nn.AvgPool2d(2), activation(), nn.Softplus()))
    baseline = torch.full((2, 3, 9, 9), 0.3)
    expected = captum.attr.DeepLift(model).attribute(pictures(), target=TARGET, baselines=baseline)
    found = tt.attribute(model, pictures(), target=TARGET, method="deeplift", baselines=0.3)
    torch.testing.assert_close(found.values, expected.detach(), rtol=0, atol=1e-6)


# --- by hand ----------------------------------------------------------------------------------


class Residual(nn.Module):
    """In-place SiLU behind a sum, and a residual: captum has no rule for either."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.fc2 = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        nn.functional.silu(h, inplace=True)
        h += x
        return self.fc2(h)


def residual() -> tuple[Residual, Tensor]:
    return seeded(Residual).double(), normal(2, 4, seed=2).double()


def stabilised(value: Tensor, epsilon: float) -> Tensor:
    return value + torch.where(value >= 0, epsilon, -epsilon)


def test_relevance_through_a_residual_is_that_of_the_formula() -> None:
    model, x = residual()
    epsilon, target = 0.1, 1
    with torch.no_grad():
        z1 = model.fc1(x)
        a1 = nn.functional.silu(z1)
        total = a1 + x
        z2 = model.fc2(total)[:, target, None]
        of_total = total * model.fc2.weight[target] * (z2 / stabilised(z2, epsilon))
        share = of_total / stabilised(total, epsilon)
        of_a1 = a1 * share  # The activation hands it to z1 as it is.
        expected = x * share + x * ((of_a1 / stabilised(z1, epsilon)) @ model.fc1.weight)
    found = tt.attribute(model, x, target=target, method="lrp", epsilon=epsilon)
    torch.testing.assert_close(found.values, expected)


def test_multipliers_through_an_in_place_activation_are_differences_over_differences() -> None:
    model, x = residual()
    baseline = normal(1, 4, seed=3).double()
    with torch.no_grad():
        z, z0 = model.fc1(x), model.fc1(baseline)
        slope = (nn.functional.silu(z) - nn.functional.silu(z0)) / (z - z0)
        back = (model.fc2.weight[1] * slope) @ model.fc1.weight + model.fc2.weight[1]
    found = tt.attribute(model, x, target=1, method="deeplift", baselines=baseline)
    torch.testing.assert_close(found.values, back * (x - baseline))


@pytest.mark.parametrize("name", ["mobilenet", "densenet"])
def test_deeplift_is_complete_with_in_place_activations_of_any_name(name: str) -> None:
    make, inputs = small()[name]
    model, x = make().double().eval(), inputs().double()
    with torch.no_grad():
        for one in model.modules():
            if isinstance(one, nn.BatchNorm2d):
                one.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    baseline = 0.3 * torch.ones_like(x)
    found = tt.attribute(model, x, target=1, method="deeplift", baselines=0.3)
    rise = (model(x) - model(baseline))[:, 1].detach()
    torch.testing.assert_close(found.values.flatten(1).sum(1), rise)
    plain = tt.attribute(model, x, target=1, method="gradient").values * (x - baseline)
    assert not torch.allclose(found.values, plain, rtol=1e-2)


def test_with_rectifiers_and_a_small_stabiliser_relevance_is_input_x_gradient() -> None:
    # Ancona et al. (2018), proposition 1.
    make, inputs = small()["mobilenet"]
    model, x = make().double().eval(), inputs().double()
    found = tt.attribute(model, x, target=1, method="lrp", epsilon=1e-12)
    expected = tt.attribute(model, x, target=1, method="input_x_gradient")
    below = expected.values.abs().max()  # ReLU6 is cut off in few places, or in none.
    torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=float(1e-4 * below))


def test_it_works_inside_of_the_model() -> None:
    model, x = relu_mlp(), rows()
    for method in ("lrp", "deeplift"):
        inside = tt.attribute(model, x, target=1, method=method, at="0")
        outside = tt.attribute(model[1:], model[0](x).detach(), target=1, method=method)
        torch.testing.assert_close(inside.values, outside.values)


# --- refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "method", "message"),
    [
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), "lrp", "met NativeLayerNormBackward0"),
        (nn.Softmax(1), "deeplift", "met SoftmaxBackward0, an operation that it has no rule for"),
        (nn.Sigmoid(), "lrp", "met SigmoidBackward0"),
        (Net(lambda m, x: x * x.tanh()), "lrp", "several operands depend on the value"),
        (Net(lambda m, x: x / x.exp()), "deeplift", "several operands depend on the value"),
        (nn.BatchNorm1d(3), "lrp", "normalises over the batch"),
    ],
)
def test_an_operation_without_a_rule_is_refused_by_name(
    model: nn.Module, method: str, message: str
) -> None:
    with pytest.raises(tt.InputError, match=message):
        tt.attribute(model, rows(), target=1, method=method)


def test_the_first_operation_without_a_rule_is_the_one_that_is_named() -> None:
    model = Net(lambda m, x: nn.functional.layer_norm(x.softmax(1), (3,)))
    with pytest.raises(tt.InputError, match="lrp met SoftmaxBackward0"):
        tt.attribute(model, rows(), target=1, method="lrp")


def test_deeplift_has_no_rule_for_maxima() -> None:
    make, inputs = small()["digits"]
    with pytest.raises(tt.InputError, match="deeplift met MaxPool2DWithIndicesBackward0"):
        tt.attribute(make(), inputs(), target=1, method="deeplift")


def test_another_way_at_the_baseline_is_refused() -> None:
    model = Net(lambda m, x: x.tanh() if x.sum() else x.sigmoid())
    with pytest.raises(tt.InputError, match="runs other operations there"):
        tt.attribute(model, rows(), target=1, method="deeplift")


SIGHTLESS = {
    "mask": Net(lambda m, x: (x * (x > 0.1)) @ torch.ones(3, 3)),
    "detached gate": Net(lambda m, x: x * x.detach().sigmoid()),
    "detached term": Net(lambda m, x: x.tanh() + x.detach()),
    "index": Net(lambda m, x: x.gather(1, x.argsort(1))),
}


@pytest.mark.parametrize("case", SIGHTLESS)
def test_what_autograd_does_not_see_of_the_value_is_refused_by_deeplift(case: str) -> None:
    x = torch.tensor([[0.3, -0.4, 0.2], [-1.0, 2.0, 0.5]])
    other = torch.tensor([[0.1, 0.9, -0.7]])
    with pytest.raises(tt.InputError, match="deeplift does not add up"):
        tt.attribute(SIGHTLESS[case], x, target=1, method="deeplift", baselines=other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_rounding_in_a_deep_model_is_no_reason_to_refuse(dtype: torch.dtype) -> None:
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8), nn.ReLU())] * 6
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 8), *blocks, nn.Linear(8, 3))).to(dtype)
    found = tt.attribute(model, rows().to(dtype), target=1, method="deeplift")
    assert bool(found.values.isfinite().all())
