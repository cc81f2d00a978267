"""Edits of every kind of tensor: fake, nested, sparse, complex."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net


def test_a_fake_or_meta_tensor_is_edited_like_any_other() -> None:
    from torch._subclasses import FakeTensorMode

    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(2, 3))
    with tt.edit(model, "0", tt.edits.scale(2.0)) as e:
        assert model(torch.ones(1, 2, device="meta")).shape == (1, 3)
    assert e.fired == {"0:output": 1}
    with FakeTensorMode():
        model = nn.Sequential(nn.Linear(2, 3))
        with tt.edit(model, "0", tt.edits.zero()) as e:
            assert model(torch.ones(1, 2)).shape == (1, 3)
    assert e.fired == {"0:output": 1}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_the_encoder_are_edited() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True

    def double(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out * 2

    with torch.no_grad():
        handle = model.layers[0].register_forward_hook(double)
        right = model(x, src_key_padding_mask=padding)
        handle.remove()
        with tt.edit(model, "layers.0", tt.edits.scale(2.0)):
            assert torch.equal(model(x, src_key_padding_mask=padding), right)
        with tt.edit(model, "layers.1", tt.edits.zero()):
            assert not model(x, src_key_padding_mask=padding).any()
        with (
            pytest.raises(tt.EditError, match=r"float32\[2\] where nested float32 of 2 parts"),
            tt.edit(model, "layers.0", lambda tensor: torch.ones(2)),
        ):
            model(x, src_key_padding_mask=padding)


@pytest.mark.parametrize(
    "fn", [tt.edits.zero(), lambda gradient: gradient * 0], ids=["ready", "own"]
)
def test_a_sparse_gradient_is_zeroed(fn: Any) -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with tt.edit(model, ".:param_grad", fn):
        model(torch.tensor([1, 3])).sum().backward()
    assert model.weight.grad.is_sparse and not model.weight.grad.to_dense().any()


def test_noise_and_means_of_complex_tensors_have_both_parts() -> None:
    values = 1j * normal(200, 3)
    model = nn.Sequential(nn.Identity())
    with tt.edit(model, "0", tt.edits.noise(0.5, relative=True)):
        added = model(values) - values
    # Its mean square is the square of half the deviation.
    expected = 0.25 * values.imag.var().item()
    assert added.abs().square().mean().item() == pytest.approx(expected, rel=0.1)
    assert added.real.std() > 0 and added.imag.std() > 0
    with tt.watch(model, "0") as w:
        model(values)
    with tt.edit(model, "0", tt.edits.mean_ablate(w.run)):
        torch.testing.assert_close(model(values)[7], values.mean(0))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
def test_why_the_gradient_of_a_sparse_argument_cannot_be_changed_is_reported(kind: str) -> None:
    model = Net(lambda m, x: x.to_dense() * 2)
    x = getattr(torch.eye(2), kind)().requires_grad_()
    edit = tt.edit(model, ".:grad_input", lambda g: g * 2)
    model(x).sum().backward()
    with pytest.raises(tt.EditError, match="PyTorch has no views of sparse"):
        edit.close()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_half_complex_tensors_can_be_edited() -> None:
    model = Net(lambda m, x: x.chalf())
    with tt.edit(model, "*:output", lambda t: None):
        assert model(torch.ones(2)).tolist() == [1, 1]
