"""Backward gets the right tensor while it is on its way."""

from __future__ import annotations

import pytest
import torch

import torchtap as tt
from torchtap.saved.copy_streams import use_streams
from torchtap.testing import FakeStreams


def test_what_was_handed_out_while_it_left_stays_whole() -> None:
    x = torch.randn(1000, requires_grad=True)
    with use_streams(FakeStreams(delay=1000)), tt.offload("cpu", min_bytes=0) as off:
        y = x.exp()
    held = y.grad_fn._saved_result
    off.flush()
    assert off.report().moved_nbytes == {"cpu": 4000}
    assert torch.equal(held, x.detach().exp())


@pytest.mark.parametrize("numel", [1000, 100_000])
def test_many_that_leave_and_come_back_at_once_are_right(numel: int) -> None:
    x = torch.randn(numel, requires_grad=True)
    (truth,) = torch.autograd.grad(x.exp().sum(), x)
    with tt.offload("disk", min_bytes=0) as off:
        for _ in range(5):
            outs = [x.exp() for _ in range(40)]
            for out in reversed(outs):
                (grad,) = torch.autograd.grad(out.sum(), x)
                assert torch.equal(grad, truth)
    # But what the latest operation saved: it stays until another one saves, or the block ends.
    assert off.report().moved_nbytes["disk"] == 5 * 39 * numel * 4


def test_what_is_dying_is_not_found_any_more() -> None:
    """A weak reference to something with a finaliser brings it back while that runs."""
    x = torch.randn(1000, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        y = x.exp()
    (reference,) = off._engine._known.values()
    assert reference() is not None
    found = []
    tier = off._engine.chain.tiers[0]
    tier.drop = lambda handle: found.append(reference())  # type: ignore[method-assign]
    del y
    assert found == [None]


def test_small_ones_are_written_at_once_and_large_ones_beside() -> None:
    x = torch.randn(1000, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        outs = [x.exp() for _ in range(10)]
        assert off.report().moved_nbytes == {"disk": 9 * 4000}
    assert off.report().moved_nbytes == {"disk": 10 * 4000}  # Without a flush.
    del outs
