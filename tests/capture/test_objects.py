"""Tensors inside objects: found where torchtap can name them, absent with a reason elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from absent import reasons_at
from containers import Box
from models import llama
from torch import nn

import torchtap as tt
from torchtap.testing import Net


@pytest.mark.parametrize("make", [transformers.DynamicCache, transformers.StaticCache])
def test_a_cache_is_recorded_as_it_is_at_each_call(make: Any) -> None:
    model = llama()
    cache = (
        make(config=model.config) if make is transformers.DynamicCache else make(model.config, 4)
    )
    truth: dict[Any, Any] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        for number, layer in enumerate(kwargs["past_key_values"].layers):
            if layer.keys is not None:
                leaf = f"past_key_values.layers.{number}.keys"
                truth.setdefault(leaf, []).append(layer.keys.clone())

    last = model.model.layers[1].self_attn
    last.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad(), tt.watch(model, "model.layers.1.self_attn:input") as w:
        for token in (3, 5):
            model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
    assert len(truth) == 2 and not w.absent
    for leaf, values in truth.items():
        found = [r.value for r in w.run.records() if r.site.leaf == leaf]
        assert all(torch.equal(one, two) for one, two in zip(found, values, strict=True))


@pytest.mark.parametrize("port", ["output", "grad_output"])
def test_what_was_not_looked_into_is_absent_beside_a_tensor(port: str) -> None:
    model = Net(lambda net, x: (net.a(x), {net.a(x)}), a=nn.Linear(2, 2))
    with tt.watch(model, f".:{port}") as w, tt.edit(model, f".:{port}", lambda t: t) as e:
        model(torch.ones(1, 2))[0].sum().backward()
    why = "it returned a set, which has no order to name its tensors by: use a tuple"
    assert [str(site) for site in w.run.sites] == [f".:{port}[0]"]
    for absent in (w.absent, e.absent):
        assert [str(entry.site) for entry in absent] == [f".:{port}[1]"]
        assert absent[0].reason.startswith(why)


def test_what_was_not_looked_into_is_absent_where_it_is_taken() -> None:
    model = Net(lambda net, x: net.a(iter([x])), a=Net(lambda net, held: next(held) * 2))
    with tt.watch(model, "a:input,output") as w:
        model(torch.ones(2))
    assert "it took a list_iterator, which can be read only once" in reasons_at(w, "a:input")[0]
    with tt.watch(model, "a:input[other]") as w:
        model(torch.ones(2))
    assert "no tensor that fits" in w.absent[0].reason


def test_a_tensor_of_an_object_is_recorded_and_an_edit_of_it_is_refused_or_reported() -> None:
    model = Net(lambda net, x: (x * 1, Box(x * 2)))
    with tt.watch(model, ".:output,grad_output") as w:
        out, box = model(torch.ones(2, requires_grad=True))
        (out + 3 * box.held).sum().backward()
    assert w.run[".:output[1.held]"].tolist() == [2, 2]
    assert w.run[".:grad_output[1.held]"].tolist() == [3, 3]
    assert not w.absent
    edit = tt.edit(model, ".:output[1.held]", tt.edits.zero(), missing="ignore")
    with pytest.raises(tt.EditError, match=r"\[1.held\] is an attribute in a Box"):
        model(torch.ones(2))
    edit.close()
    with tt.edit(model, ".", tt.edits.zero()) as edit:  # All that can be changed.
        out, box = model(torch.ones(2))
    assert out.tolist() == [0, 0] and box.held.tolist() == [2, 2]
    assert edit.fired == {".:output[0]": 1}
    assert [str(entry.site) for entry in edit.absent] == [".:output[1.held]"]
    assert "an attribute of a Box" in edit.absent[0].reason
