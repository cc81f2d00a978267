"""Each ready edit against its formula, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import MobileNetV2, rows, seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.nn import functional as F

import torchtap as tt
from torchtap import edits
from torchtap.core.record import FORWARD, UNVERSIONED, Record
from torchtap.core.site import Site
from torchtap.testing import Net

close = torch.testing.assert_close
INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def at_site(tensor: Tensor, site: str = "m:output", step: int = 0, call: int = 0) -> Record:
    return Record(Site.parse(site), step, call, FORWARD, -1, (), tensor, UNVERSIONED)


def done(edit: Any, tensor: Tensor, **place: Any) -> Tensor:
    """What an edit makes of a tensor, which stays as it is."""
    before = tensor.clone()
    new = edit(tensor, at_site(tensor, **place))
    assert torch.equal(tensor.isnan(), before.isnan()) and new is not None
    close(tensor, before, rtol=0, atol=0, equal_nan=True)
    assert new.shape == tensor.shape and new.dtype is tensor.dtype
    return new


def exactly(found: Tensor, right: Any) -> None:
    right = torch.as_tensor(right, dtype=found.dtype)
    close(found, right.expand(found.shape), rtol=0, atol=0, equal_nan=True)


ROW = torch.tensor([-2.0, -0.0, 0.5, 3.0, NAN, INF, -INF])

FORMULAS: dict[str, tuple[Any, list[float]]] = {
    "zero": (edits.zero(), [0.0] * 7),
    "scale": (edits.scale(2.0), [-4.0, -0.0, 1.0, 6.0, NAN, INF, -INF]),
    "clamp": (edits.clamp(-1.0, 1.0), [-1.0, 0.0, 0.5, 1.0, NAN, 1.0, -1.0]),
    "clamp from below": (edits.clamp(min=0.0), [0.0, 0.0, 0.5, 3.0, NAN, INF, 0.0]),
    "add": (edits.add(1.0), [-1.0, 1.0, 1.5, 4.0, NAN, INF, -INF]),
    "replace": (edits.replace(7.0), [7.0] * 7),
    "replace by nan": (edits.replace(NAN), [NAN] * 7),
    "mask": (
        edits.mask(torch.tensor([True, True, True, True, False, False, True])),
        [-2.0, 0.0, 0.5, 3.0, 0.0, 0.0, -INF],
    ),
    "patch": (edits.patch(torch.arange(7.0)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_ready_edit_is_its_formula(name: str, dtype: torch.dtype) -> None:
    edit, right = FORMULAS[name]
    if name == "patch":
        edit = edits.patch(torch.arange(7.0, dtype=dtype))
    exactly(done(edit, ROW.to(dtype)), right)


def test_sign_is_minus_one_zero_or_one() -> None:
    exactly(done(edits.sign(), torch.tensor([-3.0, 0.0, 1e-30, INF])), [-1.0, 0.0, 1.0, 1.0])


SHAPES: dict[str, Any] = {
    "no dimension": torch.tensor(3.0),
    "empty": torch.ones(0, 3),
    "no rows and no columns": torch.ones(0),
    "not contiguous": torch.arange(6.0).view(2, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "integers": torch.arange(4),
    "bytes": torch.arange(4, dtype=torch.uint8),
    "complex": torch.tensor([1 + 2j, -3j]),
    "complex of half width": torch.tensor([1 + 2j, -3j], dtype=torch.complex64),
}
SIMPLE: dict[str, tuple[Any, Any]] = {
    "zero": (edits.zero(), lambda t: torch.zeros_like(t)),
    "scale": (edits.scale(2), lambda t: t * 2),
    "add": (edits.add(1), lambda t: t + 1),
    "replace": (edits.replace(1), lambda t: torch.ones_like(t)),
    "mask": (edits.mask(torch.tensor(False)), lambda t: torch.zeros_like(t)),
    "patch": (edits.patch({"m": torch.ones(())}), None),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", SIMPLE)
def test_a_ready_edit_takes_every_kind_of_tensor(name: str, kind: str) -> None:
    tensor = SHAPES[kind]
    edit, formula = SIMPLE[name]
    if formula is None:
        edit, formula = edits.patch(torch.ones((), dtype=tensor.dtype)), torch.ones_like
    exactly(done(edit, tensor), formula(tensor))


@pytest.mark.parametrize("kind", ["no dimension", "empty", "no rows and no columns"])
@pytest.mark.parametrize(
    "edit", [edits.keep_topk(2), edits.keep_topk(0.5, dim=-1), edits.noise(0.0)], ids=repr
)
def test_edits_of_the_whole_tensor_take_small_ones(edit: Any, kind: str) -> None:
    tensor = SHAPES[kind]
    if kind == "no dimension":
        exactly(done(edit, tensor), tensor)
    else:
        assert done(edit, tensor).numel() == 0


REGIONS: dict[str, tuple[Any, Any]] = {
    "an index": ({0: 1}, (1,)),
    "a negative index": ({-1: -1}, (slice(None), -1)),
    "a slice": ({1: slice(0, 2)}, (slice(None), slice(0, 2))),
    "a step": ({1: slice(None, None, 2)}, (slice(None), slice(None, None, 2))),
    "a list": ({1: [0, 3]}, (slice(None), [0, 3])),
    "a mask": (
        {0: torch.tensor([True, False, True])},
        (torch.tensor([True, False, True]),),
    ),
    "indices": ({1: torch.tensor([2, 2, 0])}, (slice(None), [0, 2])),
    "two dimensions": ({0: 1, -1: slice(2, 4)}, (1, slice(2, 4))),
    "no dimension": ({}, ()),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is_changed_and_the_rest_is_not(name: str) -> None:
    at, index = REGIONS[name]
    tensor = torch.arange(1.0, 13.0).view(3, 4)
    right = tensor.clone()
    right[index if index else ...] = 0
    exactly(done(edits.zero(at=at), tensor), right)
    both = tensor.clone()
    both[index if index else ...] = 9
    exactly(done(edits.patch(torch.full_like(tensor, 9), at=at), tensor), both)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({2: 0}, "dimension 2"),
        ({0: 5}, "dimension 0"),
        ({1: [9]}, "dimension 1"),
        ({1: slice(4, 8)}, "dimension 1"),
        ({1: slice(2, 2)}, "dimension 1"),
    ],
)
def test_a_region_that_is_not_there_is_an_error(at: Any, message: str) -> None:
    tensor = torch.ones(3, 4)
    with pytest.raises(tt.EditError, match=rf"m:output.*{message}.*float32\[3, 4\]"):
        edits.zero(at=at)(tensor, at_site(tensor))


def test_a_region_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(tt.InputError, match="at is 3"):
        edits.zero(at=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "index", [[], [False, False], torch.tensor([], dtype=torch.long), torch.tensor([False, False])]
)
def test_a_region_of_nothing_is_an_error_at_once(index: Any) -> None:
    with pytest.raises(tt.InputError, match="chooses nothing of dimension 1"):
        edits.zero(at={1: index})


def test_a_slice_of_an_empty_dimension_is_no_mistake() -> None:
    tensor = torch.ones(3, 0)
    exactly(edits.zero(at={1: slice(0, 2)})(tensor, at_site(tensor)), tensor)


def test_a_mask_of_another_length_is_an_error_of_the_edit() -> None:
    tensor = torch.ones(3, 4)
    with pytest.raises(tt.EditError, match="dimension 0"):
        edits.zero(at={0: torch.tensor([True, False])})(tensor, at_site(tensor))


def test_the_gradient_outside_of_a_region_is_untouched_by_what_is_inside() -> None:
    x = torch.tensor([INF, 1.0, NAN], requires_grad=True)
    new = edits.zero(at={0: [0, 2]})(x, at_site(x))
    new.sum().backward()
    exactly(x.grad, [0.0, 1.0, 0.0])  # type: ignore[arg-type]


# --- topk, noise, clip_norm, mean -------------------------------------------------------------


def test_keep_topk_keeps_the_largest_by_magnitude() -> None:
    tensor = torch.tensor([[1.0, -5.0, 3.0, 0.0], [2.0, 0.5, -0.25, 4.0]])
    exactly(done(edits.keep_topk(2), tensor), [[0.0, -5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]])
    exactly(done(edits.keep_topk(1, dim=1), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 4.0]])
    exactly(done(edits.keep_topk(0.25), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 4.0]])
    exactly(done(edits.keep_topk(0.01), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 0]])
    exactly(done(edits.keep_topk(99), tensor), tensor)
    exactly(done(edits.keep_topk(2), tensor.t()), done(edits.keep_topk(2), tensor).t())
    with pytest.raises(tt.InputError, match="positive"):
        edits.keep_topk(0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
def test_noise_is_normal_reproducible_and_draws_nothing_global(dtype: torch.dtype) -> None:
    tensor = torch.zeros(64, 64, dtype=dtype)
    state = torch.get_rng_state()
    first = done(edits.noise(2.0), tensor)
    assert torch.equal(torch.get_rng_state(), state)
    exactly(done(edits.noise(2.0), tensor), first)
    for other in (
        done(edits.noise(2.0, seed=1), tensor),
        done(edits.noise(2.0), tensor, call=1),
        done(edits.noise(2.0), tensor, step=1),
        done(edits.noise(2.0), tensor, site="n:output"),
    ):
        assert not torch.equal(other, first)
    spread = first.to(torch.complex128 if dtype.is_complex else torch.float64).abs()
    assert spread.square().mean().sqrt().item() == pytest.approx(2.0, rel=0.05)


def test_relative_noise_is_in_units_of_the_tensor() -> None:
    tensor = normal(1000) * 50
    difference = done(edits.noise(0.1, relative=True), tensor) - tensor
    exactly(difference.std() / tensor.std(), difference.std() / tensor.std())
    assert (difference.std() / tensor.std()).item() == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, INF])
def test_clip_norm_scales_to_the_norm(p: float, dtype: torch.dtype) -> None:
    tensor = normal(8, 8).to(dtype)
    norm = torch.linalg.vector_norm(tensor.double(), p)
    clipped = done(edits.clip_norm(1.0, p=p), tensor)
    close(clipped, (tensor.double() / (norm + 1e-6)).to(dtype), rtol=2e-2, atol=1e-3)
    exactly(done(edits.clip_norm(1e4, p=p), tensor), tensor)


def test_clip_norm_of_what_overflows_in_half_precision() -> None:
    tensor = torch.full((1000,), 300.0, dtype=torch.float16)
    clipped = done(edits.clip_norm(1.0), tensor)
    assert clipped.double().norm().item() == pytest.approx(1.0, rel=1e-2)


def test_clip_norm_of_zeros_nan_and_nothing() -> None:
    exactly(done(edits.clip_norm(1.0), torch.zeros(3)), 0.0)
    assert done(edits.clip_norm(1.0), torch.tensor([NAN, 1.0])).isnan().all()
    assert done(edits.clip_norm(1.0), torch.ones(0)).shape == (0,)
    with pytest.raises(tt.InputError, match="max_norm"):
        edits.clip_norm(-1.0)


def test_mean_ablation_by_batch_run_and_tensor() -> None:
    tensor = normal(6, 4)
    exactly(done(edits.mean_ablate(), tensor), tensor.mean(0, keepdim=True))
    mean = torch.arange(4.0)
    exactly(done(edits.mean_ablate(mean), tensor), mean)
    exactly(done(edits.mean_ablate({"m": mean}), tensor), mean)
    model = Net(lambda m, x: m.m(x), m=nn.Identity())
    with tt.watch(model, "m") as watch:
        for part in tensor.split(2):
            model(part)
            watch.step()
    right = tensor.double().mean(0, keepdim=True).float()
    exactly(done(edits.mean_ablate(watch.run), torch.ones(3, 4)), right)
    with pytest.raises(tt.EditError, match="nothing to put in"):
        done(edits.mean_ablate(watch.run), tensor, site="other:output")


# --- patches ----------------------------------------------------------------------------------


def mlp() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)))


def sources(model: nn.Module, b: Tensor) -> dict[str, Any]:
    with tt.watch(model, "1", copy="always") as watch:
        model(b)
    hidden = model[1](model[0](b)).detach()
    return {
        "run": edits.patch(watch.run),
        "mapping by path": edits.patch({"1": hidden}),
        "mapping by site": edits.patch({"1:output": hidden}),
        "tensor": edits.patch(hidden),
        "function": edits.patch(lambda record: hidden if record.call == 0 else None),  # type: ignore[arg-type, return-value]
        "inputs": edits.patch(inputs=b),
        "inputs as arguments": edits.patch(inputs=(b,)),
        "inputs by keyword": edits.patch(inputs={"input": b}),
        "another model": edits.patch(inputs=b, model=mlp()),
        "a site": edits.patch({"elsewhere": hidden}, site="elsewhere"),
        "a function of the site": edits.patch(
            {"x1:output": hidden}, site=lambda site: f"x{site.path}:output"
        ),
    }


@pytest.mark.parametrize("name", list(sources(mlp(), rows(1))))
def test_a_patch_puts_in_what_flowed_elsewhere(name: str) -> None:
    model, a, b = mlp(), rows(0), rows(1)
    with tt.edit(model, "1", sources(model, b)[name]) as edit:
        out = model(a)
    exactly(out, model(b))
    assert edit.fired == {"1:output": 1}


def test_patching_every_output_from_another_run_gives_its_output() -> None:
    model = seeded(lambda: MobileNetV2(width=0.125, num_classes=5, stages=3)).eval()
    a, b = (normal(2, 3, 16, 16, seed=s) for s in (0, 1))
    with torch.no_grad(), tt.watch(model, "*", copy="always") as watch:
        right = model(b)
    for where in ("*", "features.*", "features.0"):
        with torch.no_grad(), tt.edit(model, where, edits.patch(watch.run)):
            exactly(model(a), right)


def test_interchange_of_a_row_and_of_channels_of_an_mlp() -> None:
    model, a, b = mlp(), rows(0), rows(1)
    hidden, other = model[1](model[0](a)), model[1](model[0](b))
    mixed = hidden.clone()
    mixed[2, 3:6] = other[2, 3:6]
    with tt.edit(model, "1", edits.patch(inputs=b, at={0: 2, -1: slice(3, 6)})):
        exactly(model(a), model[2](mixed))


def test_a_patch_from_inputs_leaves_no_trace() -> None:
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 2)))
    state, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    tt.edit(model, "0", edits.patch(inputs=rows(0)), missing="ignore").close()
    assert all(torch.equal(state[name], one) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_patch_that_does_not_fit_says_so() -> None:
    model, a = mlp(), rows(0)
    cases: list[tuple[Any, str]] = [
        (torch.ones(4, 8), r"float32\[4, 8\] for float32\[5, 8\]"),
        (torch.ones(5, 8).double(), r"float64\[5, 8\] to put in the place of float32\[5, 8\]"),
        ({"2": torch.ones(1)}, "mapping has no '1:output'"),
    ]
    for source, message in cases:
        with (
            pytest.raises(tt.EditError, match=rf"1:output \(step 0, call 0\).*{message}"),
            tt.edit(model, "1", edits.patch(source)),
        ):
            model(a)
    for both in ({}, {"source": torch.ones(1), "inputs": a}):
        with pytest.raises(tt.InputError, match="either a source"):
            edits.patch(**both)  # type: ignore[arg-type]
    with pytest.raises(tt.EditError, match="works only in"):
        edits.patch(inputs=a)(a, at_site(a))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=13, n_positions=8, n_embd=16, n_layer=2, n_head=2, use_cache=False
    )
    return seeded(lambda: GPT2LMHeadModel(config)).eval()


def test_interchange_of_a_token_in_gpt2_is_that_by_hand() -> None:
    model = gpt2()
    a, b = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        hidden = model(b, output_hidden_states=True).hidden_states[1]

        def by_hand(module: nn.Module, args: Any, output: Any) -> Any:
            mixed = (output[0] if isinstance(output, tuple) else output).clone()
            mixed[:, 2] = hidden[:, 2]
            return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

        handle = model.transformer.h[0].register_forward_hook(by_hand)
        right = model(a).logits
        handle.remove()
        plain = model(a)
        patch = edits.patch(inputs={"input_ids": b}, at={1: 2})
        with tt.edit(model, "transformer.h.0", patch):
            ours = model(a)
    exactly(ours.logits, right)
    assert type(ours) is type(plain) and not torch.equal(ours.logits, plain.logits)


def test_a_head_of_gpt2_is_cut_off_as_by_its_projection() -> None:
    model, a = gpt2(), torch.tensor([[1, 2, 3, 4]])
    projection = model.transformer.h[1].attn.c_proj
    with torch.no_grad():
        with tt.edit(model, "transformer.h.1.attn.c_proj:input", edits.zero(at={-1: slice(0, 8)})):
            ours = model(a).logits
        projection.weight[:8] = 0
        close(ours, model(a).logits)


# --- guided backpropagation -------------------------------------------------------------------


class _Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, top: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.top = top
        return x.clamp(0, top)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient.clamp(min=0) * ((x > 0) & (x < ctx.top)), None


RECTIFIERS: dict[str, tuple[Any, float]] = {
    "ReLU": (nn.ReLU(), INF),
    "in-place ReLU": (nn.ReLU(inplace=True), INF),
    "ReLU6": (nn.ReLU6(), 6.0),
    "in-place ReLU6": (nn.ReLU6(inplace=True), 6.0),
    "functional": (Net(lambda m, x: F.relu(x)), INF),
    "functional in place": (Net(lambda m, x: F.relu(x, inplace=True)), INF),
    "clamp": (Net(lambda m, x: x.clamp(min=0)), INF),
    "method": (Net(lambda m, x: x.relu_()), INF),
    "threshold": (nn.Threshold(0.0, 0.0), INF),
    "in-place threshold": (nn.Threshold(0.0, 0.0, inplace=True), INF),
    "clamp by a tensor": (Net(lambda m, x: x.clamp(min=x.new_zeros(()))), INF),
    "clamp by a tensor in place": (Net(lambda m, x: x.clamp_(min=x.new_zeros(()))), INF),
    "clamp_min by a tensor": (Net(lambda m, x: torch.clamp_min(x, x.new_zeros(()))), INF),
    "clamp both ways": (Net(lambda m, x: x.clamp(0, 6)), 6.0),
}


@pytest.mark.parametrize("name", RECTIFIERS)
def test_guided_relu_is_guided_backpropagation_by_hand(name: str) -> None:
    act, top = RECTIFIERS[name]
    guided = Net(lambda m, x: _Guided.apply(x, top))

    def network(one: nn.Module) -> nn.Sequential:
        parts = [nn.Conv2d(2, 4, 3), one, nn.Conv2d(4, 4, 3), one, nn.Flatten(), nn.Linear(64, 3)]
        return seeded(lambda: nn.Sequential(*parts)).double()

    hand = network(guided)
    model = network(act)
    model.load_state_dict(hand.state_dict())
    x = normal(2, 2, 8, 8).double() * 5
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    hand(a)[:, 1].sum().backward()
    with tt.edit(model, "*", edits.guided_relu()) as edit:
        model(b)[:, 1].sum().backward()
    close(b.grad, a.grad)
    assert sum(edit.fired.values()) >= 2


SOFT: dict[str, tuple[Any, str]] = {
    "SiLU": (nn.SiLU, "SiLU"),
    "GELU": (lambda inplace: nn.GELU(), "GELU"),
    "leaky ReLU": (lambda inplace: nn.LeakyReLU(inplace=inplace), "leaky"),
    "ELU": (lambda inplace: nn.ELU(inplace=inplace), "ELU"),
    "SELU": (nn.SELU, "SELU"),
    "CELU": (lambda inplace: nn.CELU(inplace=inplace), "CELU"),
    "randomised": (lambda inplace: nn.RReLU(inplace=inplace), "randomised"),
    "PReLU": (lambda inplace: nn.PReLU(), "PReLU"),
    "softplus": (lambda inplace: nn.Softplus(), "softplus"),
    "Mish": (nn.Mish, "Mish"),
    "hardswish": (nn.Hardswish, "hardswish"),
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("which", SOFT)
def test_guided_relu_refuses_what_it_has_no_meaning_for(which: str, inplace: bool) -> None:
    make, name = SOFT[which]
    # A ReLU beside it, so that something happens in any case.
    model = nn.Sequential(nn.Linear(3, 3), make(inplace=inplace), nn.Linear(3, 3), nn.ReLU()).eval()
    x = torch.ones(2, 3, requires_grad=True)
    with (
        pytest.raises(tt.EditError, match=rf"guided_relu.*met .*{name}"),
        tt.edit(model, "*", edits.guided_relu()),
    ):
        model(x)
    plain = torch.autograd.grad(model[:3](x).sum(), x)
    with tt.edit(model[:3], "*", edits.guided_relu(others="leave"), missing="ignore"):
        close(torch.autograd.grad(model[:3](x).sum(), x), plain)


NO_RECTIFIERS: dict[str, nn.Module] = {
    "tanh": nn.Tanh(),
    "sigmoid": nn.Sigmoid(),
    "hardtanh": nn.Hardtanh(-1, 1),
    "in-place hardtanh": nn.Hardtanh(-1, 1, inplace=True),
    "threshold below zero": nn.Threshold(-1.0, 0.0),
    "clamp below zero": Net(lambda m, x: x.clamp(min=-1)),
    "clamp by a tensor below zero": Net(lambda m, x: x.clamp(min=x.new_tensor([0.0, -1.0]))),
    "clamp from above": Net(lambda m, x: x.clamp(max=0)),
    "softmax": nn.Softmax(-1),
    "shrinking": nn.Hardshrink(),
    "a product with a mask": Net(lambda m, x: x * (x > 0)),
}


@pytest.mark.parametrize("name", NO_RECTIFIERS)
def test_what_is_no_rectifier_keeps_its_ordinary_gradient(name: str) -> None:
    act = NO_RECTIFIERS[name]
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))).double()
    whole = nn.Sequential(model, act, nn.Linear(2, 2).double())
    x = normal(4, 3).double().requires_grad_()
    with tt.edit(whole, "0", edits.guided_relu()):  # By hand: only the first part is guided.
        (right,) = torch.autograd.grad(whole(x).sum(), x)
    with tt.edit(whole, ".", edits.guided_relu()):
        (ours,) = torch.autograd.grad(whole(x).sum(), x)
    assert torch.equal(ours, right)


def test_guided_relu_of_some_modules_leaves_the_others() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Linear(1, 1, bias=False), nn.ReLU())
    with torch.no_grad():
        model[1].weight.fill_(1.0)
    x = torch.ones(1, 1, requires_grad=True)
    with tt.edit(model, "2", edits.guided_relu()):
        (-model(x)).sum().backward()
    assert x.grad.item() == 0.0
    x.grad = None
    (-model(x)).sum().backward()
    assert x.grad.item() == -1.0  # type: ignore[attr-defined]


def test_an_edit_shows_how_it_was_made() -> None:
    shown = {
        repr(edits.zero()): "tt.edits.zero()",
        repr(edits.scale(2.0, at={0: 1})): "tt.edits.scale(factor=2.0, at={0: 1})",
        repr(edits.patch(torch.ones(2, 3))): "tt.edits.patch(source=float32[2, 3])",
        repr(edits.clip_norm(1.0, over="all")): "tt.edits.clip_norm(max_norm=1.0, over='all')",
        repr(edits.guided_relu()): "tt.edits.guided_relu()",
    }
    for found, right in shown.items():
        assert found == right


# --- arguments --------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "clip_norm(max_norm='a'": lambda: edits.clip_norm("a"),  # type: ignore[arg-type]
    "clip_norm(max_norm=True": lambda: edits.clip_norm(True),
    "clip_norm(p='x'": lambda: edits.clip_norm(1.0, p="x"),  # type: ignore[arg-type]
    "clip_norm(over='al'": lambda: edits.clip_norm(1.0, over="al"),  # type: ignore[arg-type]
    "scale(factor=None": lambda: edits.scale(None),  # type: ignore[arg-type]
    "add(value='a'": lambda: edits.add("a"),  # type: ignore[arg-type]
    "clamp(min='a'": lambda: edits.clamp("a"),  # type: ignore[arg-type]
    "clamp(max=[1]": lambda: edits.clamp(max=[1]),  # type: ignore[arg-type]
    "replace(value=None": lambda: edits.replace(None),  # type: ignore[arg-type]
    "mask(keep=[True]": lambda: edits.mask([True]),  # type: ignore[arg-type]
    "noise(std=-1": lambda: edits.noise(-1),
    "noise(seed=1.5": lambda: edits.noise(1.0, seed=1.5),  # type: ignore[arg-type]
    "noise(relative='y'": lambda: edits.noise(1.0, relative="y"),  # type: ignore[arg-type]
    "keep_topk(k=1.5": lambda: edits.keep_topk(1.5),
    "keep_topk(k='a'": lambda: edits.keep_topk("a"),  # type: ignore[arg-type]
    "keep_topk(dim='x'": lambda: edits.keep_topk(2, dim="x"),  # type: ignore[arg-type]
    "mean_ablate(source='x'": lambda: edits.mean_ablate("x"),  # type: ignore[arg-type]
    "mean_ablate(dim=1.5": lambda: edits.mean_ablate(dim=1.5),  # type: ignore[arg-type]
    "patch(source=3": lambda: edits.patch(3),  # type: ignore[arg-type]
    "patch(source=Linear": lambda: edits.patch(nn.Linear),  # type: ignore[arg-type]
    "patch(step='a'": lambda: edits.patch(ROW, step="a"),  # type: ignore[arg-type]
    "patch(call=0.5": lambda: edits.patch(ROW, call=0.5),  # type: ignore[arg-type]
    "patch(site=3": lambda: edits.patch(ROW, site=3),  # type: ignore[arg-type]
    "patch(model=3": lambda: edits.patch(inputs=ROW, model=3),  # type: ignore[arg-type]
    "guided_relu(others='x'": lambda: edits.guided_relu(others="x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", list(WRONG))
def test_an_argument_of_the_wrong_kind_is_refused_at_once(call: str) -> None:
    with pytest.raises(tt.InputError) as caught:
        WRONG[call]()
    name, _, given = call.partition("(")
    assert str(caught.value).startswith(f"tt.edits.{name} got {given}; expected ")


@pytest.mark.parametrize(
    "index", ["x", 1.5, None, [1.5], ["a"], True, ROW, torch.ones(2, 2, dtype=torch.bool)]
)
def test_a_place_that_is_none_is_refused_at_once(index: Any) -> None:
    with pytest.raises(tt.InputError, match="is no place in dimension 0; expected whole numbers"):
        edits.zero(at={0: index})


@pytest.mark.parametrize("index", [range(1, 3), (1, 2), torch.tensor([1, 2]), slice(2, 0, -1)])
def test_a_place_may_be_said_in_many_ways(index: Any) -> None:
    exactly(done(edits.zero(at={0: index}), torch.ones(4)), [1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("name", edits.__all__)
def test_an_edit_that_was_not_called_is_recognised(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    for ask in (
        lambda function: tt.edit(model, "0", function),
        lambda function: tt.edit(model, {"0": [function]}),
        lambda function: tt.sweep(model, torch.ones(1, 2), "0", function, torch.sum),
    ):
        with pytest.raises(tt.InputError) as caught:
            ask(getattr(edits, name))
        text = str(caught.value)
        assert f"tt.edits.{name} makes an edit" in text
        example = text.rpartition("write tt.edits.")[2].removesuffix(".")
        known = {"run": {"0": torch.ones(1)}, "keep": torch.ones(2) > 0}
        assert callable(eval(f"edits.{example}", {"edits": edits, **known}))


def test_a_class_of_modules_is_no_edit() -> None:
    with pytest.raises(tt.InputError, match=r"got the class ReLU. Write ReLU\(\)"):
        tt.edit(nn.Linear(2, 2), ".", nn.ReLU)  # type: ignore[arg-type]


def test_an_edit_that_returns_an_edit_says_which() -> None:
    model = nn.Linear(2, 2)
    said = r"returned the function scale\(factor=2.0\) where"
    with pytest.raises(tt.EditError, match=said), tt.edit(model, ".", lambda _: edits.scale(2.0)):  # type: ignore[arg-type]
        model(torch.ones(1, 2))


# --- a source of another length ---------------------------------------------------------------

SHORT, LONG = torch.arange(6.0).view(1, 3, 2), 10 + torch.arange(10.0).view(1, 5, 2)

MOVES: dict[str, tuple[dict[str, Any], list[int], list[int]]] = {
    "the same index of both": ({"at": {1: 2}}, [2], [2]),
    "the last of each": ({"at": {1: -1}}, [2], [4]),
    "counted from the end": ({"at": {-2: [-1, 0]}}, [2, 0], [4, 0]),
    "the first two": ({"at": {1: slice(2)}}, [0, 1], [0, 1]),
    "another of the source": ({"at": {1: 2}, "source_at": {1: 4}}, [2], [4]),
    "in the order asked for": ({"at": {1: [2, 0]}, "source_at": {1: [1, 3]}}, [2, 0], [1, 3]),
    "one for several": ({"at": {1: [0, 1]}, "source_at": {1: 4}}, [0, 1], [4, 4]),
    "backwards": ({"at": {1: slice(3)}, "source_at": {1: slice(4, 1, -1)}}, [0, 1, 2], [4, 3, 2]),
    "a mask": ({"at": {1: [True, False, True]}, "source_at": {1: [3, 4]}}, [0, 2], [3, 4]),
}


@pytest.mark.parametrize("move", list(MOVES))
def test_a_patch_takes_places_of_a_source_of_another_length(move: str) -> None:
    options, into, out_of = MOVES[move]
    right = SHORT.clone()
    right[:, into] = LONG[:, out_of]
    exactly(done(edits.patch(LONG, **options), SHORT), right)


def test_a_patch_may_move_within_one_length() -> None:
    found = done(edits.patch(10 * SHORT, at={1: 0}, source_at={1: 2}), SHORT)
    exactly(found[:, 0], 10 * SHORT[:, 2])
    exactly(found[:, 1:], SHORT[:, 1:])


def test_a_patch_of_other_inputs_may_be_longer() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with tt.edit(model, "0", edits.patch(inputs=LONG, at={1: 0}, source_at={1: 3})):
        found = model(SHORT)
    close(found[:, 0], model(LONG)[:, 3])
    close(found[:, 1:], model(SHORT)[:, 1:])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"float32\[1, 5, 2\] for float32\[1, 3, 2\].*at=\{1: -1\} is the last of each"),
        ({"at": {2: 0}}, r"at=\{1: -1\} is the last of each, and source_at="),
        ({"at": {1: 2}, "source_at": {1: 7}}, r"takes 7 of dimension 1 of its source, which is fl"),
        ({"at": {1: 2}, "source_at": {1: [1, 2]}}, r"takes 2 places .* into 1; expected as many"),
        ({"at": {1: [True, False, True]}}, r"Say where to look with source_at=\{1: \.\.\.\}"),
    ],
)
def test_a_source_that_does_not_fit_says_both_shapes_and_a_way_out(options: Any, said: str) -> None:
    with pytest.raises(tt.EditError, match=said):
        done(edits.patch(LONG, **options), SHORT)


def test_a_place_of_the_source_needs_one_to_go_to() -> None:
    with pytest.raises(tt.InputError, match=r"source_at for dimension 1, and at has none"):
        edits.patch(LONG, source_at={1: 2})


@pytest.mark.parametrize("source", [lambda record: None, {"m": 3}])
def test_a_source_without_tensors_is_said(source: Any) -> None:
    with pytest.raises(tt.EditError, match=r"its source gave .*; expected a tensor"):
        done(edits.patch(source), SHORT)
