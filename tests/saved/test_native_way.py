"""Saved tensors take the native way and Python's to the same bytes, counts and errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.saved.copy_streams import use_streams
from torchtap.saved.native_saved import kernel
from torchtap.saved.prefetch import Prefetch
from torchtap.testing import FakeStreams

needs_native = pytest.mark.skipif(kernel() is None, reason="nothing is compiled here")


@pytest.fixture(params=["1", "0"], ids=["native", "python"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TORCHTAP_NATIVE", request.param)
    if (kernel() is None) == (request.param == "1"):
        pytest.skip("nothing is compiled here")
    yield request.param


class Attention(nn.Module):
    """Views, transposes, slices, a mask, one tensor saved twice, and an in-place operation."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(x).view(4, 8, 3, 32).unbind(2)
        weights = (query @ key.transpose(1, 2)).masked_fill(torch.eye(8) == 1, -1.0).softmax(-1)
        mixed: Tensor = self.norm(self.out((weights @ value).relu()).flatten(0, 1)).relu_()
        return mixed * mixed.sigmoid()


def run(to: Any, **options: Any) -> tuple[list[Tensor], Any]:
    """Three steps; returns gradients and the report, without what is timed."""
    torch.manual_seed(0)
    model, x = Attention(), torch.randn(4, 8, 32, requires_grad=True)
    gradients = []
    with use_streams(FakeStreams(delay=0)):
        off = tt.offload(to, model=model, min_bytes=0, **options)
    for step in range(3):
        out = model(x).square().sum()
        if step:
            (first,) = torch.autograd.grad(out, x, create_graph=True)
            first.square().sum().backward()
        else:
            out.backward()
        gradients += [one.grad.clone() for one in (*model.parameters(), x) if one.grad is not None]
    off.close()
    report = off.report()
    return gradients, replace(report, blocked_seconds=0.0, step_seconds=0.0)


@needs_native
@pytest.mark.parametrize(
    ("to", "options"),
    [
        ("disk", {}),
        ("disk", {"max_bytes": 1 << 14}),
        ("disk", {"keep_last": 1 << 20}),
        ("cpu", {}),
        ("cpu", {"max_bytes": 1 << 13, "on_full": "keep"}),
        ([("disk", 1 << 14), "cpu"], {}),
        (tt.codecs.bf16(), {}),
    ],
    ids=("disk", "disk-budget", "disk-kept", "cpu", "cpu-budget", "disk-then-cpu", "bf16"),
)
def test_both_ways_give_the_same_gradients_and_counts(
    to: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for native in ("0", "1"):
        monkeypatch.setenv("TORCHTAP_NATIVE", native)
        found.append(run(to, **options))
    (by_python, counts), (natively, same_counts) = found
    assert all(map(torch.equal, by_python, natively)) and len(natively) == len(by_python)
    assert same_counts == counts and counts.packed_nbytes > 0


@needs_native
def test_a_plain_tensor_takes_the_native_way_and_others_do_not() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with tt.offload("disk", min_bytes=1000) as off:
        outs = [x.exp() for _ in range(4)]
        way = off._engine._hot
        assert way.pack(x.exp()) is not NotImplemented
        others = (x.exp().t(), x.exp()[:, ::2], x.exp()[:2], nn.Parameter(x.exp()), x.int())
        assert [way.pack(one) for one in others] == [NotImplemented] * len(others)
        assert way.pack(x.detach()[0]) is NotImplemented  # It is smaller than is asked for.
    packed = off._engine.pack(x.exp())
    assert torch.equal(off._engine.unpack(packed), x.exp())
    del outs


def test_a_version_that_was_raised_is_autograds_error(native: str) -> None:
    x = torch.randn(1000, requires_grad=True)
    for number in range(3):
        with tt.offload("disk", min_bytes=0), torch.enable_grad():
            outs = [x.exp() for _ in range(4)]
        with torch.no_grad():
            outs[number].zero_()
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
            torch.autograd.backward([one.sum() for one in outs])


def test_a_full_disk_keeps_tensors_and_says_so(native: str) -> None:
    x = torch.randn(1000, requires_grad=True)
    off = tt.offload("disk", min_bytes=0)
    with off:
        torch.autograd.backward([x.exp().sum() for _ in range(8)])  # Its extents are cut.
    tier = off._engine.chain.tiers[0]
    file = tier._file  # type: ignore[attr-defined]
    full, rest = os.open("/dev/full", os.O_RDWR), file._file
    os.dup2(full, rest)  # Each write answers that no space is left.
    os.close(full)
    for layout, plan in off._engine.chain.plans.items():
        assert native == "0" or plan[4] == rest, layout
    x.grad = None
    with off:
        loss = torch.stack([x.exp() for _ in range(8)]).sum()
    (gradient,) = torch.autograd.grad(loss, x)
    assert torch.allclose(gradient, 8 * x.detach().exp())
    assert any("disk is full" in note for note in off.report().notes)
    del loss
    off.flush()
    assert tier.used == 0


def test_a_file_that_ends_early_is_said(native: str) -> None:
    x = torch.randn(1000, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        outs = [x.exp() for _ in range(8)]
    os.ftruncate(off._engine.chain.tiers[0]._file._file, 0)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match=r"Input/output error|ended early"):
        torch.autograd.backward([one.sum() for one in outs])


def test_a_block_in_a_cycle_is_counted_once_when_it_is_collected(native: str) -> None:
    x = torch.randn(1000, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        outs = [x.exp() for _ in range(4)]
        engine = off._engine
        packed = engine.pack(x.detach().exp())
        packed.block.prefetched = [packed]  # A cycle through what the graph holds.
        gone = weakref.ref(packed)
        del packed
        assert gone() is not None
        gc.collect()
        assert gone() is None
    del outs
    off.flush()
    assert engine._ledger.nbytes == dict.fromkeys(engine._ledger.nbytes, 0)
    assert engine.chain.tiers[0].used == 0


def test_threads_that_train_at_once_count_every_byte(native: str) -> None:
    off = tt.offload("disk", min_bytes=0)
    wrong: list[int] = []

    def train(number: int) -> None:
        x = torch.full((1000,), float(number), requires_grad=True)
        for _ in range(30):
            outs = [x.cos() for _ in range(10)]
            with off._block():
                outs = [x.sin().exp() for _ in range(10)]
            (grad,) = torch.autograd.grad([one.sum() for one in outs], x)
            one = x.detach()
            if not torch.allclose(grad, 10 * one.sin().exp() * one.cos()):
                wrong.append(number)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    off.flush()
    report = off.report()
    assert not wrong
    assert (
        report.seen_nbytes
        == 4 * 30 * 10 * 2 * 4000
        == report.packed_nbytes + sum((report.shared_nbytes, *report.kept_nbytes.values()))
    )
    assert off._engine._ledger.nbytes == dict.fromkeys(off._engine._ledger.nbytes, 0)


@pytest.mark.usefixtures("native")
def test_an_interrupt_while_a_tensor_is_packed_takes_no_bytes_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add, interrupts = Prefetch.add, list[BaseException]()

    def interrupted(self: Prefetch, *block: Any) -> None:
        if interrupts:
            raise interrupts.pop()
        add(self, *block)

    monkeypatch.setattr(Prefetch, "add", interrupted)
    x = torch.randn(200_000, requires_grad=True)  # Large: it can be prefetched.
    with tt.offload("disk", min_bytes=0) as off:
        for _ in range(2):
            x.exp().sum().backward()
        interrupts.append(KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            x.exp()
        gc.collect()
        assert not interrupts and off._engine.holds_nothing()
        assert off._engine._ledger.nbytes == dict.fromkeys(off._engine._ledger.nbytes, 0)


_CHILD = """
import os, torch, torchtap as tt
x = torch.randn(1000, requires_grad=True)
off = tt.offload("disk", min_bytes=0)
with off:
    outs = [x.exp() for _ in range(8)]
child = os.fork()
for _ in range(2):  # Each process in a file of its own, and both what was packed before.
    torch.autograd.backward([one.sum() for one in outs])
    assert torch.equal(x.grad, sum(x.detach().exp() for _ in range(8)))
    x.grad = None
    with off:
        outs = [x.exp() for _ in range(8)]
assert len({id(tier._file) for tier in off._engine.chain.tiers}) == 1
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system forks no process")
def test_a_child_goes_on_in_its_own_file(native: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHTAP_NATIVE": native, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "ignore", "-c", _CHILD],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def growth(step: Callable[[], None]) -> int:
    """Objects that the interpreter holds more after many steps than after some."""
    for _ in range(20):
        step()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(200):
        step()
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.parametrize("to", ["disk", "cpu"])
def test_no_object_is_left_behind(native: str, to: Any) -> None:
    x = torch.randn(1000, requires_grad=True)
    with use_streams(FakeStreams(delay=0)):
        off = tt.offload(to, min_bytes=0)

    def step() -> None:
        with off:
            outs = [x.exp() for _ in range(5)]
            shared = [x.exp().sin() for _ in range(2)]
        torch.autograd.backward([one.sum() for one in (*outs, *shared)])
        x.grad = None

    assert growth(step) < 200  # Each step saves 9 tensors: one object a tensor would be 1,800.
