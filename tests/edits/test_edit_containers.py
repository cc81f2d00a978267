"""Edits of tensors inside mappings and objects."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

import pytest
import torch
from containers import Box, OfRows
from models import llama
from torch import Tensor

import torchtap as tt
from torchtap.testing import Net


def test_an_edit_that_finds_nothing_but_objects_never_happened() -> None:
    model = Net(lambda net, x: Box(x * 2))
    edit = tt.edit(model, ".", tt.edits.zero())
    model(torch.ones(2))
    with pytest.raises(tt.EditError, match=r"never happened.*an attribute of a Box"):
        edit.close()


def test_a_language_model_that_returns_its_cache_is_edited_and_swept() -> None:
    model, tokens = llama(), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        plain = model(tokens, use_cache=True)
        with tt.edit(model, "model", tt.edits.zero()) as edit:
            edited = model(tokens, use_cache=True)
        assert edited.logits.eq(0).all() and plain.logits.ne(0).any()
        assert "[past_key_values.layers.0.keys]" in str(edit.absent[0].site)
        swept = tt.sweep(model, tokens, "*", tt.edits.zero(), lambda out: out.logits.sum())
    assert len(swept.rows) > 10


def test_a_gradient_in_an_object_is_edited() -> None:
    model = Net(lambda net, x: (x * 1, Box(x * 2)))
    x = torch.ones(2, requires_grad=True)
    with tt.edit(model, ".:grad_output[1.held]", tt.edits.scale(10.0)):
        out, box = model(x)
        (out + box.held).sum().backward()
    assert x.grad.tolist() == [21, 21]


class Kept(MutableMapping[str, Tensor]):
    """A mapping whose copy shares its items."""

    def __init__(self, **items: Tensor) -> None:
        self.items_here = items

    def __getitem__(self, key: str) -> Tensor:
        return self.items_here[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError("tensors only")
        self.items_here[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_here[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_here)

    def __len__(self) -> int:
        return len(self.items_here)


def test_a_mapping_whose_copy_shares_its_items_is_not_written_into() -> None:
    held = Kept(a=torch.ones(2))
    model = Net(lambda m, x: m.give(x), give=Net(lambda m, x: held))
    with tt.edit(model, "give", tt.edits.scale(2.0)):
        for _ in range(2):
            out = model(torch.ones(1))
            assert type(out) is Kept and out["a"].tolist() == [2.0, 2.0]
    assert held["a"].tolist() == [1.0, 1.0]
    take = Net(lambda m, given: given["a"] + 1)
    model = Net(lambda m, given: m.take(given), take=take)
    with tt.edit(model, "take:input", tt.edits.scale(10.0)):
        assert model(held).tolist() == [11.0, 11.0]
    assert held["a"].tolist() == [1.0, 1.0]


def test_a_mapping_that_iterates_over_rows_is_edited_by_its_keys() -> None:
    model = Net(lambda m, x: OfRows(a=x * 2, b=x * 3))
    x = torch.ones(2, requires_grad=True)
    with tt.edit(model, {".:output[b]": tt.edits.scale(10.0), ".:grad_output[a]": tt.edits.zero()}):
        out = model(x)
        (out["a"] + out["b"]).sum().backward()
    assert type(out) is OfRows and list(out.keys()) == ["a", "b"]
    assert (out["a"].tolist(), out["b"].tolist()) == ([2.0, 2.0], [30.0, 30.0])
    assert x.grad.tolist() == [30.0, 30.0]
    assert tt.verify(model, x, loss=lambda out: out["a"].sum() + out["b"].square().sum())
