"""``tt.summary`` tells what a model is made of."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from random_numbers import normal
from torch import Tensor, nn

from torchtap.core.errors import InputError
from torchtap.core.text import breadth
from torchtap.studies.summary import PARAMETER, summary


class Shared(nn.Module):
    """Parameters on the root, a tied weight, a module called twice, a module never called."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.embed = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 8)
        self.alias = self.layer
        self.unused = nn.Linear(8, 2)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = torch.cat([self.cls_token.expand(len(ids), 1, 8), self.embed(ids)], 1)
        return self.head(self.alias(self.layer(hidden)))


class Busy(nn.Module):
    """Draws from every generator and overwrites, replaces and grows its state."""

    count: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("last", torch.zeros(1, 4), persistent=False)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.last = x.detach()
        return self.drop(self.norm(x)) * random.random() + torch.randn(4)


def ids() -> Any:
    return torch.zeros(3, 5, dtype=torch.int64)


def rows_of(found: Any) -> dict[Any, Any]:
    return {row.path: row for row in found.rows}


# ---------------------------------------------------------------------- numbers


def test_parameters_are_counted_once_and_those_on_the_root_are_listed() -> None:
    model = Shared()
    found = summary(model, ids())
    assert found.num_params == sum(p.numel() for p in model.parameters()) == 8 + 80 + 72 + 18
    rows = rows_of(found)
    assert rows[""].num_params == found.num_params
    assert rows["cls_token"].type == PARAMETER
    assert rows["cls_token"].num_params == 8
    assert rows["head"].num_shared == 80
    assert rows["embed"].num_shared == 0
    assert "80*" in str(found)
    assert "counts them once" in str(found)


def test_a_shared_module_is_one_row_with_both_calls() -> None:
    rows = rows_of(summary(Shared(), ids()))
    assert rows["layer"].calls == 2
    assert rows["layer"].aliases == ("alias",)
    assert "alias" not in rows
    assert rows["unused"].calls == 0
    assert rows["unused"].outputs == ()


@pytest.mark.parametrize("depth", [0, 1, 2, None])
def test_depth_never_changes_totals(depth: int | None) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 2))
    found = summary(model, torch.ones(3, 4), depth=depth)
    assert found.num_params == 40 + 18
    assert found.mult_adds == 3 * (4 * 8 + 8 * 2)
    assert found.activation_bytes == 4 * 3 * (8 + 8 + 2)
    shown = {0: 1, 1: 3, 2: 5, None: 5}[depth]
    assert len(found.rows) == shown
    assert found.rows[0].num_params == found.num_params
    assert found.rows[0].mult_adds == found.mult_adds
    assert found.rows[0].activation_bytes == found.activation_bytes


def test_mult_adds_are_those_of_the_formulas() -> None:
    conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    assert summary(conv, torch.ones(2, 3, 8, 8)).mult_adds == 2 * 16 * 8 * 8 * 3 * 3 * 3
    depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
    assert summary(depthwise, torch.ones(1, 16, 8, 8)).mult_adds == 16 * 8 * 8 * 9
    steps, batch = 5, 2
    lstm = nn.LSTM(4, 8)
    assert summary(lstm, torch.ones(steps, batch, 4)).mult_adds == steps * batch * 4 * 8 * (4 + 8)


@pytest.mark.parametrize("training", [True, False])
def test_attention_counts_its_products_and_no_fused_kernel_hides_them(training: bool) -> None:
    width, length, wide = 16, 5, 32
    layer = nn.TransformerEncoderLayer(width, 2, wide, dropout=0.0, batch_first=True)
    found = summary(layer.train(training), torch.ones(1, length, width))
    projections = 4 * length * width * width
    attention = 2 * length * length * width
    feed_forward = 2 * length * width * wide
    assert found.mult_adds == projections + attention + feed_forward
    rows = rows_of(found)
    assert rows["linear1"].calls == 1
    assert rows["linear1"].mult_adds == length * width * wide
    assert rows["self_attn"].mult_adds == projections + attention


def test_mult_adds_of_a_shared_module_are_those_of_all_its_calls() -> None:
    found = summary(Shared(), ids())
    assert rows_of(found)["layer"].mult_adds == 2 * 3 * 6 * 8 * 8
    assert found.mult_adds == 3 * 6 * (2 * 64 + 80)


def test_operations_without_a_formula_are_named() -> None:
    found = summary(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.ones(2, 4))
    assert found.uncounted == {"aten.native_layer_norm": 1}
    assert "aten.native_layer_norm (1)" in str(found)


def test_memory_that_was_returned_before_is_not_counted_again() -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.ReLU(inplace=True), nn.Identity(), nn.Flatten())
    found = summary(model, torch.ones(1, 1, 8))
    assert [row.activation_bytes for row in found.rows] == [64, 64, 0, 0, 0]
    assert found.activation_bytes == 64


def test_shapes_of_nested_and_keyword_values_are_shown() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, *, extra: Tensor) -> Any:
            return {"a": x, "b": (extra, x * 2)}

    found = summary(Two(), torch.ones(2, 3), extra=torch.ones(4))
    assert found.rows[0].inputs == ((2, 3), (4,))
    assert found.rows[0].outputs == ((2, 3), (4,), (2, 3))
    assert "2x3 +1" in str(found)


def test_frozen_parameters_and_buffers_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[0].requires_grad_(False)
    found = summary(model.eval(), torch.ones(2, 4))
    assert (found.num_params, found.num_trainable) == (28, 8)
    assert found.num_buffers == 9
    assert "8 trainable, 20 frozen" in str(found)


# ---------------------------------------------------------------------- leaves no trace


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_afterwards_as_it_was(training: bool) -> None:
    model = Busy().train(training)
    buffers = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in buffers.items()}
    versions = {name: buffer._version for name, buffer in buffers.items()}
    attributes = [set(module.__dict__) for module in model.modules()]
    torch.manual_seed(3)
    random.seed(3)
    state, numbers = torch.get_rng_state(), random.getstate()
    summary(model, normal(6, 4))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == numbers
    assert model.training is training
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
        assert torch.equal(buffer, values[name])
        assert buffer._version == versions[name]
    assert [set(module.__dict__) for module in model.modules()] == attributes
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(param.grad is None for param in model.parameters())


def test_the_model_is_as_it_was_after_a_forward_that_raises() -> None:
    class Breaks(Busy):
        def forward(self, x: Tensor) -> None:  # type: ignore[override]
            super().forward(x)
            raise RuntimeError("mine")

    model = Breaks().train()
    buffer = model.norm.running_mean
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(RuntimeError, match="mine"):
        summary(model, torch.randn(6, 4))
    assert model.norm.running_mean is buffer
    assert torch.equal(buffer, torch.zeros(4))  # type: ignore[arg-type]
    assert not model._forward_hooks
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    assert torch.is_grad_enabled()


def test_the_busy_model_does_change_when_run_plainly() -> None:
    model = Busy().train()
    model(torch.randn(6, 4))
    assert not torch.equal(model.norm.running_mean, torch.zeros(4))  # type: ignore[arg-type]
    assert model.count == 1


# ---------------------------------------------------------------------- refused, and shown


def test_a_lazy_model_is_refused_with_the_module_named() -> None:
    with pytest.raises(InputError, match=r"0 \(LazyLinear\) is lazy"):
        summary(nn.Sequential(nn.LazyLinear(3)), torch.ones(2, 4))


def test_a_negative_depth_is_refused() -> None:
    with pytest.raises(InputError, match="depth is -1"):
        summary(nn.Linear(4, 4), torch.ones(2, 4), depth=-1)


def test_a_summary_fits_into_100_columns() -> None:
    model = nn.Sequential()
    inner = model
    for number in range(12):
        deeper = nn.Sequential(nn.Linear(2000, 2000))
        inner.add_module(f"a_rather_long_name_for_a_block_{number}", deeper)
        inner = deeper
    for line in str(summary(model, torch.ones(2, 2000))).split("\n"):
        assert breadth(line) <= 100
