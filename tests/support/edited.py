"""The result of an edit for one tensor, without a model, and how it is compared."""

from __future__ import annotations

from typing import Any

import torch
from records import record
from torch import Tensor

from torchtap.core.record import Record
from torchtap.core.site import Site

close = torch.testing.assert_close
INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def at_site(tensor: Tensor, site: str = "m:output", step: int = 0, call: int = 0) -> Record:
    """The record that an edit gets with its tensor."""
    at = Site.parse(site)
    return record(at.path, tensor, port=at.port, leaf=at.leaf, step=step, call=call, backward=-1)


def done(edit: Any, tensor: Tensor, **place: Any) -> Tensor:
    """The result of an edit for a tensor, which stays as it is."""
    before = tensor.clone()
    new = edit(tensor, at_site(tensor, **place))
    assert torch.equal(tensor.isnan(), before.isnan()) and new is not None
    close(tensor, before, rtol=0, atol=0, equal_nan=True)
    assert new.shape == tensor.shape and new.dtype is tensor.dtype
    return new


def exactly(found: Tensor, right: Any) -> None:
    """Every element is equal, and NaN equals NaN; ``right`` is expanded to the shape."""
    right = torch.as_tensor(right, dtype=found.dtype)
    close(found, right.expand(found.shape), rtol=0, atol=0, equal_nan=True)
