"""``tt.attribute`` against closed forms, captum, and autograd on twins without in-place writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import captum.attr
import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

TARGET = torch.tensor([0, 2])


def picture_net() -> nn.Sequential:
    """Everything in it is a module, and nothing works in place, which captum needs."""
    return seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 8, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32, 3),
        )
    ).eval()


def pictures() -> Tensor:
    return normal(2, 3, 9, 9, seed=1).requires_grad_()


def rows_of_nine() -> Tensor:
    """Nine features: each row of the pixels, in all channels."""
    return (torch.arange(81).view(1, 1, 9, 9) // 9).expand(1, 3, 9, 9).contiguous()


def rolled(value: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, value.roll(1, 0), value)


CASES: dict[str, tuple[Callable[[nn.Module], Any], dict[str, Any], dict[str, Any]]] = {
    "gradient": (captum.attr.Saliency, {}, {"abs": False}),
    "input_x_gradient": (captum.attr.InputXGradient, {}, {}),
    "guided_backprop": (captum.attr.GuidedBackprop, {}, {}),
    "deconvolution": (captum.attr.Deconvolution, {}, {}),
    "integrated_gradients": (
        captum.attr.IntegratedGradients,
        {"baselines": 0.2, "n_steps": 20},
        {},
    ),
    "occlusion": (
        captum.attr.Occlusion,
        {"sliding_window_shapes": (3, 4, 3), "strides": (3, 2, 2), "baselines": 0.3},
        {},
    ),
}


@pytest.mark.parametrize("method", CASES)
@pytest.mark.filterwarnings("ignore:Setting (backward|forward):UserWarning")
def test_it_agrees_with_captum(method: str) -> None:
    theirs, settings, own = CASES[method]
    model = picture_net()
    expected = theirs(model).attribute(pictures(), target=TARGET, **settings, **own)
    found = tt.attribute(model, pictures(), target=TARGET, method=method, **settings)
    torch.testing.assert_close(found.values, expected.detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["riemann_middle", "riemann_left", "riemann_right"])
def test_the_rules_of_integration_agree_with_captum(rule: str) -> None:
    model = picture_net()
    expected, gap = captum.attr.IntegratedGradients(model).attribute(
        pictures(), target=TARGET, n_steps=9, method=rule, return_convergence_delta=True
    )
    found = tt.attribute(model, pictures(), target=TARGET, n_steps=9, rule=rule)
    torch.testing.assert_close(found.values, expected.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.gap, gap, rtol=0, atol=1e-5)


def test_trapezoids_are_exact_where_the_gradient_is_linear() -> None:
    # Captum's weights of this rule sum to 1 - 1 / n.
    squares, x = Net(lambda m, x: x.square()), normal(2, 3, seed=5)
    found = tt.attribute(squares, x, target=TARGET, n_steps=4, rule="riemann_trapezoid")
    expected = torch.zeros_like(x)
    expected[[0, 1], TARGET] = x.square()[[0, 1], TARGET]
    torch.testing.assert_close(found.values, expected)


def test_permutation_of_features_agrees_with_captum() -> None:
    model, mask = picture_net(), rows_of_nine()
    expected = captum.attr.FeaturePermutation(model, perm_func=rolled).attribute(
        pictures().detach(), target=TARGET, feature_mask=mask
    )
    found = tt.attribute(
        model,
        pictures(),
        target=TARGET,
        method="feature_permutation",
        feature_mask=mask,
        perm_func=rolled,
    )
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-6)


def test_exact_shapley_values_agree_with_captum() -> None:
    model, mask = picture_net(), rows_of_nine() // 3
    expected = captum.attr.ShapleyValues(model).attribute(
        pictures().detach(), target=TARGET, feature_mask=mask
    )
    found = tt.attribute(model, pictures(), target=TARGET, method="shapley", feature_mask=mask)
    assert "exact" in found.notes[0]
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-6)


def test_sampled_shapley_values_agree_with_captum_in_the_same_orders() -> None:
    model, mask = picture_net(), rows_of_nine()
    generator = torch.Generator().manual_seed(3)
    orders = [torch.randperm(9, generator=generator).tolist() for _ in range(7)]
    theirs = captum.attr.ShapleyValueSampling(model)
    theirs.permutation_generator = lambda num, samples: orders
    expected = theirs.attribute(pictures().detach(), target=TARGET, feature_mask=mask, n_samples=7)
    found = tt.attribute(
        model,
        pictures(),
        target=TARGET,
        method="shapley",
        feature_mask=mask,
        n_samples=7,
        seed=3,
    )
    torch.testing.assert_close(found.values, expected, rtol=0, atol=1e-6)


# --- closed forms -----------------------------------------------------------------------------


def linear() -> tuple[nn.Linear, Tensor]:
    model = seeded(lambda: nn.Linear(4, 3)).double()
    return model, normal(2, 4, seed=2).double()


@pytest.mark.parametrize("method", ["integrated_gradients", "shapley", "occlusion"])
def test_of_a_linear_model_each_element_adds_weight_times_what_it_is_above_the_baseline(
    method: str,
) -> None:
    model, x = linear()
    baseline = normal(1, 4, seed=3).double()
    found = tt.attribute(model, x, target=[1, 2], method=method, baselines=baseline)
    expected = model.weight[[1, 2]] * (x - baseline)
    torch.testing.assert_close(found.values, expected.detach())


@pytest.mark.parametrize("method", ["gradient", "smoothgrad", "smoothgrad_sq", "vargrad"])
def test_of_a_linear_model_noise_changes_no_gradient(method: str) -> None:
    model, x = linear()
    weight = model.weight[[1, 2]].detach()
    expected = {"vargrad": 0 * weight, "smoothgrad_sq": weight.square()}.get(method, weight)
    found = tt.attribute(model, x, target=[1, 2], method=method)
    torch.testing.assert_close(found.values, expected)


def products() -> Net:
    """x0 x1 + x2 x3 x4."""
    return Net(lambda m, x: (x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] * x[:, 4])[:, None])


def test_shapley_values_of_products_are_equal_shares() -> None:
    x = normal(3, 5, seed=4).double()
    two, three = x[:, :2].prod(1) / 2, x[:, 2:].prod(1) / 3
    expected = torch.stack([two, two, three, three, three], 1)
    found = tt.attribute(products(), x, target=0, method="shapley", n_samples=120)
    torch.testing.assert_close(found.values, expected)
    assert "exact" in found.notes[0]


def test_sampled_shapley_values_come_near_the_exact_ones_and_are_complete() -> None:
    x = normal(3, 5, seed=4).double()
    exact = tt.attribute(products(), x, target=0, method="shapley", n_samples=120)
    found = tt.attribute(products(), x, target=0, method="shapley", n_samples=100)
    assert "exact" not in found.notes[0]
    # The last of three gets the product: a share of 1/3 with variance 2/9 for each order.
    bound = 3 * (2 / 9 / 100) ** 0.5 * 3 * exact.values.abs().amax(1, keepdim=True)
    assert ((found.values - exact.values).abs() < bound).all()
    torch.testing.assert_close(found.values.sum(1), products()(x)[:, 0])
    assert found.gap.abs().max() < 1e-6


def test_integrated_gradients_of_a_product_are_equal_shares() -> None:
    x = normal(3, 5, seed=4).double()
    two, three = x[:, :2].prod(1) / 2, x[:, 2:].prod(1) / 3
    found = tt.attribute(products(), x, target=0, n_steps=3)
    torch.testing.assert_close(found.values, torch.stack([two, two, three, three, three], 1))


def test_vargrad_of_a_square_is_four_times_the_variance_of_the_noise() -> None:
    squares = Net(lambda m, x: x.square().sum(1, keepdim=True))
    x = normal(2, 3, seed=5).double()
    found = tt.attribute(squares, x, target=0, method="vargrad", stdevs=0.5, n_samples=4000)
    torch.testing.assert_close(found.values, torch.ones_like(x), rtol=0.1, atol=0)
    smooth = tt.attribute(squares, x, target=0, method="smoothgrad", stdevs=0.5, n_samples=4000)
    torch.testing.assert_close(smooth.values, 2 * x, rtol=0, atol=0.1)


def test_mean_square_and_variance_are_those_of_the_same_samples() -> None:
    model, x = picture_net().double(), pictures().double()
    maps = {
        name: tt.attribute(
            model, x, target=TARGET, method=name, of="input_x_gradient", n_samples=7, batch_size=4
        ).values
        for name in ("smoothgrad", "smoothgrad_sq", "vargrad")
    }
    torch.testing.assert_close(maps["vargrad"], maps["smoothgrad_sq"] - maps["smoothgrad"].square())


def test_permuted_features_lose_what_another_row_would_give() -> None:
    model, x = linear()
    found = tt.attribute(model, x, target=1, method="feature_permutation", n_samples=200)
    # Of two rows a permutation takes the other one in half of the draws.
    expected = model.weight[1].detach() * (x - x.flip(0)) / 2
    torch.testing.assert_close(found.values, expected, rtol=0.2, atol=0)


# --- completeness -----------------------------------------------------------------------------


def kinked() -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(6, 40), nn.ReLU(inplace=True), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
        )
    ).double()


def test_the_gap_is_the_sum_of_the_map_less_the_rise_of_the_score() -> None:
    model, x = kinked(), normal(4, 6, seed=6).double()
    found = tt.attribute(model, x, target=1, n_steps=7)
    rise = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    torch.testing.assert_close(
        found.gap.double(), (found.values.sum(1) - rise).detach(), atol=1e-7, rtol=0
    )
    assert found.gap.abs().max() > 1e-5


def test_a_gap_that_is_large_is_said_in_words() -> None:
    model = Net(lambda m, x: nn.functional.layer_norm(x, (4,)) @ torch.arange(4.0)[:, None])
    x = normal(2, 4, seed=6)
    found = tt.attribute(model, x, target=0, n_steps=4)
    assert found.gap is not None
    share = float(found.gap.abs().max() / (model(x) - model(0 * x)).abs().max())
    assert share == pytest.approx(1, abs=0.005)
    assert "the completeness gap is 100% of what the score rises" in found.notes[0]
    assert tt.attribute(model, x, target=0, tolerance=1e-3).gap.abs().max() <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
def test_steps_are_added_until_the_gap_is_below_what_was_asked(tolerance: float) -> None:
    model, x = kinked(), normal(4, 6, seed=6).double()
    found = tt.attribute(model, x, target=1, n_steps=8, tolerance=tolerance)
    rise = model(x)[:, 1] - model(torch.zeros_like(x))[:, 1]
    assert (found.values.sum(1) - rise).abs().max() <= tolerance


def test_steps_are_added_at_kinks_and_not_everywhere() -> None:
    model, x = kinked(), normal(1, 6, seed=6).double()
    found = tt.attribute(model, x, target=1, n_steps=8, tolerance=1e-8)
    num_steps = int(found.notes[0].split()[0].replace(",", ""))
    assert num_steps < 20_000  # Of equal steps there would be some 100 million.


def test_added_steps_give_the_integral_and_not_only_its_sum() -> None:
    model, x = kinked(), normal(2, 6, seed=6).double()
    found = tt.attribute(model, x, target=1, n_steps=8, tolerance=1e-8)
    dense = tt.attribute(model, x, target=1, n_steps=40_000, rule="riemann_middle", batch_size=4096)
    torch.testing.assert_close(found.values, dense.values, rtol=0, atol=1e-4)


def test_a_gap_that_was_not_reached_is_said() -> None:
    model, x = kinked(), normal(4, 6, seed=6).double()
    found = tt.attribute(model, x, target=1, n_steps=8, tolerance=1e-12, max_evals=100)
    assert any("more than asked (stopped after" in note for note in found.notes)
    assert found.gap.abs().max() > 1e-12


# --- where others are wrong -------------------------------------------------------------------


class InPlace(nn.Module):
    """A sum and a ReLU overwrite what BatchNorm returned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4 * 36, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x))
        h += 0.5
        return self.fc(self.relu(h).flatten(1).tanh())

    def from_norm(self, normed: Tensor) -> Tensor:
        """Everything behind BatchNorm, out of place."""
        return self.fc((normed + 0.5).relu().flatten(1).tanh())


def in_place() -> tuple[InPlace, Tensor]:
    return seeded(InPlace).double().eval(), normal(2, 1, 6, 6, seed=7).double()


def test_behind_batch_norm_and_an_in_place_relu_it_is_the_gradient_of_the_twin() -> None:
    model, x = in_place()
    normed = model.norm(model.conv(x)).detach().requires_grad_()
    (expected,) = torch.autograd.grad(model.from_norm(normed)[:, 1].sum(), normed)
    found = tt.attribute(model, x, target=1, method="gradient", at="norm")
    torch.testing.assert_close(found.values, expected)
    assert found.layer == "norm"
    product = tt.attribute(model, x, target=1, method="input_x_gradient", at="norm")
    torch.testing.assert_close(product.values, expected * normed.detach())


def test_behind_batch_norm_and_an_in_place_relu_it_is_the_finite_difference() -> None:
    model, x = in_place()
    found = tt.attribute(model, x, target=1, method="gradient").values
    for place in [(0, 0, 2, 3), (1, 0, 5, 0)]:
        step = torch.zeros_like(x)
        step[place] = 1e-6
        slope = (model(x + step) - model(x - step))[place[0], 1] / 2e-6
        torch.testing.assert_close(found[place], slope.detach(), rtol=1e-6, atol=1e-9)


def test_integrated_gradients_at_a_layer_are_complete_there() -> None:
    model, x = in_place()
    normed = model.norm(model.conv(x)).detach()
    found = tt.attribute(model, x, target=1, at="norm", tolerance=1e-8)
    rise = model.from_norm(normed) - model.from_norm(torch.zeros_like(normed))
    sums = found.values.flatten(1).sum(1)
    torch.testing.assert_close(sums, rise[:, 1].detach(), rtol=0, atol=1e-8)


class Rule(torch.autograd.Function):
    """A rectifier by the rules of the papers; the upper limit is that of ReLU6."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float, looks_at_input: bool) -> Tensor:
        ctx.save_for_backward((x > 0) & (x < limit) if looks_at_input else torch.ones_like(x))
        return x.clamp(0, limit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.clamp(min=0) * ctx.saved_tensors[0], None, None


class Rectified(nn.Module):
    """In-place ReLU6, a functional ReLU and a clamp; ``rule`` takes their place in the twin."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.relu6 = nn.ReLU6(inplace=True)
        self.fc1 = nn.Linear(6 * 36, 20)
        self.fc2 = nn.Linear(20, 20)
        self.fc3 = nn.Linear(20, 2)
        self.rule: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.rule is None:
            h = self.relu6(self.norm(20 * self.conv(x))).flatten(1)
            h = nn.functional.relu(self.fc1(h))
            return self.fc3(self.fc2(h).clamp(min=0))
        h = Rule.apply(self.norm(20 * self.conv(x)), 6.0, self.rule).flatten(1)
        h = Rule.apply(self.fc1(h), float("inf"), self.rule)
        return self.fc3(Rule.apply(self.fc2(h), float("inf"), self.rule))


@pytest.mark.parametrize(
    ("method", "looks_at_input"), [("guided_backprop", True), ("deconvolution", False)]
)
def test_rectifiers_of_any_name_follow_the_rules_of_the_papers(
    method: str, looks_at_input: bool
) -> None:
    model, x = seeded(Rectified).eval(), normal(2, 1, 6, 6, seed=8)
    found = tt.attribute(model, x, target=1, method=method)
    plain = tt.attribute(model, x, target=1, method="gradient")
    model.rule = looks_at_input
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf)[:, 1].sum(), leaf)
    torch.testing.assert_close(found.values, expected)
    assert (found.values - plain.values).abs().max() > 0.1 * plain.values.abs().max()


def smooth_net(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("activation", "why"),
    [
        (nn.SiLU(), "met SiLU, which lets negative values through"),
        (nn.GELU(), "met GELU, which lets negative values through"),
        (nn.Tanh(), "met none between the value and the score"),
    ],
)
@pytest.mark.parametrize("method", ["guided_backprop", "deconvolution"])
def test_without_rectifiers_the_plain_gradient_is_not_passed_off_as_another(
    method: str, activation: nn.Module, why: str
) -> None:
    with pytest.raises(tt.InputError, match=why):
        tt.attribute(smooth_net(activation), torch.ones(1, 3), method=method)


def test_a_rectifier_that_hides_in_a_function_of_the_model_is_refused() -> None:
    hidden = Net(lambda m, x: Rule.apply(x, 6.0, True))
    with pytest.raises(tt.InputError, match="RuleBackward, a function of the model's own"):
        tt.attribute(hidden, torch.ones(1, 3), method="guided_backprop")


def test_what_is_not_on_the_way_is_of_no_account_to_guided_backpropagation() -> None:
    model = Net(lambda m, x, y: x.relu() * 2 + nn.functional.silu(y), fc=nn.Linear(3, 3))
    found = tt.attribute(
        model, torch.ones(1, 3), torch.ones(1, 3, requires_grad=True), method="guided_backprop"
    )
    assert found.values.sum() == 2


def after_linear(function: Callable[[Tensor], Tensor]) -> Net:
    """Four linear features, a function of them, a linear layer, a ReLU, and a linear layer."""
    return seeded(
        lambda: Net(
            lambda m, x: m.out(torch.relu(m.mid(function(m.fc(x))))),
            fc=nn.Linear(3, 8),
            mid=nn.Linear(8, 8),
            out=nn.Linear(8, 2),
        )
    ).eval()


def zeroed_in_place(h: Tensor) -> Tensor:
    h = h * 1
    h[h < 0] = 0
    return h


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda h: torch.maximum(h, h.new_zeros(())), "MaximumBackward0"),
        (lambda h: torch.stack([h, torch.zeros_like(h)]).amax(0), "AmaxBackward0"),
        (lambda h: torch.stack([torch.zeros_like(h), h], -1).sort()[0][..., 1], "SortBackward0"),
        (lambda h: torch.where(h > 0, h, 0.0), "WhereBackward0"),
        (lambda h: torch.where(h > 0, h, 0.1 * h), "WhereBackward0"),
        (lambda h: torch.where(h < 0, 0.0, h), "WhereBackward0"),
        (lambda h: h * (h > 0), "MulBackward0"),
        (lambda h: (h > 0).float() * h, "MulBackward0"),
        (lambda h: h.exp() * (h.exp() > -1), "MulBackward0"),
        (lambda h: h.masked_fill(h < 0, 0), "MaskedFillBackward0"),
        (lambda h: (h + h.abs()) / 2, "AbsBackward0"),
        (lambda h: h - h.clamp(max=0), "ClampBackward1"),
        (zeroed_in_place, "(IndexPut|MaskedFill)Backward0"),  # The latter since 2.15.
        (lambda h: h * h.sigmoid(), "MulBackward0"),
        (lambda h: h / (1 + (-h).exp()), "DivBackward0"),
        (lambda h: 0.5 * h * (1 + torch.erf(h / 2**0.5)), "MulBackward0"),
        (lambda h: h * nn.functional.relu6(h + 3) / 6, "MulBackward0"),
        (lambda h: nn.functional.glu(torch.cat([h, h], 1), 1), "GluBackward0"),
        (lambda h: -nn.functional.logsigmoid(-h), "LogSigmoidBackward0"),
    ],
)
@pytest.mark.parametrize("method", ["guided_backprop", "deconvolution"])
def test_a_rectifier_written_by_hand_is_refused_beside_one_that_is_seen(
    method: str, function: Callable[[Tensor], Tensor], name: str
) -> None:
    x = normal(2, 3, seed=9)
    with pytest.raises(tt.InputError, match=f"{method} met {name}"):
        tt.attribute(after_linear(function), x, target=1, method=method)


KEPT = torch.tensor([True, False] * 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda h: h * 2,
        lambda h: h * torch.linspace(-1, 1, 8),
        lambda h: h * KEPT,
        lambda h: h.masked_fill(KEPT, 0),
        lambda h: torch.where(KEPT, h, 0.0),
        lambda h: torch.nn.functional.dropout(h, 0.5),
        lambda h: h * h.mean(1, keepdim=True).sigmoid(),
        lambda h: h.masked_fill(KEPT, -1e9).softmax(1),
        lambda h: nn.functional.layer_norm(h, (8,)),
        lambda h: (h - h.mean(1, keepdim=True)) / h.var(1, keepdim=True).sqrt(),
        lambda h: h[:, KEPT.nonzero()[:, 0]].repeat(1, 2),
        lambda h: nn.functional.max_pool1d(h, 2).repeat(1, 2),
        lambda h: h.tanh() + h.clamp(-1, 1),
        lambda h: nn.functional.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None])[
            :, 0
        ],
    ],
)
def test_masks_gates_and_smooth_functions_keep_their_gradient_in_guided_backpropagation(
    function: Callable[[Tensor], Tensor],
) -> None:
    model, x = after_linear(function), normal(4, 3, seed=9)
    found = tt.attribute(model, x, target=1, method="guided_backprop")
    leaf = x.clone().requires_grad_()
    hidden = model.mid(function(model.fc(leaf)))  # With the random numbers of the map's runs.
    back = (hidden > 0) * model.out.weight[1].clamp(min=0)
    (expected,) = torch.autograd.grad(hidden, leaf, back)
    torch.testing.assert_close(found.values, expected)
