"""Tensors of every kind are compared to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchtap as tt
from torchtap.core.equality import kind, mismatch, num_differing, same
from torchtap.testing import Net


def plain(change: float) -> Tensor:
    return torch.tensor([[1.0, 2.0, 0.0], [4.0, 5.0, 6.0 + change]])


def nested(change: float, layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([plain(0.0), plain(change)[1:]], layout=layout)


class Subclass(Tensor):
    """Nothing but a name."""


KINDS: dict[str, Callable[[float], Tensor]] = {
    "float32": plain,
    "float64": lambda change: plain(change).double(),
    "bfloat16": lambda change: plain(change).bfloat16(),
    "float8_e4m3fn": lambda change: plain(change).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda change: plain(change).to(torch.float8_e5m2),
    "float8_e8m0fnu": lambda change: plain(4 * change).to(torch.float8_e8m0fnu),
    "complex64": lambda change: torch.complex(plain(0.0), plain(change)),
    "complex128": lambda change: torch.complex(plain(0.0), plain(change)).to(torch.complex128),
    "conjugated": lambda change: torch.complex(plain(0.0), plain(change)).conj(),
    "negated": lambda change: torch.complex(plain(0.0), plain(change)).conj().imag,
    "int64": lambda change: plain(change).long(),
    "uint8": lambda change: plain(change).to(torch.uint8),
    "bool": lambda change: plain(change) > 6,
    "transposed": lambda change: plain(change).t(),
    "one number": lambda change: torch.tensor(1.0 + change),
    "coo": lambda change: plain(change).to_sparse(),
    "csr": lambda change: plain(change).to_sparse_csr(),
    "csc": lambda change: plain(change).to_sparse_csc(),
    "bsr": lambda change: plain(change).to_sparse_bsr((1, 1)),
    "bsc": lambda change: plain(change).to_sparse_bsc((1, 1)),
    "nested": lambda change: nested(change, torch.strided),
    "jagged": lambda change: nested(change, torch.jagged),
    "qint8": lambda change: torch.quantize_per_tensor(plain(change), 1.0, 0, torch.qint8),
    "quint8 by channel": lambda change: torch.quantize_per_channel(
        plain(change), torch.ones(2, dtype=torch.double), torch.zeros(2).long(), 0, torch.quint8
    ),
    "subclass": lambda change: plain(change).as_subclass(Subclass),
    "mkldnn": lambda change: plain(change).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC)")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("name", KINDS)
def test_one_element_is_found_in_a_tensor_of_any_kind(name: str) -> None:
    one, two, other = KINDS[name](0.0), KINDS[name](0.0), KINDS[name](2.0)
    assert same(one, two) and mismatch(one, two, exact=True) is None
    assert not same(one, other)
    assert num_differing(one, other) == 1
    what = mismatch(one, other, exact=True)
    assert what is not None and what.startswith("1 of ")


def test_what_is_the_same_is_bit_equal() -> None:
    zero = torch.zeros(3)
    assert not same(zero, -zero)
    assert same(torch.full((3,), float("nan")), torch.full((3,), float("nan")))
    assert not same(zero, torch.full((3,), float("nan")))
    assert not same(zero, zero.double()) and not same(zero, zero[None])
    assert not same(zero, None) and same(None, None)
    assert same(torch.empty(0), torch.empty(0))
    nan = torch.tensor([complex(float("nan"), 1), 1])
    assert same(nan, nan.clone()) and not same(nan, nan.conj())


def test_a_sparse_tensor_is_the_same_however_its_places_are_listed() -> None:
    twice = torch.sparse_coo_tensor([[1, 0, 1]], [1.0, 2.0, 3.0], (3,), check_invariants=True)  # type: ignore[arg-type]
    assert same(twice, torch.tensor([2.0, 4.0, 0.0]).to_sparse())
    assert not same(twice, torch.tensor([2.0, 0.0, 4.0]).to_sparse())
    assert mismatch(twice, torch.tensor([2.0, 0.0, 4.0]).to_sparse(), exact=False) is not None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_kind_is_reported_of_tensors_without_a_shape() -> None:
    assert kind(nested(0.0, torch.jagged)) == "nested float32[[2, 3], [1, 3]]"
    assert kind(plain(0.0).to_sparse()) == "sparse_coo float32[2, 3]"
    assert kind(plain(0.0)) == "float32[2, 3]"


# --- in verify --------------------------------------------------------------------------------


def ragged(layout: torch.layout) -> Tensor:
    rows = [torch.arange(4.0 * num).view(num, 4).cos() for num in (2, 5, 3)]
    return torch.nested.nested_tensor(rows, layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
@pytest.mark.parametrize("has_loss", [False, True])
def test_verify_holds_for_nested_tensors(layout: torch.layout, has_loss: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    loss = (lambda out: sum(one.square().mean() for one in out.unbind())) if has_loss else None
    result = tt.verify(model, ragged(layout), loss=loss)
    assert result, repr(result)
    # Three modules with an input and an output each, and gradients of all but what is given.
    assert (result.num_values, result.num_gradients) == (2 * 6, 2 * 4)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("name", ["coo", "csr", "qint8", "float8_e4m3fn", "complex64", "subclass"])
def test_verify_holds_for_other_tensors(name: str) -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        m.inner(KINDS[name](0.0))
        return m.a(x)

    model = Net(forward, a=torch.nn.Linear(3, 3), inner=torch.nn.Identity())
    result = tt.verify(model, plain(0.0), where=["*:*", "*:param_grad"])
    assert result, repr(result)
    # The root, ``a`` and ``inner`` take and return a tensor; ``a`` has two parameters.
    assert result.num_values == 2 * (6 + 2)


def test_what_has_no_memory_is_not_reported_as_proved() -> None:
    with torch.device("meta"):
        result = tt.verify(torch.nn.Linear(4, 4), torch.ones(2, 4))
    assert not result and result.hollow
    assert (result.num_values, result.num_gradients) == (0, 0)
    assert {entry.reason for entry in result.unverified} == {
        "it has no memory to compare, only a shape"
    }
