"""How far a map can be trusted: curves, areas, random weights, noise."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.errors import InputError
from torchtap.core.site import Site
from torchtap.explain.checks.check_result import Check
from torchtap.explain.checks.curves import Curve
from torchtap.explain.checks.randomise import randomised
from torchtap.explain.checks.rank_agreement import importance_order, ranks, spearman
from torchtap.explain.maps.map import Map
from torchtap.explain.recipe import Recipe
from torchtap.explain.subject import Subject
from torchtap.explain.target import Target


def input_times_gradient(subject: Subject, target: Target) -> Map:
    """The map of the first input, made here."""
    name, given = next(iter(subject.inputs.items()))
    with subject.held():
        x = given.detach().clone().requires_grad_()
        scores = subject.scores(target, {name: x})
        (gradient,) = torch.autograd.grad(scores.sum(), x)
    return map_of(subject, target, (gradient * x).detach(), scores, name)


def magnitude_of_input(subject: Subject, target: Target) -> Map:
    """A map that does not ask the model anything."""
    name, given = next(iter(subject.inputs.items()))
    with subject.held():
        scores = subject.scores(target)
    return map_of(subject, target, given.abs(), scores, name)


def map_of(subject: Subject, target: Target, values: Tensor, scores: Tensor, name: str) -> Map:
    return Map(
        values,
        "ours",
        "",
        target.classes,
        target.text,
        scores.detach(),
        size=tuple(values.shape[2:]) if values.dim() > 2 else (),
        again=Recipe(subject, target, MAKERS[0], over=name),
    )


MAKERS = [input_times_gradient]


def explained(model: nn.Module, *inputs: Tensor, target: Any = None, make: Any = None) -> Map:
    subject, aim = Subject(model, inputs, {}), Target(target)
    make = make or input_times_gradient
    found = make(subject, aim)
    again = Recipe(subject, aim, make, over=next(iter(subject.inputs)))
    return Map(**{**{f: getattr(found, f) for f in Map.__dataclass_fields__}, "again": again})


def linear(weights: list[float]) -> nn.Linear:
    model = nn.Linear(len(weights), 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights, [0.0] * len(weights)]))
    return model


FEW: dict[str, Any] = {"num_controls": 1, "num_random": 1, "num_noise": 2}


# ---------------------------------------------------------------------- ranks


def test_ranks_share_the_mean_of_ties() -> None:
    assert ranks(torch.tensor([10.0, 20.0, 10.0, 30.0])).tolist() == [0.5, 2.0, 0.5, 3.0]


def test_rank_correlation_is_that_of_the_formula_without_ties() -> None:
    # 1 - 6 sum d^2 / (n (n^2 - 1)) with differences of ranks 1, 1, 0, 0: 1 - 12 / 60.
    found = spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([20.0, 10.0, 30.0, 40.0]))
    assert found == pytest.approx(0.8)
    assert spearman(torch.arange(9.0), -torch.arange(9.0).exp()) == pytest.approx(-1)


def test_rank_correlation_with_ties_is_that_of_scipy() -> None:
    from scipy import stats  # type: ignore[import-untyped,unused-ignore]

    numbers = np.random.default_rng(0)
    for _ in range(20):
        one, two = numbers.integers(0, 6, 40), numbers.integers(0, 6, 40)
        ours = spearman(torch.tensor(one), torch.tensor(two))
        assert ours == pytest.approx(float(stats.spearmanr(one, two).statistic))


def test_no_rank_correlation_of_a_constant_or_of_nan() -> None:
    some = torch.tensor([1.0, 2.0, 3.0])
    for other in (torch.ones(3), torch.tensor([1.0, math.nan, 2.0])):
        assert math.isnan(spearman(some, other))
    assert math.isnan(spearman(some[:1], some[:1]))


def test_the_order_begins_with_the_largest_ends_with_nan_and_draws_ties() -> None:
    values = torch.tensor([[0.0, 3.0, math.nan, 5.0]])
    generator = torch.Generator().manual_seed(0)
    assert importance_order(values, generator).tolist() == [[2, 1, 3, 0]]
    ties = torch.zeros(1, 50)
    drawn = importance_order(ties, generator)
    assert drawn[0].sort().values.tolist() == list(range(50))
    assert drawn[0].tolist() != list(range(50))


# ---------------------------------------------------------------------- curves


def test_areas_are_trapezoids() -> None:
    shares = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    one = Curve(shares, torch.tensor([[1.0, 1.0, 0.0]]).double(), torch.zeros(2, 1, 3).double())
    assert one.area.tolist() == [0.75]
    assert one.control_areas.tolist() == [[0.0], [0.0]]


def test_the_curves_of_a_linear_model_are_the_partial_sums() -> None:
    # Contributions 4, 3, 2, 1 and a sum of 10; what is taken away becomes 0.
    map_ = explained(linear([1.0, 3.0, 2.0, 4.0]), torch.ones(1, 4), target=0)
    found = map_.check(steps=4, of="score", **FEW)
    assert found.deletion is not None
    assert found.insertion is not None
    assert found.deletion.shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert found.deletion.scores.tolist() == [[10, 6, 3, 1, 0]]
    assert found.insertion.scores.tolist() == [[0, 4, 7, 9, 10]]
    assert found.deletion.area.tolist() == [pytest.approx(0.25 * (5 + 6 + 3 + 1))]
    assert found.insertion.area.tolist() == [pytest.approx(0.25 * (4 + 7 + 9 + 5))]
    # No other order is better.
    assert bool((found.deletion.control >= found.deletion.scores).all())
    assert bool((found.insertion.control <= found.insertion.scores).all())


def test_each_row_goes_in_its_own_order_whatever_the_size_of_the_batches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    map_ = explained(model, x)
    found = map_.check(steps=6, batch_size=4, **FEW).deletion
    large = map_.check(steps=6, batch_size=1000, **FEW).deletion
    assert found is not None
    assert large is not None
    torch.testing.assert_close(found.scores, large.scores)
    for row in range(3):
        values = x[row].clone()
        order = map_.values[row].argsort(descending=True)
        for step in range(7):
            values[order[:step]] = 0
            wanted = model(values).softmax(0)[map_.target[row]]
            assert float(found.scores[row, step]) == pytest.approx(wanted.item(), abs=1e-12)


def test_pixels_go_with_all_their_channels_and_become_the_mean_of_each() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2)).double()
    x = torch.randn(1, 3, 4, 4, dtype=torch.float64)
    map_ = explained(model, x, target=1)
    found = map_.check(steps=16, of="score", **FEW).deletion
    assert found is not None
    places = map_.values.sum(1).flatten()
    values = x.clone().reshape(1, 3, 16)
    values[:, :, places.argsort(descending=True)[:5]] = x.mean((2, 3))[..., None]
    wanted = model(values.reshape(1, 3, 4, 4))[0, 1]
    assert float(found.scores[0, 5]) == pytest.approx(wanted.item())
    gone = model(x.mean((2, 3), keepdim=True).expand_as(x))[0, 1]
    assert float(found.scores[0, -1]) == pytest.approx(gone.item())


def test_a_coarse_map_is_resized_to_the_pixels() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    x = torch.randn(1, 1, 4, 4)

    def coarse(subject: Subject, target: Target) -> Map:
        with subject.held():
            scores = subject.scores(target)
        values = torch.tensor([[[0.0, 0.0], [0.0, 1.0]]])
        return Map(values, "ours", "", target.classes, target.text, scores.detach(), size=(4, 4))

    map_ = explained(model, x, target=0, make=coarse)
    found = map_.check(steps=16, of="score", baseline=0.0, **FEW).deletion
    assert found is not None
    values = x.clone()
    values[0, 0, 3, 3] = 0  # The corner is the largest once the map is resized.
    assert float(found.scores[0, 1]) == pytest.approx(model(values)[0, 0].item(), abs=1e-6)


def test_integers_need_a_baseline_and_go_with_one() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embedding(tokens).mean(1))

    model, tokens = Reader(), torch.tensor([[1, 2, 3]])

    def magnitudes(subject: Subject, target: Target) -> Map:
        with subject.held():
            scores = subject.scores(target)
            values = model.embedding(next(iter(subject.inputs.values()))).detach().norm(dim=2)
        return Map(values, "ours", "", target.classes, target.text, scores.detach(), size=(3,))

    map_ = explained(model, tokens, target=0, make=magnitudes)
    missing = dict(map_.check(**FEW).missing)
    assert "give baseline=" in missing["deletion"]
    assert "int64" in missing["noise"]
    found = map_.check(steps=3, of="score", baseline=0, **FEW).deletion
    assert found is not None
    assert float(found.scores[0, -1]) == pytest.approx(model(torch.zeros_like(tokens))[0, 0].item())


def test_places_at_a_site_inside_of_the_model_are_replaced_there() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    tokens = torch.tensor([[1, 2, 3]])
    subject, target = Subject(model, (tokens,), {}), Target(0)

    def at_the_embedding(subject: Subject, target: Target) -> Map:
        with subject.held():
            scores = subject.scores(target)
        values = torch.arange(12.0).reshape(1, 3, 4)
        again = Recipe(subject, target, at_the_embedding, site=Site("0"))
        return Map(values, "ours", "0", (0,), "class 0", scores.detach(), again=again)

    map_ = at_the_embedding(subject, target)
    found = map_.check(steps=3, of="score", **FEW).deletion
    assert found is not None
    embedded = model[0](tokens).detach()
    embedded[0, 2] = embedded[0].mean(0)  # The last token is the largest.
    assert float(found.scores[0, 1]) == pytest.approx(model[1:](embedded)[0, 0].item(), abs=1e-6)


@pytest.mark.parametrize("call", [0, 1])
def test_places_at_a_module_that_is_called_twice_are_replaced_at_the_call(call: int) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.fc(x)) if call == 0 else self.fc(self.fc(x).tanh())

        def after(self, value: Tensor) -> Tensor:
            return self.fc(value.tanh())

    torch.manual_seed(0)
    model, x = Twice(), torch.tensor([[1.0, -2.0, 0.5]])
    found = tt.attribute(model, x, target=1, method="input_x_gradient", at="fc", call=call)
    check = found.check(steps=1, of="score", **FEW)
    assert not {"deletion", "insertion"} & dict(check.missing).keys()
    empty = torch.zeros(1, 3)
    expected = float((model.after(empty) if call == 0 else empty).detach()[0, 1])
    assert check.deletion is not None
    assert float(check.deletion.scores[0, -1]) == pytest.approx(expected)


def test_probabilities_that_the_model_gives_are_not_softened_again() -> None:
    model = nn.Sequential(linear([2.0, 1.0]), nn.Softmax(1))
    x = torch.tensor([[1.0, 1.0]])
    found = explained(model, x, target=0).check(steps=2, **FEW).deletion
    assert found is not None
    assert float(found.scores[0, 0]) == pytest.approx(1 / (1 + math.exp(-3)), abs=1e-6)


# ---------------------------------------------------------------------- random weights and noise


def test_noise_is_added_at_all_places_of_a_tensor_that_is_given_twice() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            return self.fc(one) + 50 * (one - two).sum(1, keepdim=True)

    model, x = Difference(), torch.tensor([[1.0, -2.0, 0.5]])
    found = tt.attribute(model, x, x, target=0, method="input_x_gradient").check(parts="noise")
    assert found.noise is not None and float(found.noise[0]) < 0.2


def deep() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
    )


def test_random_weights_change_a_map_that_depends_on_them_and_no_other() -> None:
    x = torch.randn(2, 40)
    gradient = explained(deep(), x, target=1).check(**FEW)
    assert gradient.random_weights is not None
    assert float(gradient.random_weights.abs().max()) < 0.5
    assert "depends on the weights" in str(gradient)
    input_alone = explained(deep(), x, target=1, make=magnitude_of_input).check(**FEW)
    assert input_alone.random_weights is not None
    assert input_alone.random_weights.tolist() == [1.0, 1.0]
    assert "hardly depends on the weights" in str(input_alone)


def test_random_weights_have_the_mean_and_the_deviation_of_each_parameter() -> None:
    model = nn.Sequential(nn.Linear(200, 200), nn.LSTM(8, 8))
    with torch.no_grad():
        model[0].weight.mul_(3).add_(5)
    before = {name: one.clone() for name, one in model.named_parameters()}
    twin = randomised(model, torch.Generator().manual_seed(0))
    ours, theirs = model[0].weight.detach(), twin[0].weight.detach()
    assert float(theirs.mean()) == pytest.approx(float(ours.mean()), abs=0.01)
    assert float(theirs.std()) == pytest.approx(float(ours.std()), rel=0.02)
    assert abs(spearman(ours, theirs)) < 0.05
    assert twin[1]._flat_weights[0] is twin[1].weight_ih_l0
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters())


def test_a_model_whose_copy_uses_the_parameters_of_the_original_is_found_out() -> None:
    original = nn.Linear(6, 2)

    class Closure(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(6, 2)
            self.call = lambda x: original(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.call(x)

    found = explained(Closure(), torch.randn(1, 6), target=0).check(**FEW)
    assert "does not use its own parameters" in dict(found.missing)["random_weights"]


def test_a_model_that_cannot_be_copied_is_said() -> None:
    model = nn.Linear(6, 2)
    model.kept = torch.ones(1, requires_grad=True) * 2
    found = explained(model, torch.randn(1, 6), target=0).check(**FEW)
    assert "cannot be copied (RuntimeError" in dict(found.missing)["random_weights"]
    assert found.deletion is not None


def test_noise_is_the_largest_relative_change() -> None:
    # Input times gradient of a linear model moves with the input: |w * d| / |w * x|.
    model = linear([1.0, 1.0, 1.0, 1.0])
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    found = explained(model, x, target=0).check(noise=0.1, num_controls=1, num_noise=200)
    assert found.noise is not None
    assert found.noisy_map is not None
    change = (found.noisy_map.values - x).norm() / x.norm()
    assert float(found.noise) == pytest.approx(float(change), rel=1e-5)
    most = 0.1 * 3 * 2 / math.sqrt(30)  # Each of four elements moves by a tenth of the range of 3.
    assert 0.6 * most < float(found.noise) <= most


def test_a_map_that_changes_from_one_time_to_the_next_is_found_out() -> None:
    model = deep()
    map_ = explained(model, torch.randn(1, 40), target=0)
    assert map_.check(**FEW).repeat.tolist() == [1.0]
    with torch.no_grad():
        model[0].weight.neg_()
    found = map_.check(**FEW)
    assert found.repeat is not None
    assert float(found.repeat) < 1
    assert "another map" in str(found)


# ---------------------------------------------------------------------- what it does not do


def test_a_check_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 2))
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    x = torch.randn(4, 6)
    map_ = explained(model, x)
    held = {name: one.clone() for name, one in model.state_dict().items()}
    own = {name: (id(one), one._version) for name, one in model.named_parameters()}
    gradients: Any = {name: one.grad.clone() for name, one in model.named_parameters()}
    random = torch.get_rng_state()
    map_.check(**FEW)
    assert all(torch.equal(one, held[name]) for name, one in model.state_dict().items())
    assert own == {name: (id(one), one._version) for name, one in model.named_parameters()}
    after: Any = dict(model.named_parameters())
    assert all(torch.equal(after[name].grad, gradients[name]) for name in gradients)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_rows_of_a_model_in_training_mode_run_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    map_ = explained(model, x, target=0)
    found = map_.check(of="score", steps=6, **FEW).deletion
    assert found is not None
    torch.testing.assert_close(found.scores[:, 0], map_.scores)


# ---------------------------------------------------------------------- limits


def test_what_costs_more_than_is_left_is_missing_with_its_price() -> None:
    map_ = explained(deep(), torch.randn(1, 40), target=0)
    found = map_.check(max_evals=40, **FEW)
    assert found.num_evals <= 40
    assert (
        "needs 71 runs of the model, and max_evals=40 leaves 39" in dict(found.missing)["deletion"]
    )
    assert found.random_weights is not None
    everything = map_.check(**FEW)
    assert everything.missing == ()
    assert everything.num_evals == 1 + 2 * (2 * 33 + 5) + 1 + 2


def test_an_interrupted_check_gives_what_is_there() -> None:
    model = deep().eval()
    map_ = explained(model, torch.randn(1, 40), target=0)
    runs = 0

    def interrupt(*_: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 10:
            raise KeyboardInterrupt

    handle = model.register_forward_hook(interrupt)
    found = map_.check(batch_size=16, **FEW)
    handle.remove()
    assert found.deletion is not None
    assert found.insertion is None
    assert dict(found.missing) == dict.fromkeys(
        ("insertion", "random_weights", "noise"), "interrupted"
    )
    assert "interrupted" in str(found)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"steps": 0}, "steps is 0; expected a whole number from 1"),
        ({"num_controls": 0}, "num_controls is 0"),
        ({"num_noise": 0}, "num_noise is 0"),
        ({"parts": ["area"]}, "parts has 'area'; expected some of repeat, deletion"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"max_evals": 0}, "max_evals is 0"),
        ({"noise": math.nan}, "noise is nan"),
        ({"of": "logit"}, "of is 'logit'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(how: dict[str, Any], said: str) -> None:
    map_ = explained(deep(), torch.randn(1, 40), target=0)
    with pytest.raises(InputError, match=said):
        map_.check(**how)


def test_a_map_of_some_rows_sends_to_the_whole() -> None:
    map_ = explained(deep(), torch.randn(3, 40))
    with pytest.raises(InputError, match="one row of several"):
        map_[0].check()


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_map_without_an_order_has_no_curve_and_says_why(value: float) -> None:
    def nothing(subject: Subject, target: Target) -> Map:
        with subject.held():
            scores = subject.scores(target)
        values = torch.full((1, 40), value)
        return Map(values, "ours", "", target.classes, target.text, scores.detach())

    found = explained(deep(), torch.randn(1, 40), target=0, make=nothing).check(**FEW)
    missing = dict(found.missing)
    assert "gives no order of places" in missing["deletion"]
    assert found.deletion is None
    assert str(found)


def test_a_constant_row_of_several_is_nan_and_the_others_stand() -> None:
    def some(subject: Subject, target: Target) -> Map:
        with subject.held():
            scores = subject.scores(target)
        values = torch.stack([torch.zeros(40), torch.arange(40.0)])
        return Map(values, "ours", "", target.classes, target.text, scores.detach())

    found = explained(deep(), torch.randn(2, 40), make=some).check(**FEW).deletion
    assert found is not None
    assert found.area.isnan().tolist() == [True, False]


# ---------------------------------------------------------------------- what it shows


def test_a_check_says_what_each_number_means_and_shows_the_curves() -> None:
    found = explained(deep(), torch.randn(1, 40), target=0).check(**FEW)
    text = str(found)
    for name in ("deletion area", "insertion area", "random weights", "noise"):
        assert text.count(name) >= 2
    assert max(map(len, text.splitlines())) <= 100
    figure = found.to_figure()
    assert found.deletion is not None
    drawn = [line for line in figure.axes[0].lines if line.get_label() == "this map"]
    assert np.allclose(drawn[0].get_ydata(), found.deletion.scores[0])
    assert len(figure.axes) == 5
    body = found.as_dict()
    assert body["deletion_area"] == found.deletion.area.tolist()
    with pytest.raises(InputError, match="row is 1"):
        found.to_figure(1)


def test_a_check_in_inference_mode_is_that_outside() -> None:
    model, x = deep().eval(), torch.randn(1, 40)
    wanted = explained(model, x, target=0).check(**FEW)
    with torch.inference_mode():
        found = explained(model, x, target=0).check(**FEW)
    assert found.missing == ()
    assert found.as_dict() == wanted.as_dict()


def test_a_check_in_a_notebook_has_the_table_and_the_pictures() -> None:
    html = explained(deep(), torch.randn(1, 40), target=0).check(**FEW)._repr_html_()
    assert "<table>" in html
    assert html.count('src="data:image/png;base64,') == 1


def test_a_map_that_holds_its_model_is_not_pickled_and_says_what_is() -> None:
    map_ = explained(deep(), torch.randn(1, 40), target=0)
    with pytest.raises(TypeError, match=r"Pickle map.detached\(\)"):
        pickle.dumps(map_)
    assert torch.equal(pickle.loads(pickle.dumps(map_.detached())).values, map_.values)


def test_an_empty_check_prints() -> None:
    map_ = explained(deep(), torch.randn(1, 40), target=0)
    assert "0 runs of the model" in str(Check(map_, "score"))
