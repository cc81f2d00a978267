"""Fixtures that several files use."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from torchtap.hooks.saved_pairs import top
from torchtap.stats.kernels import native


@pytest.fixture(autouse=True)
def no_saved_tensor_hooks_are_left() -> Iterator[None]:
    """Neither before nor after a test does its thread have a pair of saved-tensor hooks."""
    assert top() is None
    yield
    assert top() is None


@pytest.fixture(autouse=True, scope="module")
def what_earlier_files_left_is_not_walked() -> None:
    """The collector leaves aside what is alive before a file: libraries, compiled code, caches.

    That is millions of objects late in a run. Each collection, and each ``tt.graph``, which asks
    the collector for tensors, would walk all of them: tests took four times as long.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def what_earlier_files_compiled_is_forgotten() -> None:
    """PyTorch compiles a function of its own, that all modules share, eight times at most."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


@pytest.fixture
def one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Nothing is compiled before the test, and nothing stays compiled after it."""
    gc.collect()  # A watch that another test left open holds the compiler's setting.
    # Dynamo looks at .grad of each tensor that passes from one graph to the next.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with every call of the fused kernel of ``nn.TransformerEncoderLayer``."""
    calls: list[int] = []
    fused = torch._transformer_encoder_layer_fwd

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(1)
        return fused(*args, **kwargs)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    return calls


@pytest.fixture(params=["native", "stock"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with the native kernel, and as where nothing could compile it."""
    if request.param == "stock":
        monkeypatch.setattr(native, "_available", False)


@pytest.fixture
def switches_often() -> Iterator[None]:
    """Threads take turns after each bytecode: what a race can do, it does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
