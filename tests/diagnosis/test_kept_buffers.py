"""A guard keeps copies of those buffers of a model that each call writes."""

from __future__ import annotations

import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

from torchtap.diagnosis.origins.kept_buffers import Buffers, KeptBuffers


class _Writes(nn.Module):
    """Has buffers of every kind, and writes into some of them."""

    num_calls: Tensor
    mean: Tensor
    table: Tensor
    narrow: Tensor
    sparse: Tensor
    later: Tensor
    still: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("num_calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("table", torch.zeros(2, 3))
        self.register_buffer("narrow", torch.zeros(4, dtype=torch.float16))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("later", torch.zeros(2))
        self.register_buffer("still", torch.ones(2))
        self.register_buffer("none", None)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        self.mean.lerp_(x.mean(0), 0.5)
        self.table[0] += x[0]
        self.narrow.add_(0.25)
        self.sparse *= 2
        if self.num_calls > 3:
            self.later += 1
        out: Tensor = self.norm(x)
        return out


def _dense(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [None if one is None else one.to_dense().clone() for one in tensors]


def _are_equal(kept: KeptBuffers, before: list[Tensor | None], *, but: int = -1) -> bool:
    pairs = enumerate(zip(_dense(kept.values()), before, strict=True))
    return all(
        one is two or (one is not None and two is not None and torch.equal(one, two))
        for place, (one, two) in pairs
        if place != but
    )


def test_buffers_are_kept_as_they_were_before_each_call() -> None:
    model = seeded(_Writes)
    names = [name for one in model.modules() for name in one._buffers]
    buffers, kept, before = Buffers(list(model.modules())), list[KeptBuffers](), []
    assert [name for _, name in buffers.places] == names
    for call in range(6):
        before.append(_dense([one._buffers[name] for one, name in buffers.places]))
        kept.append(buffers.keep())
        model(normal(5, 3, seed=call))
    later = names.index("later")
    for call, (own, values) in enumerate(zip(kept, before, strict=True)):
        # The call that writes for the first time into what no call wrote into before shows it.
        assert own.were_overwritten == (1 <= call <= 3)
        assert _are_equal(own, values, but=later if 1 <= call <= 3 else -1)
    assert not any(_are_equal(own, before[-1]) for own in kept[:-1])


def test_buffers_that_nothing_writes_into_are_not_copied() -> None:
    model = seeded(_Writes)
    buffers = Buffers(list(model.modules()))
    first = buffers.keep()
    model(normal(5, 3))
    second = buffers.keep()
    still = [name for _, name in buffers.places].index("still")
    assert second.values()[still] is model.still
    assert first.values()[still] is not model.still  # Nobody knew yet.


def test_a_buffer_that_moved_to_another_dtype_keeps_its_own() -> None:
    model = seeded(_Writes)
    buffers = Buffers(list(model.modules()))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model.to(dtype)
        for call in range(3):
            before = _dense([one._buffers[name] for one, name in buffers.places])
            kept = buffers.keep()
            model(normal(5, 3, seed=call).to(dtype))
            # Nobody knows that a new tensor will be written into: then it is said that it was.
            assert kept.were_overwritten == (call == 0 and dtype is torch.float64)
            assert kept.were_overwritten or _are_equal(kept, before)
            dtypes = [None if one is None else one.dtype for one in kept.values()]
            assert dtypes == [None if one is None else one.dtype for one in before]


def test_a_buffer_made_in_inference_mode_is_kept() -> None:
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        model.register_buffer("mask", torch.ones(2))
    buffers = Buffers([model])
    for _ in range(3):
        kept = buffers.keep().values()[0]
        assert kept is not None
        assert torch.equal(kept, torch.ones(2))
