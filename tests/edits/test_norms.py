"""``tt.edits.clip_norm`` of one tensor against its formula."""

from __future__ import annotations

import pytest
import torch
from edited import FLOATS, INF, NAN, close, done, exactly
from random_numbers import normal

import torchtap as tt
from torchtap import edits


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0, INF])
def test_clip_norm_scales_to_the_norm(p: float, dtype: torch.dtype) -> None:
    tensor = normal(8, 8).to(dtype)
    norm = torch.linalg.vector_norm(tensor.double(), p)
    clipped = done(edits.clip_norm(1.0, p=p), tensor)
    close(clipped, (tensor.double() / (norm + 1e-6)).to(dtype), rtol=2e-2, atol=1e-3)
    exactly(done(edits.clip_norm(1e4, p=p), tensor), tensor)


def test_clip_norm_of_what_overflows_in_half_precision() -> None:
    tensor = torch.full((1000,), 300.0, dtype=torch.float16)
    clipped = done(edits.clip_norm(1.0), tensor)
    assert clipped.double().norm().item() == pytest.approx(1.0, rel=1e-2)


def test_clip_norm_of_zeros_nan_and_nothing() -> None:
    exactly(done(edits.clip_norm(1.0), torch.zeros(3)), 0.0)
    assert done(edits.clip_norm(1.0), torch.tensor([NAN, 1.0])).isnan().all()
    assert done(edits.clip_norm(1.0), torch.ones(0)).shape == (0,)
    with pytest.raises(tt.InputError, match="max_norm"):
        edits.clip_norm(-1.0)
