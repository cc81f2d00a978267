"""Maps are read off in any layout, and the layer is the last one that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.swin.modeling_swin import window_partition

import torchtap as tt
from torchtap.explain.cams.map_layout import Layout

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_labels": 5,
}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL))


def deit() -> nn.Module:
    config = transformers.DeiTConfig(**SMALL)
    return transformers.DeiTForImageClassificationWithTeacher(config)


def registers() -> nn.Module:
    config = transformers.Dinov2WithRegistersConfig(**SMALL, num_register_tokens=4)
    return transformers.Dinov2WithRegistersForImageClassification(config)


def swin(**more: Any) -> nn.Module:
    size: dict[str, Any] = {
        "image_size": 32,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [2, 2],
        "num_heads": [2, 2],
        "window_size": 4,
        "num_labels": 5,
    }
    return transformers.SwinForImageClassification(transformers.SwinConfig(**{**size, **more}))


def convnext() -> nn.Module:
    size: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2}
    config = transformers.ConvNextConfig(image_size=32, patch_size=4, **size)
    return transformers.ConvNextForImageClassification(config)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        return make().eval()


def truth(model: nn.Module, layer: str, target: int, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of a model that overwrites nothing, by a plain hook."""
    kept: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])

    handle = model.get_submodule(layer).register_forward_hook(keep)
    output = model(*inputs)
    handle.remove()
    logits = output if isinstance(output, Tensor) else output.logits
    (gradient,) = torch.autograd.grad(logits[:, target].sum(), kept[-1])
    return kept[-1].detach(), gradient


def hires(value: Tensor, gradient: Tensor, extra: int, grid: tuple[int, ...]) -> Tensor:
    """HiResCAM of tokens, place by place."""
    found = torch.zeros(len(value), *grid)
    for row in range(len(value)):
        for place in range(found[row].numel()):
            token = value[row, extra + place] * gradient[row, extra + place]
            found[row].view(-1)[place] = token.sum()
    return found


# --- tokens -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "layer", "extra"),
    [
        (vit, "vit.layers.2.layernorm_before", 1),
        (deit, "deit.layers.2.layernorm_before", 2),
        (registers, "dinov2_with_registers.layernorm", 5),
    ],
)
def test_tokens_are_a_map_behind_those_that_stand_in_front(
    make: Callable[[], nn.Module], layer: str, extra: int
) -> None:
    model, x = seeded(make), random(2, 3, 32, 32)
    found = tt.cam(model, x, target=3, method="hirescam")
    assert found.layer == layer  # After the last attention of a ViT only its class token counts.
    expected = hires(*truth(model, layer, 3, x), extra, (4, 4))
    assert found.values.shape == (2, 4, 4)
    torch.testing.assert_close(found.values, expected, atol=1e-7, rtol=1e-4)
    assert f"4 x 4 tokens and {extra} more in front" in " ".join(found.notes)
    assert found.size == (32, 32)


def test_a_layer_where_only_the_class_token_counts_gives_an_empty_map_that_is_said() -> None:
    found = tt.cam(seeded(vit), random(2, 3, 32, 32), layer="vit.layernorm", target=3)
    assert not found.values.any()
    assert "0 everywhere" in " ".join(found.notes)


def test_pictures_that_are_not_square_have_grids_of_their_ratio() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 8, stride=8),
        nn.Flatten(2),
        Transposed(),
        nn.LayerNorm(6),
        Mean(),
        nn.Linear(6, 2),
    )
    found = tt.cam(model, random(1, 3, 16, 64), layer="3")
    assert found.values.shape == (1, 2, 8)


def test_a_grid_that_is_not_found_can_be_given() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, (4, 8), stride=(4, 8)),
        nn.Flatten(2),
        Transposed(),
        nn.LayerNorm(6),
        Mean(),
        nn.Linear(6, 2),
    )
    x = random(1, 3, 12, 40)
    with pytest.raises(tt.InputError, match=r"15 tokens are no grid over 12 x 40.*grid=\("):
        tt.cam(model, x, layer="3")
    assert tt.cam(model, x, layer="3", grid=(3, 5)).values.shape == (1, 3, 5)
    assert "and 1 more in front" in " ".join(tt.cam(model, x, layer="3", grid=(7, 2)).notes)
    with pytest.raises(tt.InputError, match=r"grid=\(4, 4\) has 16 places, and there are 15"):
        tt.cam(model, x, layer="3", grid=(4, 4))


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mT


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class Pool(nn.Module):
    """Mean over all but rows and channels."""

    def __init__(self, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.dims)


# --- Swin -------------------------------------------------------------------------------------


def test_the_last_tokens_of_a_swin_are_its_last_layer_norm() -> None:
    model, x = seeded(swin), random(2, 3, 32, 32)
    found = tt.cam(model, x, target=1, method="hirescam")
    assert found.layer == "swin.layernorm"
    expected = hires(*truth(model, "swin.layernorm", 1, x), 0, (8, 8))
    torch.testing.assert_close(found.values, expected, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("block", [0, 1])
def test_windows_are_put_back_to_where_they_were_cut(block: int, rows: int) -> None:
    model, x = seeded(swin), random(rows, 3, 32, 32)
    prefix = f"swin.encoder.layers.0.blocks.{block}"
    value, gradient = truth(model, f"{prefix}.attention.q_proj", 1, x)
    # The projection works on each token alone: what it is of the tokens as they lay.
    before, _ = truth(model, f"{prefix}.layernorm_before", 1, x)
    whole = model.get_submodule(f"{prefix}.attention.q_proj")(before).detach()
    shift = 2 * block
    rolled = whole.view(rows, 16, 16, -1).roll((-shift, -shift), (1, 2))
    torch.testing.assert_close(window_partition(rolled, 4).flatten(1, 2), value)
    layout = Layout("windows", (16, 16), 0, (4, 4), (shift, shift))
    torch.testing.assert_close(layout.maps(value), whole.view(rows, 16, 16, -1).permute(0, 3, 1, 2))

    found = tt.cam(model, x, layer=f"{prefix}.attention.q_proj", target=1, method="hirescam")
    expected = (layout.maps(value) * layout.maps(gradient)).sum(1)
    torch.testing.assert_close(found.values, expected, atol=1e-7, rtol=1e-4)


# --- channels ---------------------------------------------------------------------------------


def test_channels_last_inside_a_convnext_are_told_from_channels_first() -> None:
    model, x = seeded(convnext), random(2, 3, 32, 32)
    block = "convnext.encoder.stages.1.layers.0"
    for layer, dim in (
        (f"{block}.dwconv", 1),
        (f"{block}.pwconv1", -1),
        (f"{block}.act", -1),
        (block, 1),
    ):
        value, gradient = truth(model, layer, 1, x)
        found = tt.cam(model, x, layer=layer, target=1, method="hirescam")
        torch.testing.assert_close(found.values, (value * gradient).sum(dim), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (
            nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), Pool((2,)), nn.Linear(4, 3)),
            (2, 2, 9),
            (2, 7),
        ),
        (
            nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), Pool((2, 3, 4)), nn.Linear(4, 3)),
            (2, 2, 5, 6, 7),
            (2, 3, 4, 5),
        ),
        (
            nn.Sequential(nn.Linear(3, 4), nn.ReLU(), Pool((1, 2)), nn.Linear(4, 3)),
            (2, 6, 7, 3),
            (2, 6, 7),
        ),
        (
            nn.Sequential(nn.Linear(5, 4), nn.ReLU(), Pool((1,)), nn.Linear(4, 3)),
            (2, 6, 5),
            (2, 6),
        ),
    ],
    ids=["1-d", "3-d", "channels last", "features of steps"],
)
def test_maps_of_one_two_and_three_dimensions(
    model: nn.Module, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = random(*shape)
    found = tt.cam(model, x, target=1, method="hirescam", relu=False)
    assert found.layer == "1"
    value, gradient = truth(model, "1", 1, x)
    dim = 1 if isinstance(model[0], nn.Conv1d | nn.Conv3d) else -1
    torch.testing.assert_close(found.values, (value * gradient).sum(dim))
    assert found.values.shape == expected
    assert len(found.size) == len(expected) - 1
    for method in ("scorecam", "ablationcam", "gradcam"):
        assert tt.cam(model, x, target=1, method=method).values.shape == expected


@pytest.mark.parametrize("shape", [(2, 8, 4, 4), (2, 6, 8, 4), (2, 16, 7, 3), (2, 5, 5, 2)])
def test_small_maps_as_inputs_are_no_pictures_with_channels_last(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Conv2d(shape[1], 6, 1), nn.ReLU(), Pool((2, 3)), nn.Linear(6, 3))
    x = random(*shape)
    assert tt.cam(model, x, target=1).size == shape[2:]
    assert tt.attribute(model, x, target=1, method="gradient").size == shape[2:]
    value = model[:2](x).detach()
    low, high = value.amin((2, 3), keepdim=True), value.amax((2, 3), keepdim=True)
    masks = torch.where(high > low, (value - low) / (high - low), 0)
    scores = torch.stack([model(x * masks[:, one, None])[:, 1] for one in range(6)], 1)
    scores = scores.masked_fill((low == high)[..., 0, 0], -torch.inf).detach()
    expected = (scores.softmax(1)[..., None, None] * value).sum(1).relu()
    found = tt.cam(model, x, layer="1", target=1, method="scorecam")
    torch.testing.assert_close(found.values, expected)


def test_pictures_with_channels_last_stay_so_in_a_model_that_turns_them() -> None:
    class Turned(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x.movedim(-1, 1))

    model = Turned(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.ReLU(), Pool((2, 3)), nn.Linear(4, 3))
    found = tt.cam(model, random(2, 8, 9, 3), target=1)
    assert found.size == (8, 9) and found.values.shape == (2, 4, 5)
    assert tt.attribute(model, random(2, 8, 9, 3), target=1, method="gradient").size == ()


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (nn.Sequential(nn.Linear(5, 4), nn.ReLU(), Pool((1,)), nn.Linear(4, 3)), ()),
        (nn.Sequential(nn.Conv1d(7, 4, 1), nn.ReLU(), Pool((2,)), nn.Linear(4, 3)), (5,)),
    ],
    ids=["steps of features", "channels of a signal"],
)
def test_a_sequence_is_read_as_the_modules_take_it(model: nn.Module, size: tuple[int, ...]) -> None:
    x = random(2, 7, 5)
    found = tt.attribute(model, x, target=1, method="input_x_gradient")
    assert found.size == size
    places = (found.values.sum(1 if size else 2)).shape[1]
    curve = found.check(parts="deletion", steps=places, of="score", num_controls=1).deletion
    assert curve is not None
    torch.testing.assert_close(curve.shares, torch.linspace(0, 1, places + 1).double())


def test_tokens_behind_the_convolutions_of_a_signal_lie_over_its_length() -> None:
    class Turned(nn.Sequential):
        def forward(self, x: Tensor) -> Any:
            value = self.first(x).transpose(1, 2)
            return self.last(self.norm(value).tanh().mean(1))

    model = Turned()
    model.first, model.norm, model.last = nn.Conv1d(2, 4, 1), nn.LayerNorm(4), nn.Linear(4, 3)
    x = random(2, 2, 9)
    found = tt.cam(model, x, layer="norm", target=1, method="scorecam")
    assert found.size == (9,)
    value = model.norm(model.first(x).transpose(1, 2)).detach().transpose(1, 2)
    low, high = value.amin(2, keepdim=True), value.amax(2, keepdim=True)
    masks = (value - low) / (high - low)
    scores = torch.stack([model(x * masks[:, one, None])[:, 1] for one in range(4)], 1).detach()
    expected = (scores.softmax(1)[..., None] * value).sum(1).relu()
    torch.testing.assert_close(found.values, expected)


class OwnConv(nn.Module):
    """A convolution that is no module of PyTorch's, so that its channels are not told."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(random(num, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, padding=1)


@pytest.mark.parametrize(("num", "side", "is_told"), [(6, 16, True), (6, 8, False), (8, 8, False)])
def test_a_head_as_wide_as_a_map_does_not_put_channels_last(
    num: int, side: int, *, is_told: bool
) -> None:
    flat = num * side * side
    model = nn.Sequential(OwnConv(num), nn.Flatten(), nn.Linear(flat, side), nn.Linear(side, 3))
    x = random(2, 3, side, side)
    if is_told:
        assert tt.cam(model, x, layer="0", target=1).values.shape == (2, side, side)
        return
    with pytest.raises(tt.InputError, match="give layout='channels_first'"):
        tt.cam(model, x, layer="0", target=1)


def test_a_squeeze_as_narrow_as_a_map_does_not_put_channels_last() -> None:
    class Squeeze(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(16, 4), nn.Linear(4, 16)

        def forward(self, x: Tensor) -> Tensor:
            gate = self.up(self.down(x.mean((2, 3))).relu()).sigmoid()
            return x * gate[..., None, None]

    stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
    model = nn.Sequential(stem, Squeeze(), Pool((2, 3)), nn.Linear(16, 3))
    assert tt.cam(model, random(2, 3, 8, 8), layer="1", target=1).values.shape == (2, 4, 4)


def test_memory_format_makes_no_difference() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Pool((2, 3)), nn.Linear(4, 3))
    x = random(2, 3, 9, 8)
    expected = tt.cam(model, x, target=1).values
    found = tt.cam(
        model.to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        x.contiguous(memory_format=torch.channels_last),
        target=1,
    )
    torch.testing.assert_close(found.values, expected)


def test_what_the_modules_do_not_tell_is_asked_for() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Sum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum((2, 3))

    model = nn.Sequential(Doubled(), Sum())
    x = random(2, 5, 5, 5)
    with pytest.raises(tt.InputError, match="give layout='channels_first'"):
        tt.cam(model, x, layer="0")
    assert tt.cam(model, x, layer="0", layout="channels_first", method="hirescam").values.shape == (
        2,
        5,
        5,
    )
    with pytest.raises(tt.InputError, match=r"layout is 'NCHW'; expected one of channels_first"):
        tt.cam(model, x, layer="0", layout="NCHW")


# --- the last layer ---------------------------------------------------------------------------


def test_the_last_layer_with_a_map_is_chosen_and_named() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    found = tt.cam(model, random(1, 3, 8, 8), target=1)
    assert found.layer == "1"
    assert "'1' (float32[1, 4, 6, 6]) was chosen" in " ".join(found.notes)


class TorchViT(nn.Module):
    """PyTorch's own encoder, of which a layer runs as one kernel where no gradient is wanted."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.patches, self.token = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, 1, 16))
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        tokens = torch.cat([self.token.expand(len(x), 1, 16), tokens], 1)
        return self.fc(self.encoder(tokens)[:, 0])


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_inside_of_a_fused_encoder_is_seen_by_every_method(frozen: bool) -> None:
    model, x = seeded(TorchViT).requires_grad_(not frozen), random(2, 3, 32, 32)
    layer = "encoder.layers.1.norm1"
    for method in ("gradcam", "eigencam", "ablationcam", "scorecam"):
        chosen = tt.cam(model, x, target=1, method=method, relu=False)
        named = tt.cam(model, x, layer=layer, target=1, method=method, relu=False)
        assert chosen.layer == layer
        assert named.values.any()
        torch.testing.assert_close(chosen.values, named.values)


def test_of_layers_that_return_one_tensor_the_outermost_is_named() -> None:
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU()))
    model = nn.Sequential(body, Pool((2, 3)), nn.Linear(4, 3))
    assert tt.cam(model, random(1, 3, 8, 8), target=1).layer == "0"


def test_a_layer_beside_the_way_to_the_score_is_not_chosen() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aside, self.fc = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.fc(self.body(x).mean((2, 3))), self.aside(x)

    assert tt.cam(Two(), random(1, 3, 8, 8), target=1).layer == "body"


class Overwriting(nn.Module):
    """The caller overwrites what the last layer returned, which is a view or not."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.fc = layer, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        value = self.layer(x)
        value += 1.0
        return self.fc(value.relu_().square().mean((2, 3)))


@pytest.mark.parametrize("method", ["gradcam", "hirescam", "eigencam", "ablationcam"])
@pytest.mark.parametrize("view", [False, True])
def test_the_map_of_a_layer_that_was_chosen_is_that_of_the_layer_named(
    method: str, view: bool
) -> None:
    layer: nn.Module = nn.Conv2d(3, 4, 3)
    if view:
        layer = nn.Sequential(nn.Conv2d(3, 4, 3), Swapped())
    for model in (Overwriting(layer), small()):
        x = random(2, 3, 8, 8)
        chosen = tt.cam(model, x, target=1, method=method)
        named = tt.cam(model, x, layer=chosen.layer, target=1, method=method)
        assert torch.equal(chosen.values, named.values)
        assert torch.equal(chosen.scores, named.scores)


class Swapped(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(2, 3)


def test_of_a_module_that_is_used_twice_the_last_call_that_gave_a_map_is_taken() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc, self.act = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.act(self.act(self.conv(x)).mean((2, 3)) - 0.1))

    model, x = Shared(), random(2, 3, 8, 8)
    found = tt.cam(model, x, target=1, method="hirescam")
    assert found.layer == "act"
    assert "called 2 times; this is call 0" in " ".join(found.notes)
    named = tt.cam(model, x, layer="act", call=0, target=1, method="hirescam")
    assert torch.equal(found.values, named.values)
    assert found.again is not None
    assert torch.equal(found.again(model=model).values, found.values)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_language_model_has_maps_of_tokens(frozen: bool) -> None:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    model = seeded(lambda: transformers.GPT2LMHeadModel(config)).requires_grad_(not frozen)
    ids = torch.randint(0, 50, (1, 7), generator=torch.Generator().manual_seed(0))
    found = tt.cam(model, ids, target=(-1, 3), method="hirescam")
    assert found.layer == "transformer.h.1.ln_1"
    assert found.values.shape == (1, 7)
    assert found.size == (7,)
    assert found.target == (3,)
    model.requires_grad_(True)
    kept: list[Tensor] = []
    layer = model.get_submodule("transformer.h.1.ln_1")
    handle = layer.register_forward_hook(lambda _, __, out: kept.append(out))
    score = model(ids).logits[0, -1, 3]
    handle.remove()
    (gradient,) = torch.autograd.grad(score, kept[0])
    torch.testing.assert_close(found.values, (kept[0] * gradient).sum(-1).detach())


# --- layers that give no map ------------------------------------------------------------------


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        ("4", r"returned float32\[1, 3\], which is no map: a map has 3 dimensions"),
        ("2", r"its map is one pixel"),
    ],
)
def test_a_layer_without_a_map_is_refused_and_those_with_one_are_named(
    layer: str, reason: str
) -> None:
    named = r".*from the last: '1' \(float32\[1, 4, 6, 6\]\), '0' \(float32\[1, 4, 6, 6\]\)\."
    with pytest.raises(tt.InputError, match=reason + named):
        tt.cam(small(), random(1, 3, 8, 8), layer=layer, target=0)


def test_a_model_without_maps_is_refused() -> None:
    with pytest.raises(tt.InputError, match="No layer of this model gives one"):
        tt.cam(nn.Sequential(nn.Linear(4, 3)), random(2, 4))


def test_a_layer_that_does_not_run_is_refused() -> None:
    model = small()
    model.add_module("spare", nn.Conv2d(3, 3, 1))

    class Without(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spare = small(), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    for method in ("gradcam", "eigencam"):
        with pytest.raises(tt.InputError, match=r"Layer 'spare' gave no value.*not called"):
            tt.cam(Without(), random(1, 3, 8, 8), layer="spare", method=method)


def test_a_misspelt_layer_and_one_of_another_model_are_refused() -> None:
    with pytest.raises(tt.SiteError, match="has no module"):
        tt.cam(small(), random(1, 3, 8, 8), layer="conv")
    with pytest.raises(tt.SiteError, match="not a module of this"):
        tt.cam(small(), random(1, 3, 8, 8), layer=nn.Conv2d(3, 4, 3))
    with pytest.raises(tt.InputError, match="a map is made at what a layer returns"):
        tt.cam(small(), random(1, 3, 8, 8), layer="0:input")
    with pytest.raises(tt.InputError, match="empty list"):
        tt.cam(small(), random(1, 3, 8, 8), layer=[])


def test_a_container_that_is_never_called_is_refused() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = functional.relu(block(x))
            return self.fc(x.mean((2, 3)))

    with pytest.raises(tt.InputError, match=r"ModuleList, which is never called.*'blocks\.1'"):
        tt.cam(Listed(), random(1, 3, 8, 8), layer="blocks")
    assert tt.cam(Listed(), random(1, 3, 8, 8), layer="blocks*").layer == "blocks.0, blocks.1"
    assert tt.cam(Listed(), random(1, 3, 8, 8)).layer == "blocks.1"


def test_maps_of_different_dimensions_are_not_averaged() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.Conv1d(4, 4, 1), Pool((2,)))
    with pytest.raises(tt.InputError, match="maps of different dimensions"):
        tt.cam(model, random(1, 3, 8, 8), layer=["0", "2"], target=1)


@pytest.mark.parametrize(
    ("door", "given", "hint"),
    [
        (tt.cam, "grad-cam", "that is 'gradcam' here"),
        (tt.cam, "GradCAMpp", r"that is 'gradcam\+\+' here"),
        (tt.cam, "ig", "tt.attribute has it, as method='integrated_gradients'"),
        (tt.attribute, "IG", "that is 'integrated_gradients' here"),
        (tt.attribute, "saliency", "that is 'gradient' here"),
        (tt.attribute, "Input X Gradient", "that is 'input_x_gradient' here"),
        (tt.attribute, "grad-cam", "tt.cam has it, as method='gradcam'"),
        (tt.attribute, "oclusion", "did you mean 'occlusion'"),
        (tt.attribute, 3, "method is 3. Expected one of gradient, input_x_gradient"),
    ],
)
def test_a_method_is_found_by_its_names_elsewhere(door: Any, given: Any, hint: str) -> None:
    with pytest.raises(tt.InputError, match=hint):
        door(small(), random(1, 3, 8, 8), method=given)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_other_bad_input_is_refused() -> None:
    model, x = small(), random(1, 3, 8, 8)
    with pytest.raises(tt.InputError, match="class 3, and the model has 3 classes"):
        tt.cam(model, x, target=3)
    with pytest.raises(tt.InputError, match=r"expected a torch\.nn\.Module"):
        tt.cam("model", x)  # type: ignore[arg-type]
    with pytest.raises(tt.InputError, match="No tensor is among the inputs"):
        tt.cam(model)
    with pytest.raises(tt.InputError, match=r"inputs float32\[3, 8, 8\]; expected a batch"):
        tt.cam(nn.Sequential(model[0], model[1], nn.Flatten(0), nn.Linear(144, 3)), x[0])
    with pytest.raises(tt.InputError, match=r"'0' is a ScriptModule, which takes no hooks"):
        tt.cam(nn.Sequential(torch.jit.script(model[0]), model[1:]), x)
    with pytest.raises(tt.InputError, match=r"call is 1\.5"):
        tt.cam(model, x, call=1.5)  # type: ignore[arg-type]
    with pytest.raises(tt.InputError, match="max_evals is 0"):
        tt.cam(model, x, max_evals=0)
    with pytest.raises(tt.InputError, match="grid is 4"):
        tt.cam(model, x, grid=4)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="channels"):  # What PyTorch says of a wrong shape.
        tt.cam(model, random(1, 2, 8, 8))
