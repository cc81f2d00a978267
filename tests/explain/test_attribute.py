"""The door of ``tt.attribute``: what it takes, where it looks, what it refuses, what it leaves."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import bits
import numpy as np
import pytest
import torch
from models import TinyGPT, relu_mlp, rows, seeded, small
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.core.progress import Progress
from torchtap.testing import Net

METHODS = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients",
    "guided_backprop",
    "deconvolution",
    "lrp",
    "deeplift",
    "occlusion",
    "feature_permutation",
    "shapley",
    "smoothgrad",
    "smoothgrad_sq",
    "vargrad",
)
MANY = ("integrated_gradients", "occlusion", "feature_permutation", "shapley", "smoothgrad")


def gradient(model: nn.Module, x: Tensor, target: int) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(model(leaf.clone())[:, target].sum(), leaf)[0]


# --- targets ----------------------------------------------------------------------------------


def test_without_a_target_each_row_has_the_class_that_has_won() -> None:
    model, x = relu_mlp(), rows()
    found = tt.attribute(model, x, method="gradient")
    winners = model(x).argmax(1)
    assert found.target == tuple(winners.tolist())
    assert torch.equal(found.scores, model(x).max(1).values)
    expected = torch.stack([gradient(model, x, c)[i] for i, c in enumerate(winners.tolist())])
    torch.testing.assert_close(found.values, expected)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, 16])
def test_the_class_that_has_won_is_that_of_the_input_and_of_no_other(
    method: str, batch_size: int
) -> None:
    first, x = nn.Linear(2, 2, bias=False), torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    nn.init.eye_(first.weight)
    model = nn.Sequential(first, nn.ReLU())
    settings: dict[str, Any] = {"batch_size": batch_size} if method in MANY else {}
    if method in ("integrated_gradients", "occlusion", "shapley", "deeplift"):
        settings["baselines"] = torch.tensor([[9.0, 0.0]])  # Where class 0 wins.
    if method == "smoothgrad":
        settings |= {"stdevs": 9.0, "n_samples": 3}
    assert tt.attribute(model, x, method=method, **settings).target == (1, 0)


@pytest.mark.parametrize("method", MANY)
def test_in_repeated_rows_each_row_keeps_its_own_target(method: str) -> None:
    model, x, target = relu_mlp(), rows(num=3), [0, 1, 0]
    together = tt.attribute(model, x, target=target, method=method, batch_size=7)
    if method == "feature_permutation":  # Which takes values from other rows.
        return
    settings = {"stdevs": 0.0} if method == "smoothgrad" else {}
    together = tt.attribute(model, x, target=target, method=method, batch_size=7, **settings)
    for row, one in enumerate(target):
        alone = tt.attribute(model, x[row : row + 1], target=one, method=method, **settings)
        torch.testing.assert_close(together.values[row], alone.values[0])


def test_a_site_and_a_function_can_be_the_target() -> None:
    model, x = relu_mlp(), rows()
    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model[0](leaf).sum(), leaf)
    by_site = tt.attribute(model, x, target="0:output", method="gradient")
    torch.testing.assert_close(by_site.values, expected)
    by_function = tt.attribute(model, x, target=lambda out: out.square().sum(1), method="gradient")
    (expected,) = torch.autograd.grad(model(leaf).square().sum(), leaf)
    torch.testing.assert_close(by_function.values, expected)


def test_one_number_for_a_whole_batch_has_one_gap() -> None:
    model, x = relu_mlp(), rows()
    found = tt.attribute(model, x, target=lambda out: out.sum(), tolerance=1e-5)
    assert found.gap.shape == (1,)
    rise = model(x).sum() - model(torch.zeros_like(x)).sum()
    assert abs(found.values.sum() - rise) < 2e-5


# --- places -----------------------------------------------------------------------------------


def test_at_a_site_it_is_the_gradient_of_what_follows() -> None:
    model, x = relu_mlp(), rows()
    hidden = model[0](x).detach()
    expected = gradient(model[1:], hidden, 1)
    for at in ("0", "0:output", tt.Site("0"), model[0], "1:input"):
        found = tt.attribute(model, x, target=1, method="gradient", at=at)
        torch.testing.assert_close(found.values, expected)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_inside_of_the_model(method: str) -> None:
    model, x = relu_mlp(), rows()
    hidden = model[0](x).detach()
    inside = tt.attribute(model, x, target=1, method=method, at="0")
    outside = tt.attribute(model[1:], hidden, target=1, method=method)
    torch.testing.assert_close(inside.values, outside.values)
    assert inside.layer == "0"


def test_tokens_are_explained_at_their_embedding_by_any_index_of_the_logits() -> None:
    make, inputs = small()["gpt"]
    model, tokens = make().eval(), inputs()
    found = tt.attribute(model, tokens, target=(-1, 3), at="tok", tolerance=1e-4)
    assert found.values.shape == (2, 8, 16)
    embedded = model.tok(tokens)
    zero = Net(lambda m, x: x * 0)
    base = TinyGPT(vocab=11, d=16, layers=2, heads=2, context=8).eval()
    base.load_state_dict(model.state_dict())
    base.tok.register_forward_hook(lambda *args: zero(args[2]))
    rise = (model(tokens) - base(tokens))[:, -1, 3]
    torch.testing.assert_close(found.values.sum((1, 2)), rise.detach(), atol=2e-4, rtol=0)
    assert embedded.shape == found.values.shape


def test_attention_heads_are_columns_of_what_the_last_projection_takes() -> None:
    make, inputs = small()["gpt"]
    model, tokens = make().eval(), inputs()
    heads = torch.arange(16) // 8
    found = tt.attribute(
        model,
        tokens,
        target=(-1, 3),
        method="shapley",
        at="blocks.0.attn.proj:input",
        feature_mask=heads,
    )
    assert found.values.shape == (2, 8, 16)
    assert "exact" in found.notes[0]
    with tt.edit(model, "blocks.0.attn.proj:input", tt.edits.zero()):
        without = model(tokens)[:, -1, 3]
    rise = (model(tokens)[:, -1, 3] - without).detach()
    each = found.values[:, 0, [0, 8]]  # All elements of a head have the value of the head.
    torch.testing.assert_close(each.sum(1), rise, atol=1e-6, rtol=0)


def test_integer_inputs_are_refused_by_naming_the_embedding() -> None:
    make, inputs = small()["gpt"]
    with pytest.raises(tt.InputError, match=r"int64\[2, 8\].*at='tok'.*occlusion"):
        tt.attribute(make(), inputs(), target=(-1, 3))


@pytest.mark.parametrize("method", ["occlusion", "shapley"])
def test_methods_without_gradients_explain_tokens_themselves(method: str) -> None:
    make, inputs = small()["gpt"]
    model, tokens = make().eval(), inputs()
    settings = {"n_samples": 3} if method == "shapley" else {}
    found = tt.attribute(model, tokens, target=(-1, 3), method=method, baselines=5, **settings)
    assert found.values.shape == (2, 8)
    assert found.size == (8,)
    if method == "occlusion":
        other = tokens.clone()
        other[:, 2] = 5
        lost = (model(tokens) - model(other))[:, -1, 3]
        torch.testing.assert_close(found.values[:, 2], lost.detach())


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(tt.mark(x.square(), "squared"))


def test_a_mark_is_a_site() -> None:
    model, x = seeded(Marked), rows()
    found = tt.attribute(model, x, target=1, method="gradient", at="squared")
    torch.testing.assert_close(found.values, model.fc.weight[1].detach().expand(5, 3))
    with pytest.raises(tt.CaptureError, match=r"sqared was not reached.*did you mean 'squared'"):
        tt.attribute(model, x, target=1, method="gradient", at="sqared")


def test_of_several_calls_one_is_chosen() -> None:
    model = seeded(lambda: Net(lambda m, x: m.fc(m.fc(x).tanh()), fc=nn.Linear(3, 3)))
    x = rows()
    with pytest.raises(tt.InputError, match=r"comes by 2 times.*call=0 to call=1"):
        tt.attribute(model, x, target=1, at="fc")
    first = tt.attribute(model, x, target=1, method="gradient", at="fc", call=0)
    hidden = model.fc(x).detach()
    expected = gradient(Net(lambda m, h: m.fc(h.tanh()), fc=model.fc), hidden, 1)
    torch.testing.assert_close(first.values, expected)
    last = tt.attribute(model, x, target=1, method="gradient", at="fc", call=1)
    assert torch.equal(last.values, torch.tensor([0.0, 1.0, 0.0]).expand(5, 3))
    with pytest.raises(tt.InputError, match="has no call 2"):
        tt.attribute(model, x, target=1, at="fc", call=2)


def test_of_several_tensors_at_a_site_one_is_named() -> None:
    model = seeded(
        lambda: Net(lambda m, x: m.lstm(x)[0][:, -1], lstm=nn.LSTM(3, 4, batch_first=True))
    )
    x = normal(2, 5, 3, seed=1)
    with pytest.raises(tt.InputError, match=r"holds 3 tensors.*at='lstm:output\[0\]'"):
        tt.attribute(model, x, target=1, at="lstm")
    found = tt.attribute(model, x, target=1, method="gradient", at="lstm:output[0]")
    expected = torch.zeros(2, 5, 4)
    expected[:, -1, 1] = 1
    assert torch.equal(found.values, expected)


class Both(NamedTuple):
    left: Tensor
    right: Tensor


def test_of_several_inputs_the_first_floating_one_is_explained_or_the_one_that_is_named() -> None:
    def forward(m: Net, numbers: Tensor, pair: Both, *, scale: Tensor) -> Any:
        return {"other": numbers, "logits": pair.left * pair.right * scale + numbers[:, None]}

    model = Net(forward)
    numbers, left, right, scale = torch.arange(2), rows(num=2), rows(1, num=2), torch.tensor(3.0)
    pair = Both(left, right)

    def found(**settings: Any) -> Tensor:
        chosen = tt.attribute(
            model, numbers, pair, scale=scale, target=1, method="gradient", **settings
        )
        return chosen.values

    only = torch.tensor([0.0, 1.0, 0.0])
    torch.testing.assert_close(found(), 3 * right * only)
    torch.testing.assert_close(found(at=".:input[1.right]"), 3 * left * only)
    torch.testing.assert_close(found(at=".:input[scale]"), (left * right * only).sum())
    with pytest.raises(tt.InputError, match=r"selects 4 of the inputs; expected one of.*1\.left"):
        found(at=".:input")
    named = tt.attribute(model, numbers, pair, scale=scale, target=1, method="gradient")
    assert named.layer == ".:input[1.left]"
    assert any("of 3 inputs the map is of .:input[1.left]" in note for note in named.notes)


def test_steps_of_one_of_several_inputs_are_run_together() -> None:
    model = Net(lambda m, x, y, scale: x * y * scale)
    x, y = rows(num=2), rows(1, num=2)
    calls: list[int] = []
    model.register_forward_pre_hook(lambda _, args: calls.append(len(args[0])))
    found = tt.attribute(model, x, y, torch.tensor(2.0), target=1, n_steps=8, batch_size=16)
    torch.testing.assert_close(found.values[:, 1], 2 * x[:, 1] * y[:, 1])
    assert calls == [2, 2, 8, 16]


# --- settings ---------------------------------------------------------------------------------


def test_what_is_no_setting_goes_to_the_model() -> None:
    class Scales(nn.Module):
        def forward(self, x: Tensor, *, n_samples: float) -> Tensor:
            return x * n_samples

    model = Scales()
    found = tt.attribute(model, rows(), target=1, method="gradient", n_samples=4.0)
    assert found.values[:, 1].eq(4).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "saliency"}, "that is 'gradient' here"),
        ({"method": "integrate_gradients"}, "did you mean 'integrated_gradients'"),
        ({"method": "gradient", "n_steps": 4}, "n_steps is no setting of 'gradient'"),
        ({"method": "gradient", "batch_size": 4}, "batch_size is no setting of 'gradient'"),
        ({"method": "smoothgrad", "of": "vargrad"}, "of is 'vargrad'; expected one of gradient"),
        ({"n_steps": 0}, "n_steps is 0; expected a whole number from 1"),
        ({"n_steps": 2.5}, "n_steps is 2.5"),
        ({"rule": "simpson"}, "rule is 'simpson'; expected one of gausslegendre"),
        ({"tolerance": 0}, "tolerance is 0; expected a number above 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_evals": -1}, "max_evals is -1"),
        ({"baselines": "black"}, "baselines is str; expected a number or a tensor"),
        ({"baselines": torch.ones(4)}, r"baselines is float32\[4\].*float32\[5, 3\]"),
        ({"method": "smoothgrad", "seed": "a"}, "seed is str"),
        ({"method": "smoothgrad", "stdevs": -1.0}, "stdevs is -1.0; expected a number from 0"),
        ({"method": "occlusion", "sliding_window_shapes": (1, 2)}, "each of the 1 dimensions"),
        ({"method": "occlusion", "sliding_window_shapes": (4,)}, r"at most \(3,\)"),
        ({"method": "occlusion", "strides": 2}, "elements between the windows"),
        ({"method": "shapley", "feature_mask": torch.ones(3)}, "expected integers"),
        ({"method": "shapley", "feature_mask": torch.ones(4).long()}, "broadcast"),
        ({"call": -1}, "call is -1"),
        ({"target": 9}, "target is class 9, and the model has 2 classes"),
        ({"at": "*"}, r"at='\*' selects 4 sites.*expected one"),
        ({"at": "0:grad_output"}, "is no value of the forward"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(tt.InputError, match=message):
        tt.attribute(relu_mlp(), rows(), **settings)


def test_a_site_that_is_not_there_is_refused() -> None:
    with pytest.raises(tt.SiteError, match="did you mean"):
        tt.attribute(picture(), normal(1, 1, 6, 6, seed=0), at="conv1")
    idle = Net(lambda m, x: x * 2, used=nn.Identity(), idle=nn.Identity())
    with pytest.raises(tt.CaptureError, match="idle was not reached"):
        tt.attribute(idle, rows(), at="idle")


def picture() -> nn.Module:
    return seeded(lambda: Net(lambda m, x: m.conv(x).mean((2, 3)), conv=nn.Conv2d(1, 2, 3)))


def _nested() -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "No tensor is among the inputs"),
        (("cat.png",), "No tensor is among the inputs"),
        ((torch.ones(0, 3),), "it is empty"),
        ((torch.ones(2, 3, dtype=torch.complex64),), "expected real numbers"),
        ((torch.eye(3).to_sparse(),), "expected a dense tensor"),
        ((_nested(),), "expected a dense tensor"),
        ((torch.ones(2, 3, dtype=torch.uint8),), "Convert it to floating point"),
    ],
)
def test_an_input_that_cannot_be_explained_is_refused(args: Any, message: str) -> None:
    with pytest.raises(tt.InputError, match=message):
        tt.attribute(Net(lambda m, x: x), *args, target=lambda out: out)


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: x.detach() * 2,
        lambda m, x: m.fc(torch.ones_like(x)),
        lambda m, x: torch.zeros(len(x), 2),
    ],
)
def test_a_score_without_a_gradient_is_refused_and_not_mapped_as_zero(
    body: Callable[..., Tensor],
) -> None:
    model = Net(body, fc=nn.Linear(3, 3))
    with pytest.raises(tt.InputError, match=r"no gradient with respect to the value.*occlusion"):
        tt.attribute(model, rows(), target=1, method="gradient")
    tt.attribute(model, rows(), target=1, method="occlusion")


# --- what surrounds it ------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode: Callable[[], Any], method: str) -> None:
    model, x = relu_mlp(), rows()
    expected = tt.attribute(model, x, target=1, method=method)
    with mode():
        found = tt.attribute(model, x.clone(), target=1, method=method)
    assert torch.equal(found.values, expected.values)
    assert not found.values.requires_grad


def test_frozen_parameters_are_no_obstacle() -> None:
    model, x = relu_mlp(), rows()
    expected = tt.attribute(model, x, target=1)
    found = tt.attribute(model.requires_grad_(False), x, target=1)
    assert torch.equal(found.values, expected.values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_in_half_precision_it_is_near_and_in_float32(method: str, dtype: torch.dtype) -> None:
    model, x = relu_mlp(), rows()
    expected = tt.attribute(model, x, target=1, method=method)
    found = tt.attribute(model.to(dtype), x.to(dtype), target=1, method=method)
    assert found.values.dtype is torch.float32
    scale = expected.values.abs().max() + 1e-3
    # A unit at its kink may be on the other side of it.
    assert ((found.values - expected.values).abs() < 0.05 * scale).float().mean() > 0.8


@pytest.mark.parametrize("method", METHODS)
def test_random_numbers_have_a_seed_of_their_own(method: str) -> None:
    model, x = relu_mlp(), rows()
    before = torch.get_rng_state()
    one = tt.attribute(model, x, target=1, method=method).values
    torch.manual_seed(5)
    two = tt.attribute(model, x, target=1, method=method).values
    assert torch.equal(one, two)
    torch.set_rng_state(before)


def test_another_seed_or_a_generator_gives_other_numbers() -> None:
    model, x = relu_mlp(), rows()

    def smooth(seed: int | torch.Generator) -> Tensor:
        return tt.attribute(model, x, target=1, method="smoothgrad", n_samples=3, seed=seed).values

    assert not torch.equal(smooth(0), smooth(1))
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(smooth(generator), smooth(1))
    assert not torch.equal(smooth(generator), smooth(1))


@pytest.mark.parametrize("method", MANY)
@pytest.mark.parametrize("batch_size", [1, 3, 10, 1000])
def test_the_batch_size_changes_nothing(method: str, batch_size: int) -> None:
    model, x = relu_mlp(), rows(num=2)
    expected = tt.attribute(model, x, target=1, method=method)
    found = tt.attribute(model, x, target=1, method=method, batch_size=batch_size)
    torch.testing.assert_close(found.values, expected.values, rtol=0, atol=1e-6)


def test_no_forward_has_more_rows_than_asked() -> None:
    model, x = relu_mlp(), rows(num=2)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    for method in MANY:
        tt.attribute(model, x, target=1, method=method, batch_size=6)
    assert max(sizes) == 6
    sizes.clear()
    tt.attribute(model, x, target=1, method="occlusion", perturbations_per_eval=3)
    assert max(sizes) == 6


def test_where_the_model_mixes_rows_each_step_has_its_own_forward() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
    x = rows()
    found = tt.attribute(model, x, target=1, n_steps=6, rule="riemann_middle")
    assert any("the model mixes the rows" in note for note in found.notes)
    assert any("normalises over the batch" in note for note in found.notes)
    total = torch.zeros_like(x)
    for step in range(6):
        total += gradient(model, (step + 0.5) / 6 * x, 1)
    torch.testing.assert_close(found.values, x * total / 6)


def test_where_rows_cannot_be_repeated_the_reason_is_said() -> None:
    def two_rows(m: Net, x: Tensor) -> Tensor:
        return m.fc(x.view(2, 3))

    model = seeded(lambda: Net(two_rows, fc=nn.Linear(3, 2)))
    found = tt.attribute(model, rows(num=2), target=1, n_steps=3)
    assert any("a forward of 4 times the rows raised RuntimeError" in note for note in found.notes)
    expected = rows(num=2) * model.fc.weight[1].detach()
    torch.testing.assert_close(found.values, expected)


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", MANY)
def test_max_evals_ends_it_and_is_said(method: str) -> None:
    model, x = relu_mlp(), rows()
    rows_run = 0

    def count(_: Any, args: Any) -> None:
        nonlocal rows_run
        rows_run += len(args[0])

    handle = model.register_forward_pre_hook(count)
    settings = {"n_samples": 9} if method == "feature_permutation" else {}
    found = tt.attribute(model, x, target=1, method=method, max_evals=2, batch_size=5, **settings)
    handle.remove()
    assert any("stopped at max_evals: 2 of" in note for note in found.notes)
    # The scores of the value and of the baseline, or of a trial, are beside these.
    assert rows_run <= 5 * (2 + 2) + 10


@pytest.mark.parametrize("method", MANY)
def test_an_interrupt_gives_what_there_is(method: str) -> None:
    model, x = relu_mlp(), rows(num=2)
    num_calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 6:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(interrupt)
    settings = {"n_samples": 9} if method in ("feature_permutation", "occlusion") else {}
    if method == "occlusion":
        x, settings = normal(2, 3, seed=1), {}
        model[0] = seeded(lambda: nn.Linear(30, 4))
        x = normal(2, 30, seed=1)
    found = tt.attribute(model, x, target=1, method=method, batch_size=2, **settings)
    assert any("interrupted: " in note for note in found.notes)
    assert found.values.isfinite().any()


def test_an_interrupted_integral_is_one_of_fewer_steps() -> None:
    model, x = relu_mlp(), rows(num=2)
    calls: list[int] = []

    def interrupt(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 30:
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(interrupt)
    found = tt.attribute(model, x, target=1, batch_size=2)
    handle.remove()
    whole = tt.attribute(model, x, target=1)
    torch.testing.assert_close(found.values, whole.values, rtol=0.2, atol=0.02)
    assert not torch.equal(found.values, whole.values)


@pytest.mark.parametrize("last", [45, 60, 200])
def test_an_interrupt_while_steps_are_added_gives_the_last_whole_round(last: int) -> None:
    model, x = relu_mlp().double(), rows(num=1).double()
    calls: list[int] = []

    def interrupt(*_: Any) -> None:
        calls.append(1)
        if len(calls) == last:
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(interrupt)
    found = tt.attribute(model, x, target=1, tolerance=1e-12, n_steps=8, batch_size=1)
    handle.remove()
    assert len(calls) >= last
    assert any("more than asked (interrupted)" in note for note in found.notes)
    rise = (model(x) - model(torch.zeros_like(x)))[:, 1].detach()
    assert found.gap is not None
    torch.testing.assert_close(found.values.sum(1) - rise, found.gap.double(), atol=1e-7, rtol=0)


def test_an_interrupt_before_anything_is_there_is_raised() -> None:
    model = relu_mlp()
    num_calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        tt.attribute(model, rows(), target=1)


def test_progress_counts_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Progress, "advance", lambda self, doing: seen.append(doing))
    tt.attribute(relu_mlp(), rows(num=2), target=1, n_steps=8, batch_size=4)
    assert seen == ["integrating gradients"] * 4


# --- no trace ---------------------------------------------------------------------------------


class Trapped(nn.Module):
    """Buffers that count, dropout, an in-place ReLU, and gradients that are there already."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.fc2 = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        x += 1
        return self.fc2(self.drop(self.relu(self.norm(self.fc1(x)))))


@pytest.mark.parametrize("at", [None, "norm", "fc2:input"])
@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(method: str, at: str | None) -> None:
    model, x = seeded(Trapped), rows()
    x.requires_grad_()
    model.fc1.weight.grad = torch.ones_like(model.fc1.weight)
    model.fc2.weight.requires_grad_(False)
    before = bits.state(model) | bits.hooks(model, [x]) | {"x": (bits.bits(x), x.grad)}
    tensors = [*model.parameters(), *model.buffers(), model.fc1.weight.grad]
    held = [id(one) for one in tensors]
    is_rectified = method not in ("guided_backprop", "deconvolution") or at != "fc2:input"
    if is_rectified and (method not in ("lrp", "deeplift") or at):
        tt.attribute(model, x, target=1, method=method, at=at)
    else:  # No rectifier follows, or BatchNorm is in training mode.
        with pytest.raises(tt.InputError, match=r"met none|training mode"):
            tt.attribute(model, x, target=1, method=method, at=at)
    after = bits.state(model) | bits.hooks(model, [x]) | {"x": (bits.bits(x), x.grad)}
    assert bits.differences(before, after) == []
    now = [*model.parameters(), *model.buffers(), model.fc1.weight.grad]
    assert [id(one) for one in now] == held


def test_an_exception_of_the_model_leaves_no_trace_either() -> None:
    def fail(m: Net, x: Tensor) -> Tensor:
        out = m.fc(x)
        if len(m.calls) > 2:
            raise ValueError("enough")
        m.calls.append(1)
        return out

    model = seeded(lambda: Net(fail, fc=nn.Linear(3, 2)))
    model.calls = []  # type: ignore[assignment]
    before = bits.hooks(model)
    with pytest.raises(ValueError, match="enough"):
        tt.attribute(model, rows(), target=1, at="fc", batch_size=5)
    assert bits.differences(before, bits.hooks(model)) == []


def test_a_compiled_model_is_explained_as_it_is_written() -> None:
    model, x = relu_mlp(), rows()
    expected = tt.attribute(model, x, target=1, at="0")
    compiled: Any = torch.compile(model, backend="eager")
    compiled(x)
    found = tt.attribute(compiled, x, target=1, at="0")
    assert torch.equal(found.values, expected.values)
    guided = tt.attribute(compiled, x, target=1, method="guided_backprop")
    assert torch.equal(
        guided.values, tt.attribute(model, x, target=1, method="guided_backprop").values
    )


def test_a_checkpoint_is_explained_as_what_it_computes() -> None:
    from torch.utils.checkpoint import checkpoint

    def with_checkpoint(m: Net, x: Tensor) -> Tensor:
        return m.last(checkpoint(m.first, x, use_reentrant=False))

    first, last = relu_mlp(), nn.Linear(2, 2)
    model = Net(with_checkpoint, first=first, last=last)
    plain, x = nn.Sequential(first, last), rows()
    for method in METHODS:
        for at, same in ((None, None), ("first.0", "0.0")):
            found = tt.attribute(model, x, target=1, method=method, at=at)
            expected = tt.attribute(plain, x, target=1, method=method, at=same)
            torch.testing.assert_close(found.values, expected.values)


@pytest.mark.slow
@pytest.mark.parametrize("at", [None, "0"])
@pytest.mark.parametrize("method", METHODS)
def test_model_and_map_are_freed_by_their_last_reference(method: str, at: str | None) -> None:
    tt.attribute(relu_mlp(), rows(), target=1, method=method)  # What PyTorch keeps of first calls.
    gc.collect()
    gc.disable()
    try:
        model = relu_mlp()
        found = tt.attribute(model, rows(), target=1, at=at, method=method)
        references = weakref.ref(model), weakref.ref(found.values)
        del model, found
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_made_again_it_is_the_same_map_of_another_model() -> None:
    model, x = relu_mlp(), rows()
    other = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), 1)
    for at in (None, "0", model[0]):
        found = tt.attribute(model, x, at=at)
        assert found.again is not None
        assert torch.equal(found.again().values, found.values)
        expected = tt.attribute(
            other, x, target=list(found.target or ()), at=None if at is None else "0"
        )
        torch.testing.assert_close(found.again(model=other).values, expected.values)


def test_what_is_not_finite_is_counted() -> None:
    model = Net(lambda m, x: x.sqrt())
    found = tt.attribute(model, torch.tensor([[-1.0, 4.0]]), target=0, method="gradient")
    assert found.values[0, 0].isnan()
    assert found.notes == ("1 of 1 scores are not finite", "1 of 2 values are not finite")


# --- rows -------------------------------------------------------------------------------------


class SequenceFirst(nn.Module):
    """An LSTM over ``[T, B, 5]``; logits ``[B, 3]`` of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][-1])


@pytest.mark.parametrize("steps", [4, 7])
def test_sequences_with_the_steps_first_are_not_taken_for_rows(steps: int) -> None:
    model, x = seeded(SequenceFirst), normal(steps, 4, 5, seed=3)
    found = tt.attribute(model, x, target=1, method="occlusion", sliding_window_shapes=(4, 5))
    lost = model(x)[:, 1].sum() - model(torch.zeros_like(x))[:, 1].sum()
    torch.testing.assert_close(found.values, lost.expand(steps, 4, 5).detach())
    assert "the scores are not those of the rows" in str(found)
    whole = tt.attribute(model, x, target=1)
    assert whole.gap.shape == (1,)
    assert abs(whole.values.sum() - lost) < 1e-3
    assert "the scores are not those of the rows" in str(whole)
    if steps != 4:
        assert len(whole[steps - 1].scores) == 4


class Turned(SequenceFirst):
    """A model that is called with ``[B, T, 5]``."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1))


@pytest.mark.parametrize("steps", [4, 7])
@pytest.mark.parametrize("kind", [SequenceFirst, Turned])
def test_a_site_with_the_steps_first_is_not_taken_for_rows(
    kind: type[nn.Module], steps: int
) -> None:
    model = seeded(kind)
    x = normal(steps, 4, 5, seed=3)
    args = x if kind is SequenceFirst else x.transpose(0, 1).contiguous()
    found = tt.attribute(model, args, target=1, at="lstm:output[0]")
    hidden = model.lstm(x)[0]
    lost = (hidden[-1] @ model.out.weight[1]).sum().detach()
    assert found.gap.shape == (1,)
    torch.testing.assert_close(found.values.sum(), lost, atol=1e-4, rtol=1e-4)
    for method in ("gradcam", "ablationcam", "eigencam"):
        with pytest.raises(tt.InputError, match=r"which is no map|does not count the rows"):
            tt.cam(model, args, layer="lstm", target=1, method=method)


def test_a_batch_as_long_as_its_sequences_has_a_map_for_each_row() -> None:
    model = seeded(
        lambda: Net(
            lambda m, x: m.out(m.lstm(x)[0][:, -1]),
            lstm=nn.LSTM(5, 6, batch_first=True),
            out=nn.Linear(6, 3),
        )
    )
    x = normal(4, 4, 5, seed=3)
    square = tt.cam(model, x, layer="lstm", target=1, relu=False)
    part = tt.cam(model, x[:3], layer="lstm", target=1, relu=False)
    torch.testing.assert_close(square.values[:3], part.values)
    at = tt.attribute(model, x, target=1, at="lstm:output[0]")
    assert at.gap.shape == (4,)


def test_square_batches_keep_a_score_for_each_row() -> None:
    model, x = relu_mlp(), rows()[:3]
    assert x.shape == (3, 3)
    found = tt.attribute(model, x, target=1, method="occlusion")
    one = tt.attribute(model, x[1:2], target=1, method="occlusion")
    torch.testing.assert_close(found.values[1:2], one.values)
    assert found.notes == ()


@pytest.mark.parametrize("num", [5, 6])
@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "occlusion"])
def test_a_vector_without_a_batch_dimension_is_refused(num: int, method: str) -> None:
    model, x = seeded(lambda: nn.Linear(6, num)), normal(6, seed=1)
    with pytest.raises(tt.InputError, match=r"add one \(x\[None\]\)|expected rows"):
        tt.attribute(model, x, method=method)
    with pytest.raises(tt.InputError, match=r"add one to the inputs|expected rows"):
        tt.attribute(model, x, method=method, target=2)


def test_one_score_of_several_rows_prints() -> None:
    model, x = seeded(lambda: nn.Linear(6, 5)), normal(6, seed=1)
    found = tt.attribute(model, x, target=lambda out: out.sum())
    torch.testing.assert_close(found.values, (x * model.weight.sum(0)).detach())
    assert "of all rows: 1 score, sum" in str(found)
    assert str(found[2])


def test_elements_that_are_rows_have_scores_of_their_own() -> None:
    found = tt.attribute(Net(lambda m, x: x * x), torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(found.values, torch.tensor([1.0, 4.0, 9.0]))
    assert found.gap.shape == (3,)


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [0.5, -1.0, 256, torch.tensor(0.5)])
@pytest.mark.parametrize("method", ["occlusion", "shapley"])
def test_a_baseline_that_integers_cannot_hold_is_refused(
    method: str, baseline: float | Tensor
) -> None:
    model = Net(lambda m, x: x.float())
    x = torch.tensor([[3, 5]], dtype=torch.uint8)
    with pytest.raises(tt.InputError, match="expected whole numbers from 0 to 255"):
        tt.attribute(model, x, target=0, method=method, baselines=baseline)
    found = tt.attribute(model, x, target=0, method=method, baselines=1.0)
    assert found.values.tolist() == [[2.0, 0.0]]


def test_a_misspelt_setting_is_named() -> None:
    with pytest.raises(tt.InputError, match=r"n_step is no setting.*n_steps"):
        tt.attribute(relu_mlp(), rows(), target=1, n_step=3)


def test_numbers_of_numpy_are_classes() -> None:
    one = tt.attribute(relu_mlp(), rows(), target=1, method="gradient").values
    several: list[Any] = [np.int64(1), [np.int64(1)] * 5, np.ones(5, dtype=np.int64)]
    for target in several:
        found = tt.attribute(relu_mlp(), rows(), target=target, method="gradient")
        assert torch.equal(found.values, one)
        assert found.target == (1,) * 5


def test_a_tensor_that_is_given_twice_stays_one() -> None:
    model = Net(lambda m, x, y, z: x * (2.0 if y is z else 3.0))
    x, y = torch.ones(2, 3), torch.ones(2, 3)
    found = tt.attribute(model, x, y, y, target=1, method="gradient")
    assert found.values.tolist() == [[0.0, 2.0, 0.0]] * 2


def test_a_tensor_at_several_places_is_explained_at_all_of_them() -> None:
    model, x = Net(lambda m, x, y: x * y), normal(2, 3, seed=1)
    found = tt.attribute(model, x, x, target=1, method="gradient")
    torch.testing.assert_close(found.values[:, 1], 2 * x[:, 1])
    assert "0, 1 are one tensor" in " ".join(found.notes)
    mixed = Net(lambda m, x, y, z: x * y + z)
    found = tt.attribute(mixed, x, x + 1, x, target=1, method="gradient")
    torch.testing.assert_close(found.values[:, 1], x[:, 1] + 2)
    apart = tt.attribute(model, x, x.clone(), target=1, method="gradient")
    torch.testing.assert_close(apart.values[:, 1], x[:, 1])


def test_a_misspelt_argument_of_cam_is_named() -> None:
    with pytest.raises(tt.InputError, match=r"layr is no argument of tt.cam.*did you mean 'layer'"):
        tt.cam(relu_mlp(), rows(), layr="0")


def test_an_argument_that_only_a_hook_takes_goes_to_the_model() -> None:
    def scaled(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return (args[0] * kwargs.pop("scale"),), kwargs

    model = nn.Linear(3, 2)
    model.register_forward_pre_hook(scaled, with_kwargs=True)
    found = tt.attribute(model, rows(), target=1, method="gradient", scale=3.0)
    torch.testing.assert_close(found.values, 3 * model.weight[1].detach().expand(5, 3))


@pytest.mark.parametrize("what", ["parameter", "buffer"])
def test_a_model_of_inference_mode_says_what_can_be_done(what: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Flatten()).eval()
    with torch.inference_mode():
        if what == "buffer":
            model[1].running_mean = torch.zeros(2)
        else:
            model[0] = nn.Conv2d(3, 2, 1)
    x = torch.rand(2, 3, 4, 4)
    with pytest.raises(tt.InputError, match=r"inference tensor.*copy\.deepcopy") as caught:
        tt.attribute(model, x, target=1)
    assert "occlusion" in str(caught.value)
    with pytest.raises(tt.InputError, match="inference tensor"):
        tt.cam(model, x, layer="0", target=1, method="eigencam")
    found = tt.attribute(model, x, target=1, method="occlusion", sliding_window_shapes=(3, 4, 4))
    with torch.no_grad():
        score, base = (model(one)[:, 1] for one in (x, torch.zeros_like(x)))
    torch.testing.assert_close(found.values[:, 0, 0, 0], score - base)
    copied = copy.deepcopy(model)
    assert tt.attribute(copied, x, target=1).values.isfinite().all()
    assert tt.cam(copied, x, layer="0", target=1).values.shape == (2, 4, 4)
