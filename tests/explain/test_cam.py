"""Class activation maps equal their papers' formulas, whatever the model does to its tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from bits import hooks
from cam_formulas import ONE_BACKWARD, by_hand
from captum.attr import LayerGradCam
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.explain.cam import METHODS

Truth = tuple[Tensor, Tensor]
"""Value and gradient at the layer, of an out-of-place twin in float64."""


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    scale = max(float(numpy.abs(numpy.asarray(expected)).max()), 1e-12)
    numpy.testing.assert_allclose(
        numpy.asarray(found), numpy.asarray(expected), atol=tolerance * scale, rtol=0
    )


def pictures(rows: int = 2, side: int = 12) -> Tensor:
    return torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(7))


class Net(nn.Module):
    """Convolution, batch norm, a rectifier that overwrites it, convolution, pooling, linear."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            self.conv = nn.Conv2d(3, 5, 3, bias=False)
            self.bn = nn.BatchNorm2d(5)
            self.act = act or nn.ReLU(inplace=True)
            self.last = nn.Conv2d(5, 6, 3)
            self.fc = nn.Linear(6, 4)
            with torch.no_grad():
                self.bn.running_mean.normal_()
                self.bn.weight.normal_()
                self.bn.bias.normal_()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.conv(x)))
        return self.fc(self.last(x).mean((2, 3)))


RECTIFIERS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "relu": (partial(nn.ReLU, inplace=True), torch.relu),
    "relu6": (partial(nn.ReLU6, inplace=True), functional.relu6),
    "silu": (partial(nn.SiLU, inplace=True), functional.silu),
    "hardswish": (partial(nn.Hardswish, inplace=True), functional.hardswish),
    "leaky_relu": (
        partial(nn.LeakyReLU, 0.1, inplace=True),
        partial(functional.leaky_relu, negative_slope=0.1),
    ),
}


def twin_truth(
    net: Net, x: Tensor, classes: list[int], act: Callable[[Tensor], Tensor] = torch.relu
) -> Truth:
    """At the batch norm, by the functions of torch.nn.functional."""
    p = {name: one.detach().double() for name, one in net.state_dict().items()}
    value = functional.batch_norm(
        functional.conv2d(x.double(), p["conv.weight"]),
        p["bn.running_mean"],
        p["bn.running_var"],
        p["bn.weight"],
        p["bn.bias"],
        training=False,
    ).requires_grad_()
    after = functional.conv2d(act(value), p["last.weight"], p["last.bias"])
    logits = functional.linear(after.mean((2, 3)), p["fc.weight"], p["fc.bias"])
    score = torch.stack([logits[row, one] for row, one in enumerate(classes)]).sum()
    (gradient,) = torch.autograd.grad(score, value)
    return value.detach(), gradient


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECTIFIERS)
@pytest.mark.parametrize("method", ONE_BACKWARD)
def test_a_map_before_an_in_place_rectifier_is_the_formula_of_an_out_of_place_twin(
    name: str, method: str
) -> None:
    make, act = RECTIFIERS[name]
    net, x = Net(make()), pictures()
    found = tt.cam(net, x, layer="bn", target=[1, 3], method=method)
    expected = by_hand(method, *twin_truth(net, x, [1, 3], act))
    assert found.values.shape == (2, 10, 10)
    assert found.values.dtype == torch.float32
    close(found.values, expected, 2e-4 if method == "gradcam++" else 1e-5)


@pytest.mark.parametrize("method", ONE_BACKWARD)
def test_a_map_in_float64_is_the_formula_to_twelve_digits(method: str) -> None:
    net, x = Net().double(), pictures().double()
    found = tt.cam(net, x, layer="bn", target=2, method=method)
    close(found.values, by_hand(method, *twin_truth(net, x, [2, 2])), 1e-10)


def test_the_final_relu_is_each_papers_and_can_be_asked_for() -> None:
    net, x = Net(), pictures()
    value, gradient = twin_truth(net, x, [0, 0])
    signed = (gradient.mean((2, 3), keepdim=True) * value).sum(1)
    assert (signed < 0).any()
    close(tt.cam(net, x, layer="bn", target=0, relu=False).values, signed)
    close(tt.cam(net, x, layer="bn", target=0).values, signed.relu())
    hires = tt.cam(net, x, layer="bn", target=0, method="hirescam")
    assert (hires.values < 0).any()
    rectified = tt.cam(net, x, layer="bn", target=0, method="hirescam", relu=True)
    assert torch.equal(rectified.values, hires.values.relu())


@pytest.mark.parametrize("layer", ["conv", "last"])
def test_gradcam_is_that_of_captum_where_captum_is_right(layer: str) -> None:
    net, x = Net(nn.ReLU()), pictures()
    theirs = LayerGradCam(net, getattr(net, layer)).attribute(
        x, target=torch.tensor([1, 2]), relu_attributions=True
    )
    ours = tt.cam(net, x, layer=layer, target=[1, 2])
    close(ours.values, theirs[:, 0].detach())


def test_hirescam_at_the_last_convolution_of_a_pooled_net_sums_to_the_score() -> None:
    net, x = Net().double(), pictures().double()
    found = tt.cam(net, x, layer="last", target=1, method="hirescam")
    close(found.values.sum((1, 2)), net(x)[:, 1].detach() - net.fc.bias[1].detach(), 1e-12)


def test_xgradcam_of_a_linear_head_sums_to_the_score() -> None:
    net, x = Net().double(), pictures().double()
    found = tt.cam(net, x, layer="last", target=1, method="xgradcam")
    close(found.values.sum((1, 2)), net(x)[:, 1].detach() - net.fc.bias[1].detach(), 1e-12)


def test_cam_weighs_the_map_with_the_last_linear_layer() -> None:
    net, x = Net().double(), pictures().double()
    with torch.no_grad():
        before = net.last(functional.relu(net.bn(net.conv(x))))
    found = tt.cam(net, x, layer="last", target=[0, 3], method="cam")
    expected = torch.einsum("bk,bkhw->bhw", net.fc.weight[[0, 3]].detach(), before)
    close(found.values, expected, 1e-12)
    assert (found.values < 0).any()


@pytest.mark.parametrize("layer", ["bn", "conv"])
def test_cam_is_refused_where_the_model_has_another_form(layer: str) -> None:
    with pytest.raises(tt.InputError, match=r"mean over the map of .*method='gradcam'"):
        tt.cam(Net(), pictures(), layer=layer, target=0, method="cam")


def test_cam_is_refused_without_a_class() -> None:
    with pytest.raises(tt.InputError, match="weights of a class"):
        tt.cam(Net(), pictures(), layer="last", target=lambda out: out.sum(1), method="cam")


# --- in-place operations, views, calls, nesting -----------------------------------------------


class Forward(nn.Module):
    """A forward that is written as a function; the same weights every time."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self.function = function
        for number, parameter in enumerate(self.parameters()):
            with torch.no_grad():
                parameter.copy_(
                    torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
                )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def head(value: Tensor, fc: nn.Linear) -> Tensor:
    return fc(torch.relu(value).mean((2, 3)))


def check_gradcam(model: nn.Module, x: Any, truth: Truth, **asked: Any) -> None:
    for method in ("gradcam", "hirescam", "layercam"):
        found = tt.cam(model, x, target=1, method=method, **asked)
        close(found.values, by_hand(method, *truth))


def conv_truth(model: Any, x: Tensor, after: Callable[[Tensor], Tensor]) -> Truth:
    """Value of the convolution ``conv``, and the gradient of class 1 of what comes after."""
    value = model.conv(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(after(value)[:, 1].sum(), value)
    return value.detach(), gradient


def small(function: Callable[..., Any], **more: nn.Module) -> Any:
    return Forward(function, conv=nn.Conv2d(3, 4, 3), fc=nn.Linear(4, 3), **more)


def test_what_the_caller_adds_in_place_to_the_layer_is_behind_it() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        value = m.conv(x)
        value += 0.5
        value.relu_()
        return head(value, m.fc)

    model, x = small(forward), pictures()
    check_gradcam(model, x, conv_truth(model, x, lambda v: head(v + 0.5, model.fc)), layer="conv")


def test_a_view_that_is_overwritten_inside_a_block_keeps_its_gradient() -> None:
    class Turned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2).transpose(2, 3)

    def inner(m: Any, x: Tensor) -> Tensor:
        value = m.turned(x)
        used = (value * 3.0).mean()
        value.relu_()
        return value + used

    block = Forward(inner, turned=Turned())

    def forward(m: Any, x: Tensor) -> Tensor:
        return head(m.block(m.conv(x)), m.fc)

    model, x = small(forward, block=block), pictures()
    value = (model.conv(x) * 2).transpose(2, 3).detach().requires_grad_()
    logits = head(value.relu() + (value * 3.0).mean(), model.fc)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), value)
    check_gradcam(model, x, (value.detach(), gradient), layer="block.turned")


def test_an_in_place_module_gives_the_map_of_what_it_returned() -> None:
    model, x = Net(), pictures()
    value, _ = twin_truth(model, x, [1, 1])
    after = value.relu().requires_grad_()
    twin = Net().double()
    (gradient,) = torch.autograd.grad(twin.fc(twin.last(after).mean((2, 3)))[:, 1].sum(), after)
    check_gradcam(model, x, (after.detach(), gradient), layer="act")


def test_one_call_of_several_is_chosen_and_named() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.conv(x)
        for _ in range(3):
            x = m.again(x).tanh()
        return m.fc(x.mean((2, 3)))

    model = small(forward, again=nn.Conv2d(4, 4, 3, padding=1))
    x = pictures()
    for call in (0, 1, 2, -1):
        number = call % 3
        value = model.conv(x)
        for _ in range(number):
            value = model.again(value).tanh()
        value = model.again(value).detach().requires_grad_()
        later = value.tanh()
        for _ in range(2 - number):
            later = model.again(later).tanh()
        (gradient,) = torch.autograd.grad(model.fc(later.mean((2, 3)))[:, 1].sum(), value)
        truth = value.detach(), gradient
        check_gradcam(model, x, truth, layer="again", call=call)
        found = tt.cam(model, x, layer="again", call=call)
        assert f"called 3 times; this is call {number}" in " ".join(found.notes)
    with pytest.raises(tt.InputError, match="called 3 times; there is no call 3"):
        tt.cam(model, x, layer="again", call=3)


def test_a_map_in_a_nested_output_is_found_or_named_by_its_leaf() -> None:
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Any]:
            return {"size": x.mean(), "maps": (x * 2, x * 3)}

    def forward(m: Any, x: Tensor) -> Tensor:
        found = m.nested(m.conv(x))
        return head(found["maps"][0], m.fc) + head(found["maps"][1].sin(), m.fc)

    model, x = small(forward, nested=Nested()), pictures()
    for leaf, factor, after in (("maps.0", 2, torch.relu), ("maps.1", 3, torch.sin)):
        value = (model.conv(x) * factor).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(head(after(value), model.fc)[:, 1].sum(), value)
        truth = value.detach(), gradient
        check_gradcam(model, x, truth, layer=f"nested:output[{leaf}]")
        if leaf == "maps.0":
            check_gradcam(model, x, truth, layer="nested")
            assert tt.cam(model, x, layer="nested").layer == "nested:output[maps.0]"


def test_a_checkpointed_layer_gives_the_same_map() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        value = checkpoint(lambda one: m.conv(one).sin(), x, use_reentrant=False)
        return head(value, m.fc)

    model, x = small(forward), pictures()
    check_gradcam(model, x, conv_truth(model, x, lambda v: head(v.sin(), model.fc)), layer="conv")


@pytest.mark.filterwarnings("ignore:None of the inputs")
def test_a_reentrant_checkpoint_behind_the_layer_is_refused_with_a_way_out() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return head(checkpoint(torch.sin, m.conv(x), use_reentrant=True), m.fc)

    with pytest.raises(RuntimeError) as caught:
        tt.cam(small(forward), pictures(), layer="conv", target=0)
    assert "use_reentrant=False" in " ".join(caught.value.__notes__)
    found = tt.cam(small(forward), pictures(), layer="conv", target=0, method="eigencam")
    assert found.values.shape == (2, 10, 10)


def test_a_mark_is_a_layer() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return head(tt.mark(self.conv(x).sin(), "sines"), self.fc)

    model, x = Marked(), pictures()
    value = model.conv(x).sin().detach().requires_grad_()
    (gradient,) = torch.autograd.grad(head(value, model.fc)[:, 1].sum(), value)
    check_gradcam(model, x, (value.detach(), gradient), layer="sines")


# --- grad modes, frozen, dtypes ---------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_mode_around_the_call_makes_no_difference(mode: Any) -> None:
    net, x = Net(), pictures()
    expected = tt.cam(net, x, layer="bn", target=1).values
    with mode():
        assert torch.equal(tt.cam(net, x, layer="bn", target=1).values, expected)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("frozen", [["conv", "bn"], ["conv", "bn", "last", "fc"]])
@pytest.mark.parametrize("layer", ["bn", None])
def test_frozen_parameters_make_no_difference(frozen: list[str], layer: str | None) -> None:
    net, x = Net(), pictures()
    expected = tt.cam(net, x, layer=layer, target=1)
    for name in frozen:
        getattr(net, name).requires_grad_(False)
    found = tt.cam(net, x, layer=layer, target=1)
    assert found.layer == expected.layer
    assert torch.equal(found.values, expected.values)


def tokens_net(function: Callable[..., Any]) -> Any:
    return Forward(function, emb=nn.Embedding(11, 4), act=nn.ReLU(inplace=True), fc=nn.Linear(4, 3))


def test_integer_inputs_of_a_frozen_model_give_maps_of_tokens() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.fc(m.emb(x).mul_(2.0).sin().mean(1))

    ids = torch.tensor([[1, 5, 2, 7, 3], [4, 4, 0, 10, 9]])
    model = tokens_net(forward).requires_grad_(False)
    value = model.emb(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.fc((value * 2).sin().mean(1))[:, 1].sum(), value)
    truth = tuple(one.mT[..., None].detach() for one in (value, gradient))
    for method in ("gradcam", "hirescam", "layercam"):
        found = tt.cam(model, ids, layer="emb", target=1, method=method)
        close(found.values, by_hand(method, *truth)[..., 0])
        assert found.size == (5,)


class InObject(nn.Module):
    """Returns an object, which others may hold, so that nothing could be put in its place."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(value=x.sin())


def test_a_layer_that_returns_an_object_has_a_map_of_the_tensor_in_it() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.fc(m.part(m.emb(x)).value.square().mean(1))

    ids = torch.tensor([[1, 5, 2, 7, 3], [4, 4, 0, 10, 9]])
    model = Forward(forward, emb=nn.Embedding(11, 4), part=InObject(), fc=nn.Linear(4, 3))
    value = model.emb(ids).detach().sin().requires_grad_()
    (gradient,) = torch.autograd.grad(model.fc(value.square().mean(1))[:, 1].sum(), value)
    truth = tuple(one.mT[..., None].detach() for one in (value, gradient))
    found = tt.cam(model, ids, layer="part", target=1, method="hirescam")
    close(found.values, by_hand("hirescam", *truth)[..., 0])


def test_a_checkpointed_layer_of_a_frozen_model_begins_again_where_it_began() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return checkpoint(lambda one: m.fc(m.emb(one)).sin(), x, use_reentrant=False).mean(1)

    ids = torch.tensor([[1, 5, 2, 7, 3], [4, 4, 0, 10, 9]])
    model = tokens_net(forward).requires_grad_(False)
    value = model.fc(model.emb(ids)).detach()
    gradient = torch.zeros_like(value)
    gradient[:, :, 1] = value[:, :, 1].cos() / 5
    truth = tuple(one.mT[..., None] for one in (value, gradient))
    found = tt.cam(model, ids, layer="fc", target=1, method="hirescam")
    close(found.values, by_hand("hirescam", *truth)[..., 0])


def test_a_layer_of_a_frozen_model_that_returns_its_input_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.fc(m.act(m.emb(x)).mean(1))

    model = tokens_net(forward).requires_grad_(False)
    ids = torch.tensor([[1, 5, 2, 7, 3]])
    with pytest.raises(tt.InputError, match="returns the memory of its input"):
        tt.cam(model, ids, layer="act", target=1)


def test_no_grad_behind_the_layer_is_refused_and_methods_without_gradients_are_named() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            return head(m.conv(x), m.fc)

    with pytest.raises(tt.InputError, match=r"torch\.no_grad.*eigencam, scorecam, ablationcam"):
        tt.cam(small(forward), pictures(), layer="conv", target=1)
    for method in ("eigencam", "scorecam", "ablationcam"):
        assert tt.cam(small(forward), pictures(), target=1, method=method).layer == "conv"


def test_a_layer_that_the_score_does_not_depend_on_is_refused() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        m.aside(x)
        return head(m.conv(x), m.fc)

    model = small(forward, aside=nn.Conv2d(3, 4, 3))
    with pytest.raises(tt.InputError, match="no gradient at layer 'aside'"):
        tt.cam(model, pictures(), layer="aside", target=1)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 6e-2), (torch.float16, 1e-2)])
@pytest.mark.parametrize("method", ["gradcam", "hirescam", "eigencam"])
def test_half_precision_gives_float32_maps_near_the_true_ones(
    dtype: torch.dtype, tolerance: float, method: str
) -> None:
    net, x = Net(), pictures()
    expected = by_hand(method, *twin_truth(net, x, [1, 1]))
    found = tt.cam(net.to(dtype), x.to(dtype), layer="bn", target=1, method=method)
    assert found.values.dtype == torch.float32
    close(found.values, expected, tolerance)


def test_autocast_around_the_call_is_used() -> None:
    net, x = Net(), pictures()
    with torch.autocast("cpu", torch.bfloat16):
        found = tt.cam(net, x, layer="bn", target=1)
    close(found.values, by_hand("gradcam", *twin_truth(net, x, [1, 1])), 6e-2)


def test_a_compiled_model_gives_the_map_of_the_plain_one() -> None:
    net, x = Net(), pictures()
    expected = tt.cam(net, x, layer="bn", target=1).values
    compiled: Any = torch.compile(net, backend="eager")
    compiled(x)
    assert torch.equal(tt.cam(compiled, x, layer="bn", target=1).values, expected)


# --- several layers ---------------------------------------------------------------------------


def test_maps_of_several_layers_are_averaged_or_stacked_at_the_largest_size() -> None:
    net, x = Net(), pictures()
    one, two = (tt.cam(net, x, layer=name, target=1).values for name in ("bn", "last"))
    large = functional.interpolate(
        two[:, None], size=(10, 10), mode="bilinear", align_corners=False
    )
    stacked = tt.cam(net, x, layer=["bn", "last"], target=1, stack=True)
    close(stacked.values, torch.stack([one, large[:, 0]], 1))
    averaged = tt.cam(net, x, layer=["bn", net.last], target=1)
    close(averaged.values, (one + large[:, 0]) / 2)
    assert averaged.layer == stacked.layer == "bn, last"
    assert "resized to the largest, 10 x 10" in " ".join(averaged.notes)
    assert tt.cam(net, x, layer="bn", stack=True).values.shape == (2, 1, 10, 10)


def test_a_pattern_and_a_class_name_layers() -> None:
    net, x = Net(), pictures()
    assert tt.cam(net, x, layer="*@Conv2d").layer == "conv, last"
    assert tt.cam(net, x, layer=nn.Conv2d).layer == "conv, last"


# --- what the map says ------------------------------------------------------------------------


def test_the_class_that_won_is_explained_and_said() -> None:
    net, x = Net(), pictures()
    found = tt.cam(net, x, layer="bn")
    logits = net(x).detach()
    assert found.target == tuple(logits.argmax(1).tolist())
    close(found.scores, logits.max(1).values)
    assert found.size == (12, 12)
    assert found.method == "gradcam"


def test_gradcam_plus_plus_before_a_rectifier_is_said_to_be_out_of_its_domain() -> None:
    net, x = Net(), pictures()
    assert "derived for what comes after a ReLU" in " ".join(
        tt.cam(net, x, layer="bn", method="gradcam++").notes
    )
    assert not tt.cam(net, x, layer="act", method="gradcam++").notes


def test_a_map_that_the_final_relu_left_empty_is_said() -> None:
    net, x = Net(), pictures()
    with torch.no_grad():
        net.fc.weight[1] = -net.fc.weight[1].abs()
        net.last.weight.abs_()
    found = tt.cam(net, x, layer="act", target=1)
    assert not found.values.any()
    assert "row 0, 1 is 0 everywhere" in " ".join(found.notes)
    assert (tt.cam(net, x, layer="act", target=1, relu=False).values < 0).any()


@pytest.mark.parametrize("method", ONE_BACKWARD)
def test_nan_in_the_layer_stays_nan_and_is_counted(method: str) -> None:
    net, x = Net(), pictures()
    x[1, 0, 6, 6] = torch.nan
    found = tt.cam(net, x, layer="bn", target=1, method=method)
    assert found.values[1].isnan().any()
    assert torch.isfinite(found.values[0]).all()
    assert "are NaN or infinite" in " ".join(found.notes)


def test_a_map_is_made_again_of_other_weights_at_the_same_layer_and_class() -> None:
    net, x = Net(), pictures()
    found = tt.cam(net, x)
    other = Net()
    with torch.no_grad():
        other.conv.weight.neg_()
    assert found.again is not None
    again = found.again(model=other)
    expected = tt.cam(other, x, layer=found.layer, target=list(found.target or ()))
    assert again.layer == found.layer
    assert again.target == found.target
    assert torch.equal(again.values, expected.values)
    assert not torch.equal(again.values, found.values)


# --- no trace ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(method: str) -> None:
    net, x = Net(), pictures()
    net.bn.train()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = {name: one.clone() for name, one in net.state_dict().items()}
    versions = {name: one._version for name, one in net.state_dict().items()}
    random = torch.get_rng_state()
    before, before_hooks = x.clone(), hooks(net)
    tt.cam(net, x, layer="last", target=1, method=method)
    for name, one in net.state_dict().items():
        assert torch.equal(one, state[name])
        assert one._version == versions[name]
    for parameter in net.parameters():
        assert bool((parameter.grad == 1).all())
    assert net.bn.training
    assert not net.act.training
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, before)
    assert x.grad is None
    assert hooks(net) == before_hooks


# --- channels that sum to 0 -------------------------------------------------------------------


def normalised(dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    """A model whose layer "0" has channels of mean 0, its input, and the value of the layer."""
    torch.manual_seed(3)
    parts = nn.InstanceNorm2d(4), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    x = torch.randn(2, 4, 7, 7).to(dtype)
    return nn.Sequential(*parts).to(dtype), x, parts[0](x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_xgradcam_gives_channels_that_sum_to_zero_no_weight(dtype: torch.dtype) -> None:
    net, x, value = normalised(dtype)
    assert float(value.sum((2, 3)).abs().max()) < 1e-4
    found = tt.cam(net, x, layer="0", target=1, method="xgradcam")
    assert bool((found.values == 0).all())


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_of_eigencam_is_not_that_of_rounding(seed: int) -> None:
    net, x, _ = normalised(torch.float32)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    one = tt.cam(net, x, layer="0", method="eigencam").values
    two = tt.cam(net, x + 1e-5 * noise, layer="0", method="eigencam").values
    torch.testing.assert_close(one, two, rtol=0, atol=1e-3)
    peaks = one.flatten(1).gather(1, one.flatten(1).abs().argmax(1, keepdim=True))
    assert bool((peaks > 0).all())
