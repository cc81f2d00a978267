"""``tt.edit_tensor``: an edit of the gradient of one tensor."""

from __future__ import annotations

import pytest
import torch

import torchtap as tt


def test_an_edit_of_one_tensor_that_never_happens_is_an_error() -> None:
    x = torch.ones(2, requires_grad=True)
    with (
        pytest.raises(tt.EditError, match=r"'x' never happened.*no backward was run"),
        tt.edit_tensor(x, tt.edits.zero(), name="x"),
    ):
        x * 2
    with tt.edit_tensor(x, tt.edits.zero(), missing="ignore") as e:
        pass
    assert e.fired == 0
    with pytest.raises(tt.EditError, match=r"closed; call tt.edit_tensor again"), e:
        pass


def test_the_gradient_of_one_tensor() -> None:
    x = torch.ones(3, requires_grad=True)
    hidden = x * 2
    with tt.edit_tensor(hidden, tt.edits.scale(5.0), name="hidden") as edit:
        (hidden * hidden).sum().backward()
    assert x.grad.tolist() == [40.0] * 3 and edit.fired == 1
    edit.close()
    with pytest.raises(tt.EditError, match="does not require grad"):
        tt.edit_tensor(torch.ones(1), tt.edits.zero())
