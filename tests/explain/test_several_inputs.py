"""A map lies over the one of several inputs that the layer depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

TOKENS = 17  # As many as 4 x 4 patches and a class token.


class TextAndPicture(nn.Module):
    """Two towers, as CLIP has them, and one layer that reads both."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.text = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.vision = nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True)
        self.both = nn.MultiheadAttention(8, 2, batch_first=True)
        self.cls = nn.Parameter(torch.randn(1, 1, 8))
        self.head = nn.Linear(8, 3)

    def forward(
        self, input_ids: Tensor, pixel_values: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        words = self.text(self.embed(input_ids))
        if attention_mask is not None:
            words = words * attention_mask[..., None]
        patches = self.patches(pixel_values).flatten(2).mT
        seen = self.vision(torch.cat([self.cls.expand(len(patches), -1, -1), patches], 1))
        read, _ = self.both(words, seen, seen)
        logits: Tensor = self.head(read.mean(1) + seen[:, 0] + words.mean(1))
        return logits


def given(order: str, num: int = TOKENS) -> dict[str, Any]:
    torch.manual_seed(1)
    every = {
        "input_ids": torch.randint(9, (2, num)),
        "pixel_values": torch.randn(2, 3, 32, 32),
        "attention_mask": torch.ones(2, num, dtype=torch.long),
    }
    return {name: every[name] for name in order.split()}


ORDERS = (
    "input_ids pixel_values",
    "pixel_values input_ids",
    "attention_mask input_ids pixel_values",
    "pixel_values attention_mask input_ids",
)


@pytest.mark.parametrize("num", [5, 6, TOKENS])
@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_the_keywords_decides_nothing(order: str, num: int) -> None:
    torch.manual_seed(0)
    model = TextAndPicture().eval()
    for layer, size, name in (
        ("patches", (32, 32), "pixel_values"),
        ("vision", (32, 32), "pixel_values"),
        ("text", (num,), "input_ids"),
    ):
        found = tt.cam(model, layer=layer, target=1, relu=False, **given(order, num))
        assert found.values.shape[1:] == ((4, 4) if len(size) == 2 else (num,))
        assert (found.size, found.resize().values.shape[1:]) == (size, size)
        assert found.again is not None
        assert found.again.over == name
        assert not any("over=" in note for note in found.notes)


def test_what_lies_over_two_inputs_alike_is_asked_for() -> None:
    torch.manual_seed(0)
    model = TextAndPicture().eval()
    inputs = given("pixel_values input_ids")
    with pytest.raises(tt.InputError, match=r"over='pixel_values'"):
        tt.cam(model, layer="both:output[0]", target=1, **inputs)
    found = tt.cam(model, layer="both:output[0]", target=1, over="input_ids", **inputs)
    assert (found.values.shape, found.size) == ((2, TOKENS), (TOKENS,))
    with pytest.raises(tt.InputError, match="expected the name of an input with places"):
        tt.cam(model, layer="both", target=1, over="ids", **inputs)


class Pair(nn.Module):
    """One picture against another, by the same layers or by both at once."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 4, 4)
        self.mixed = nn.Conv2d(8, 4, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        one, two = self.conv(first), self.conv(second)
        return (one * two).sum((2, 3)) + self.mixed(torch.cat([one, two], 1)).mean((2, 3))


@pytest.mark.parametrize(("call", "over"), [(0, "0"), (1, "1")])
def test_of_two_pictures_it_is_the_one_of_the_call(call: int, over: str) -> None:
    torch.manual_seed(0)
    model, pair = Pair().eval(), (torch.randn(1, 3, 16, 16), torch.randn(1, 3, 16, 16))
    found = tt.cam(model, *pair, layer="conv", call=call, target=1)
    assert found.again is not None
    assert (found.again.over, found.size) == (over, (16, 16))
    masked = tt.cam(model, *pair, layer="conv", call=call, target=1, method="scorecam", relu=False)
    assert masked.again is not None
    assert masked.again.over == over
    both = tt.cam(model, *pair, layer="mixed", target=1)
    assert any("over= takes another ('1')" in note for note in both.notes)


def test_a_map_lies_over_no_input_of_other_dimensions() -> None:
    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv1d(1, 8, 8, 8)
            self.conv = nn.Conv2d(1, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(self.front(x)[:, None]).mean((2, 3))
            return out

    sound = torch.randn(2, 1, 64)
    found = tt.cam(Sound(), sound, layer="conv", target=1)
    assert (found.values.shape, found.size) == ((2, 6, 6), ())
    assert tt.cam(Sound(), sound, layer="front", target=1).size == (64,)
