"""Offloading in programs of unusual form, and what is left of it afterwards."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

import torchtap as tt
from torchtap.hooks.saved_pairs import top
from torchtap.saved.heap import heap


def wide(num: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(num) for layer in (nn.Linear(64, 64), nn.Tanh())))


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


def test_a_buffer_of_numpy_that_is_filled_again_is_not_taken_for_the_batch_before() -> None:
    buffer = numpy.ones((32, 64), dtype=numpy.float32)
    x, model = torch.from_numpy(buffer), wide()
    with tt.offload("disk", min_bytes=0) as off:
        kept = model(x).sum()  # No backward is run, and the graph stays alive.
        off.flush()
        buffer[:] = numpy.random.default_rng(0).normal(size=buffer.shape)
        found = gradients(model, model(x).sum())
    right = gradients(model, model(torch.from_numpy(buffer.copy())).sum())
    assert all(map(torch.equal, found, right))
    assert kept.requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # PyTorch's own use of it.
@pytest.mark.parametrize("attached", [True, False])
def test_forward_mode_derivatives_are_those_without_offloading(attached: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).eval()
    x, tangent = torch.randn(4, 8), torch.randn(4, 8)

    def derivative() -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(model(forward_ad.make_dual(x, tangent))).tangent

    right = derivative()
    with tt.offload("disk", model=model if attached else None, min_bytes=0, missing="ignore"):
        found = derivative()
    assert torch.equal(found, right)


def test_a_block_that_could_not_begin_can_begin_later() -> None:
    off, model = tt.offload("disk", min_bytes=0), wide()
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        with pytest.raises(RuntimeError, match="not here"), off:
            pass
        assert top() is None
    with off:
        model(torch.ones(2, 64)).sum().backward()
    off.flush()
    assert off.report().moved_nbytes["disk"] > 0 and top() is None


class Waits(nn.Module):
    """Tells when its forward runs, and goes on when it is told to."""

    def __init__(self, inside: threading.Event, go_on: threading.Event) -> None:
        super().__init__()
        self.inside, self.go_on = inside, go_on

    def forward(self, x: Tensor) -> Tensor:
        self.inside.set()
        assert self.go_on.wait(20)
        return x.sin()


def test_closing_from_another_thread_takes_the_hooks_off_there_too() -> None:
    inside, go_on = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    model = nn.Sequential(nn.Linear(64, 64), Waits(inside, go_on), nn.Linear(64, 64))
    off = tt.offload("disk", model=model, min_bytes=0)

    def run() -> None:
        loss = model(torch.ones(2, 64)).sum()
        found["top"] = top()
        loss.backward()
        found["again"] = torch.func.grad(torch.sin)(torch.tensor(0.0)).item()

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(20)
    off.close()
    go_on.set()
    thread.join(20)
    assert found == {"top": None, "again": 1.0}
    assert not any(module._forward_hooks for module in model.modules())


def test_closing_holds_no_frame_of_a_thread_that_is_inside_the_model() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Local:
        pass

    model, kept = nn.Sequential(nn.Linear(64, 64), Waits(inside, go_on)), []

    def run() -> None:
        local = Local()
        kept.append(weakref.ref(local))
        model(torch.ones(2, 64))

    off = tt.offload("disk", model=model, min_bytes=0, missing="ignore")
    thread = threading.Thread(target=run)
    gc.disable()  # What it held in a cycle would be gone by accident.
    try:
        thread.start()
        assert inside.wait(20)
        off.close()
        go_on.set()
        thread.join(20)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_closed_handle_holds_no_thread_and_no_file() -> None:
    model, x = wide(), torch.ones(4096, 64)  # 1 MiB: too large to be written at once.

    def run() -> tt.Offload:
        off = tt.offload("disk", model=model)
        model(x).sum().backward()
        off.close()
        return off

    run()  # Whatever is made once is made now.
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    kept = [run() for _ in range(5)]
    for thread in threading.enumerate():  # They end by themselves, in a moment.
        if thread.name.startswith("torchtap-offload"):
            thread.join(20)
    assert len(os.listdir("/proc/self/fd")) <= files and threading.active_count() <= threads
    assert all(off.report().moved_nbytes["disk"] > 0 for off in kept)


def test_what_is_packed_at_closing_can_be_unpacked_later() -> None:
    model, x = wide(), torch.ones(4096, 64)
    right = gradients(model, model(x).sum())
    off = tt.offload("disk", model=model)
    loss = model(x).sum()
    off.close()
    assert all(map(torch.equal, gradients(model, loss), right))


def test_a_folder_that_cannot_be_written_is_not_called_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr("torchtap.saved.spill_file.SpillFile.write", fails)
    model = wide()
    off = tt.offload("disk", model=model, min_bytes=0, missing="ignore")
    model(torch.ones(4, 64)).sum().backward()
    off.close()
    (note,) = [note for note in off.report().notes if "disk" in note]
    assert "cannot be written (No such file or directory)" in note and "full" not in note


MEMORY = """
import sys, torch, torchtap as tt
from torch import nn

torch.set_num_threads(1)
model = nn.Sequential(*(one for _ in range(24) for one in (nn.Linear(256, 256), nn.GELU())))
off = tt.offload("disk", model=model) if sys.argv[1] == "disk" else None

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

before, most = anonymous(), 0
for _ in range(5):
    loss = model(torch.randn(4096, 256)).sum()
    most = max(most, anonymous())
    loss.backward()
    most = max(most, anonymous())
    model.zero_grad()
print(most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not heap.can_give_back, reason="this C library keeps what is freed")
def test_the_process_is_smaller_with_offloading_than_without() -> None:
    def grown(how: str) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, how],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout)

    assert grown("disk") < 0.85 * grown("plain")


# --- the fused kernel of encoder layers --------------------------------------------------------


@pytest.fixture
def num_fused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the calls of the kernel."""
    kernel, calls = torch._transformer_encoder_layer_fwd, [0]

    def counted(*args: Any) -> Tensor:
        calls[0] += 1
        return kernel(*args)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    return calls


def encoder(num_layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, num_layers).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("lengths", [(3, 5), (0, 4), (0, 0)])
def test_an_encoder_keeps_its_fused_kernel(lengths: tuple[int, int], num_fused: list[int]) -> None:
    layer = encoder().layers[0]
    batch = torch.nested.nested_tensor([torch.randn(length, 16) for length in lengths])
    with torch.no_grad():
        right = layer(batch)
        with tt.offload("disk", model=layer, min_bytes=0, missing="ignore"):
            found = layer(batch)
    assert num_fused == [2]
    assert all(map(torch.equal, found.unbind(), right.unbind()))


def test_an_encoder_keeps_its_fused_kernel_beside_watches(num_fused: list[int]) -> None:
    model, x = encoder(), torch.randn(2, 4, 16)
    with torch.no_grad():
        right = model(x)
        with (
            tt.watch(model, "layers.*") as first,
            tt.offload("disk", model=model, min_bytes=0, missing="ignore") as off,
            tt.watch(model, "*:output,input") as second,
        ):
            assert torch.equal(model(x), right)
            assert num_fused == [4]
            off.close()  # Its hooks are gone, and those of the others are not.
            assert torch.equal(model(x), right)
    assert num_fused == [6]
    for w in (first, second):
        values = [one.value for one in w.run.records() if str(one.site) == "layers.1:output"]
        assert len(values) == 2
        assert all(torch.equal(value, right) for value in values)
        assert "fused kernel" in str(w.absent)


def test_an_encoder_that_trains_is_offloaded_after_it_was_fused(num_fused: list[int]) -> None:
    model, x = encoder(), torch.randn(2, 4, 16)
    right = gradients(model, model(x).sum())
    with tt.offload("disk", model=model, min_bytes=0) as off:
        with torch.no_grad():
            model(x)
        assert num_fused == [2]
        assert off.report().packed_nbytes == 0
        assert all(map(torch.equal, gradients(model, model(x).sum()), right))
    assert num_fused == [2]
    assert off.report().packed_nbytes > 0
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_fused_call_that_raises_leaves_the_hooks_where_they_were(num_fused: list[int]) -> None:
    layer = encoder().layers[0]
    with tt.watch(layer) as w, tt.offload("disk", model=layer, min_bytes=0, missing="ignore"):
        before = [dict(m._forward_hooks) for m in layer.modules()]
        with torch.no_grad(), pytest.raises(RuntimeError, match="embed_dim 16"):
            layer(torch.randn(2, 4, 15))
        assert [dict(m._forward_hooks) for m in layer.modules()] == before
        layer(torch.randn(2, 4, 16)).sum().backward()
    assert num_fused == [1]
    assert len(list(w.run.records())) > 0


# --- closed handles ----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["*", "0"])
def test_a_closed_offload_keeps_no_model_alive(where: str) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    off = tt.offload("disk", model=model, where=where, min_bytes=0)
    model(torch.ones(64, 64)).sum().backward()
    off.close()
    alive = [weakref.ref(one) for one in (model, model[0], model[0].weight, model[1].running_var)]
    del model
    gc.collect()
    assert [one() for one in alive] == [None] * 4
    assert "Sequential, closed" in repr(off)
    assert off.report().packed_nbytes > 0


def test_a_closed_offload_keeps_no_file_open_longer_than_the_graph() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    x = torch.randn(64, 64, requires_grad=True)
    off = tt.offload("disk", min_bytes=0)
    with off:
        loss = x.exp().sum()
    off.close()
    assert files() == before + 1
    loss.backward()
    assert torch.equal(x.grad, x.detach().exp())  # type: ignore[arg-type]
    del loss
    gc.collect()
    assert files() == before
    assert off.report().moved_nbytes == {"disk": x.nbytes}
