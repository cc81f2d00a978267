"""How values are kept: of every kind of tensor, and as they were when they flowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bits import same
from models import relu_mlp, rows, scales, two_scales
from torch import Tensor

import torchtap as tt
from torchtap.testing import Net


class Tagged(Tensor):
    """A tensor subclass that does nothing."""


def test_a_tensor_subclass_is_kept() -> None:
    model, x = relu_mlp(), rows().as_subclass(Tagged)
    with tt.watch(model, "*:input,output") as w:
        out = model(x)
    assert type(out) is Tagged
    assert torch.equal(w.run[".:input"].as_subclass(Tensor), rows())
    assert torch.equal(w.run["2:output"].as_subclass(Tensor), out.as_subclass(Tensor))


def test_complex_tensors_flow_both_ways() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    model = Net(lambda m, x: x * 2j)
    with tt.watch(model, ".:*") as w:
        (model(x).abs() ** 2).sum().backward()
    assert w.run[".:output"].tolist() == [-4 + 2j, 2 + 6j]
    # PyTorch's convention: the gradient of |z|^2 is 2z.
    torch.testing.assert_close(w.run[".:grad_output"], 2 * x.detach() * 2j)
    torch.testing.assert_close(w.run[".:grad_input"], 8 * x.detach())


def test_sparse_tensors_are_kept() -> None:
    dense = torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    model = Net(lambda m, x: x * 3)
    with tt.watch(model, ".:input,output") as w:
        model(dense.to_sparse())
    assert w.run[".:output"].layout == torch.sparse_coo
    assert torch.equal(w.run[".:output"].to_dense(), 3 * dense)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_and_wide_tensors_are_kept_bit_for_bit(dtype: torch.dtype) -> None:
    model, x = Net(lambda m, x: x * 3), rows().to(dtype).requires_grad_()
    with tt.watch(model, ".:*") as w:
        model(x).sum().backward()
    assert same(w.run[".:output"], x.detach() * 3)
    assert same(w.run[".:grad_input"], x.grad)


def test_integers_and_booleans_are_kept() -> None:
    model = Net(lambda m, x: (x.argmax(), x > 0))
    with tt.watch(model) as w:
        index, mask = model(rows())
    assert same(w.run[".:output[0]"], index)
    assert same(w.run[".:output[1]"], mask)


def test_an_empty_batch_is_kept() -> None:
    model, x = relu_mlp(), torch.empty(0, 3, requires_grad=True)
    with tt.watch(model, "*:*") as w:
        model(x).sum().backward()
    assert w.run["0:output"].shape == (0, 4)
    assert w.run["0:grad_input"].shape == (0, 3)


def test_an_expanded_gradient_is_kept_whole() -> None:
    model, x = Net(lambda m, x: x * 3), torch.ones(2, 3, requires_grad=True)
    with tt.watch(model, ".:grad_output") as w:
        model(x).sum().backward()
    assert w.run[".:grad_output"].tolist() == [[1.0] * 3] * 2


def test_autocast_values_are_bit_equal() -> None:
    model, x = relu_mlp(), rows()
    with torch.autocast("cpu", torch.bfloat16):
        first = model[0](x)
        plain = model(x)
        with tt.watch(model, "*:output") as w:
            watched = model(x)
    assert same(plain, watched)
    assert same(w.run["0:output"], first)
    assert w.run["2:output"].dtype == torch.bfloat16


def overwrites() -> Net:
    def forward(m: Any, x: Tensor) -> Tensor:
        y = m.inner(x)
        y += 100
        return y

    return Net(forward, inner=scales(2.0))


@pytest.mark.parametrize("copy", ["auto", "always"])
def test_what_is_overwritten_is_kept_as_it_was(copy: Any) -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy=copy) as w:
        for _ in range(3):
            model(torch.ones(2))
            w.step()
    assert [record.value.tolist() for record in w.run.records()] == [[2.0, 2.0]] * 3
    assert w.absent == []


def test_without_copies_an_overwritten_value_is_never_handed_out() -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy="never") as w:
        model(torch.ones(2))
    (record,) = w.run.records()
    assert record.overwritten
    with pytest.raises(tt.OverwrittenError, match=r"inner:output \(step 0, call 0\).*copy='always"):
        w.run["inner:output"]


def test_without_copies_an_overwritten_value_is_listed_as_absent() -> None:
    model = overwrites()
    with tt.watch(model, "inner", copy="never") as w:
        model(torch.ones(2))
    assert [str(entry.site) for entry in w.absent] == ["inner:output"]
    assert "overwritten" in w.absent[0].reason


def test_without_copies_an_untouched_value_is_right_and_shares_memory() -> None:
    model = two_scales()
    with tt.watch(model, ".", copy="never") as w:
        out = model(torch.ones(2))
    assert w.run[".:output"].data_ptr() == out.data_ptr()
    assert w.absent == []


def test_always_copying_shares_no_memory() -> None:
    model = two_scales()
    with tt.watch(model, ".", copy="always") as w:
        out = model(torch.ones(2))
    assert w.run[".:output"].data_ptr() != out.data_ptr()


def test_auto_stops_copying_where_no_write_was_seen() -> None:
    model = two_scales()
    with tt.watch(model, ".") as w:
        outputs = []
        for _ in range(2):
            outputs.append(model(torch.ones(2)))
            w.step()
    shares = [
        record.value.data_ptr() == out.data_ptr()
        for record, out in zip(w.run.records(), outputs, strict=True)
    ]
    assert shares == [False, True]


def test_a_writer_who_comes_late_is_noticed_and_copied_for_from_then_on() -> None:
    model = two_scales()
    with tt.watch(model, ".") as w:
        for step in range(5):
            out = model(torch.ones(2))
            if step >= 2:
                out += 100
            w.step()
    assert [record.overwritten for record in w.run.records()] == [False, False, True, False, False]
    kept = [record.value.tolist() for record in w.run.records() if not record.overwritten]
    assert kept == [[6.0, 6.0]] * 4
    assert len(w.absent) == 1
