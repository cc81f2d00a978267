"""Attention weights: those that models give, and those that are computed again from q and k."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from drawn import is_whole, words_of
from torch import Tensor, nn
from torch.nn import functional as F

import torchtap as tt
from torchtap.plot.attention_calls import GIVEN, RECOMPUTED, see_attention


def by_hand(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """``softmax(q k^T / sqrt(d))`` in float64; ``mask`` is added."""
    scores = q.double() @ k.double().transpose(-2, -1) / math.sqrt(q.shape[-1])
    return (scores if mask is None else scores + mask.double()).softmax(-1)


def causal(num: int) -> Tensor:
    return torch.full((num, num), -math.inf).triu(1)


class Own(nn.Module):
    """Attention by F.scaled_dot_product_attention, or written out."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv, self.dropout = how, nn.Linear(8, 24), nn.Dropout(0.5)

    def split(self, x: Tensor) -> list[Tensor]:
        return [one.unflatten(-1, (2, 4)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1)]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        if self.how == "fused":
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5 * self.training)
        if self.how == "causal":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if self.how == "masked":
            return F.scaled_dot_product_attention(q, k, v, causal(x.shape[1]) == 0)
        if self.how == "bmm":
            q, k, v = (one.flatten(0, 1) for one in (q, k, v))
            weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 2, dim=-1)
            return torch.bmm(self.dropout(weights), v)
        weights = ((q @ k.transpose(-2, -1)) / 2).softmax(-1)
        if self.how == "einsum":
            return torch.einsum("bhij,bhjd->bhid", self.dropout(weights), v)
        return self.dropout(weights).to(v.dtype) @ v


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("how", ["fused", "causal", "masked", "bmm", "einsum", "product"])
def test_weights_are_the_softmax_of_q_and_k(how: str, is_training: bool) -> None:
    torch.manual_seed(0)
    model, x = Own(how).train(is_training), torch.randn(3, 5, 8)
    q, k, _ = model.split(x)
    expected = by_hand(q, k, causal(5) if how in ("causal", "masked") else None)
    (found,) = see_attention(model, (x,), {})
    assert found.weights is not None
    torch.testing.assert_close(found.weights.double(), expected, rtol=1e-5, atol=1e-6)
    assert found.how == (RECOMPUTED if how in ("fused", "causal", "masked") else GIVEN)


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multi_head_attention_gives_weights_of_each_head(needs: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=batch_first).eval()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, x: Tensor) -> Any:
            return self.attention(x, x, x, need_weights=needs)[0]

    x = torch.randn(3, 5, 8)
    batch = x if batch_first else x.transpose(0, 1)
    q, k, _ = F.linear(batch, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    q, k = (one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (q, k))
    (found,) = see_attention(Net(), (x,), {})
    assert (found.path, found.how) == ("attention", RECOMPUTED)
    assert found.weights is not None
    torch.testing.assert_close(found.weights.double(), by_hand(q, k), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "kind", ["llama", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gpt2", "vit"))]
)
def test_transformers_give_the_same_fused_and_written_out(kind: str) -> None:
    t: Any = pytest.importorskip("transformers")
    small: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    more: dict[str, Any]
    tokens = torch.randint(3, 30, (2, 6), generator=torch.Generator().manual_seed(0))
    found: dict[str, Tensor] = {}
    for how in ("sdpa", "eager"):
        torch.manual_seed(0)
        if kind == "gpt2":
            ids = {"bos_token_id": 1, "eos_token_id": 2}
            size = {"n_embd": 16, "n_layer": 2, "n_head": 4, "vocab_size": 30}
            model = t.GPT2Model(t.GPT2Config(**size, **ids, attn_implementation=how))
        elif kind == "llama":
            more = {"num_key_value_heads": 2, "vocab_size": 30, "intermediate_size": 32}
            model = t.LlamaModel(t.LlamaConfig(**small, **more, attn_implementation=how))
        else:
            more = {"image_size": 8, "patch_size": 4, "intermediate_size": 32}
            model = t.ViTModel(t.ViTConfig(**small, **more, attn_implementation=how))
            tokens = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        model.eval()
        seen = see_attention(model, (tokens,), {})
        assert len(seen) == 2
        found[how] = torch.stack([one.weights.double() for one in seen if one.weights is not None])
        if how == "eager":
            given = model(tokens, output_attentions=True).attentions
            torch.testing.assert_close(found[how], torch.stack(given).double())
    torch.testing.assert_close(found["sdpa"], found["eager"], rtol=1e-5, atol=1e-6)


def test_heads_of_keys_serve_several_queries() -> None:
    class Grouped(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.1)

    q, k = torch.randn(1, 6, 3, 4), torch.randn(1, 2, 5, 4)
    (found,) = see_attention(Grouped(), (q, k), {})
    expected = (q.double() @ k.double()[:, [0, 0, 0, 1, 1, 1]].mT * 0.1).softmax(-1)
    assert found.weights is not None
    torch.testing.assert_close(found.weights, expected)


def test_looking_changes_nothing_in_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(5), nn.TransformerEncoderLayer(8, 2, batch_first=True))
    x, before = torch.randn(3, 5, 8), torch.get_rng_state()
    buffers = [one.clone() for one in model.buffers()]
    tt.plot.attention(model, x)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, buffers, model.buffers()))
    assert model.training
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_each_head_or_each_layer_has_a_panel_of_its_weights() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3).eval()
    x = torch.randn(2, 5, 8)
    seen = see_attention(model, (x,), {})
    whole = tt.plot.attention(model, x)
    titles = [axes.get_title(loc="left") for axes in whole.axes[:3]]
    assert titles == [f"layers.{place}.self_attn" for place in range(3)]
    heads = tt.plot.attention(model, x, layer="layers.1")
    assert [axes.get_title(loc="left") for axes in heads.axes[:2]] == ["head 0", "head 1"]
    assert seen[1].weights is not None
    first = seen[1].weights[0, 0].numpy()
    assert f"range {first.min():.4g} to {first.max():.4g}" in words_of(heads)
    pixels = np.asarray(heads.axes[0].images[0].get_array())
    assert pixels.shape == (5, 5, 4)
    brightest = pixels[..., 1].argmax()
    assert first.argmax() == brightest  # Viridis has more green the larger the value.
    assert is_whole(heads)
    assert "mean of 2 heads" in words_of(whole)


def test_what_cannot_be_seen_has_a_panel_with_the_reason() -> None:
    class LinearAttention(nn.Linear):
        """An attention without weights."""

    figure = tt.plot.attention(nn.Sequential(LinearAttention(4, 4), nn.ReLU()), torch.ones(1, 4))
    said = words_of(figure).replace("\n", " ")
    assert "not available: no scaled_dot_product_attention ran in it" in said
    compiled: Any = torch.compile(nn.MultiheadAttention(4, 1), backend="eager")
    x = torch.randn(3, 1, 4)
    for one in see_attention(compiled, (x, x, x), {}):
        assert one.weights is not None or "compiled" in one.how


def test_a_model_without_attention_and_a_wrong_layer_are_refused() -> None:
    with pytest.raises(tt.InputError, match="No attention was seen in Linear"):
        tt.plot.attention(nn.Linear(2, 2), torch.ones(1, 2))
    layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with pytest.raises(tt.SiteError, match="did you mean 'self_attn'"):
        tt.plot.attention(layer, torch.randn(1, 3, 8), layer="self_atn")
