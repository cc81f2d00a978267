"""The fused kernel of ``nn.TransformerEncoderLayer`` runs under every attachment."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from absent import reasons
from bits import same
from models import seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.nn.modules import transformer

import torchtap as tt


def encoder() -> nn.TransformerEncoderLayer:
    return seeded(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()


def test_a_fused_encoder_layer_stays_fused() -> None:
    layer = encoder()
    x = normal(2, 5, 8)
    with torch.no_grad():
        plain = layer(x)
        with tt.watch(layer, "*:input,output") as w:
            watched = layer(x)
    assert same(plain, watched)
    assert same(w.run[".:output"], plain)
    assert "fused kernel" in reasons(w)["self_attn:output"]
    assert "set_fastpath_enabled" in reasons(w)["linear1:output"]


def test_an_encoder_layer_that_is_not_fused_shows_its_inside() -> None:
    layer = encoder()
    x = normal(2, 5, 8)
    with tt.watch(layer, "*:output") as w:
        layer(x)
    assert "linear1:output" in w.run


def test_a_fused_encoder_layer_has_its_hooks_again_afterwards() -> None:
    layer, x = encoder(), torch.ones(1, 2, 8)
    with tt.watch(layer, "linear1") as w:
        with torch.no_grad():
            layer(x)
        assert len(w.run) == 0
        layer(x)
    assert len(w.run) == 1
    assert not any(module._forward_hooks for module in layer.modules())


ATTACHED: dict[str, Callable[[nn.Module], Any]] = {
    "watch": lambda model: tt.watch(model, "*:input,output"),
    "measure": lambda model: tt.watch(model, "*:input,output", to=tt.Stats()),
    "offload": lambda model: tt.offload("cpu", model=model, min_bytes=0),
}


@pytest.fixture(params=list(ATTACHED))
def attach(request: pytest.FixtureRequest) -> Callable[[nn.Module], Any]:
    return ATTACHED[request.param]


def assert_has_no_trace(layer: nn.Module) -> None:
    assert "len" not in vars(transformer)
    for module in layer.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_threads_share_a_layer_and_none_loses_a_call(
    attach: Callable[[nn.Module], Any], fused_calls: list[int]
) -> None:
    layer = seeded(lambda: nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)).eval()
    inputs = [normal(2, 5, 32, seed=k) for k in range(8)]
    with torch.no_grad():
        truth = [layer(one) for one in inputs]
    fused_calls.clear()

    def run(number: int) -> int:
        with torch.no_grad():
            same = [torch.equal(layer(inputs[number]), truth[number]) for _ in range(40)]
        return same.count(False)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with attach(layer) as open_one, ThreadPoolExecutor(len(inputs)) as pool:
            assert sum(pool.map(run, range(len(inputs)))) == 0
    finally:
        sys.setswitchinterval(interval)
    assert len(fused_calls) == 40 * len(inputs)
    assert_has_no_trace(layer)
    for site in (".:input", ".:output") if isinstance(open_one, tt.Watch) else ():
        if records := list(open_one.run.records(site)):
            assert sorted(one.call for one in records) == list(range(40 * len(inputs)))
        else:
            assert open_one.run.stats(site).numel == 40 * sum(one.numel() for one in inputs)


def test_a_call_that_trains_in_another_thread_shows_its_inside_all_the_same(
    fused_calls: list[int],
) -> None:
    layer, x = encoder(), torch.ones(2, 5, 8)

    def train() -> None:
        for _ in range(40):
            layer(x)

    def infer() -> None:
        with torch.no_grad():
            for _ in range(40):
                layer(x)

    with tt.watch(layer, "linear1:output") as w, ThreadPoolExecutor(2) as pool:
        both = pool.submit(train), pool.submit(infer)
        for one in both:
            one.result()
    assert len(list(w.run.records("linear1:output"))) == 40
    assert len(fused_calls) == 40


def test_the_tables_of_hooks_are_whole_while_it_runs(attach: Callable[[nn.Module], Any]) -> None:
    found: list[int] = []

    class Counts(nn.TransformerEncoderLayer):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            found.append(len(list(self.modules())))
            return super().forward(*args, **kwargs)

    layer = seeded(lambda: Counts(8, 2, 16, batch_first=True)).eval()
    with torch.no_grad(), attach(layer):
        layer(torch.ones(1, 2, 8))
    assert found == [len(list(layer.modules()))]
    assert_has_no_trace(layer)


def test_a_layer_that_never_asks_for_its_hooks_keeps_no_trace(
    attach: Callable[[nn.Module], Any],
) -> None:
    class Own(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return self.linear2(self.linear1(src))

    layer = seeded(lambda: Own(8, 2, 16, batch_first=True)).eval()
    with torch.no_grad(), attach(layer):
        layer(torch.ones(1, 2, 8))
        assert vars(copy.deepcopy(layer)).keys() == vars(layer).keys()
    assert_has_no_trace(layer)


def test_an_interrupted_call_leaves_no_trace_once_closed(
    attach: Callable[[nn.Module], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = encoder(), torch.ones(1, 2, 8)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    with torch.no_grad(), attach(layer):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(nn.functional, "_canonical_mask", interrupted)  # Before it asks.
            layer(x)
        layer(x)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(nn.functional, "_canonical_mask", interrupted)
            layer(x)
    assert_has_no_trace(layer)


@pytest.mark.parametrize("second", [tt.watch, tt.edit])
def test_another_hook_decides_as_it_would_alone(second: Any, fused_calls: list[int]) -> None:
    """A second watch keeps the kernel on, and an edit keeps it off."""
    layer, x = encoder(), torch.ones(1, 2, 8)
    how = ["linear1:output"] if second is tt.watch else ["linear1:output", tt.edits.scale(2.0)]
    with torch.no_grad(), tt.watch(layer, "*:output") as w, second(layer, *how):
        layer(x)
    assert len(fused_calls) == (second is tt.watch)
    assert ("linear1:output" in w.run) == (second is tt.edit)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_encoder_is_as_it_is_without_torchtap(
    training: bool, fresh_compiler: None
) -> None:
    """Statistics in one graph with it, in training too; values by breaks of the graph."""
    model = seeded(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2
        )
    ).train(training)
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.set_grad_enabled(training):
        truth = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
        for to in (tt.Stats(), tt.Memory()):
            torch._dynamo.reset()
            with tt.watch(model, "*:output", to=to) as w:
                is_whole = isinstance(to, tt.Stats)
                found = torch.compile(model, backend="aot_eager", fullgraph=is_whole)(x)
            assert same(found, truth)
            assert ("layers.0.linear1:output" in w.run) == training
            assert "layers.1:output" in w.run
    assert_has_no_trace(model)


def test_a_copy_made_while_the_layer_runs_or_after_it_raised_has_nothing_of_torchtap(
    attach: Callable[[nn.Module], Any],
) -> None:
    layer, x, copies = encoder(), torch.ones(1, 2, 8), []

    def copies_it(module: nn.Module, _: Any) -> None:
        twin = copy.deepcopy(module)
        twin._forward_pre_hooks.clear()  # This function cannot be pickled.
        copies.append(pickle.dumps(twin))

    handle = layer.register_forward_pre_hook(copies_it)
    with torch.no_grad(), attach(layer):
        with pytest.raises(AssertionError, match="only bool and floating types"):
            layer(x, src_key_padding_mask=torch.zeros(1, 2, dtype=torch.int64))
        handle.remove()
        copies.append(pickle.dumps(layer))
    assert len(copies) == 2
    assert not any(b"torchtap" in one for one in copies)
    assert_has_no_trace(layer)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_an_encoder_is_scripted_while_another_is_watched() -> None:
    layer, x = encoder(), torch.ones(1, 2, 8)
    with tt.watch(encoder(), "*:output"):
        scripted = torch.jit.script(layer)
    assert torch.allclose(scripted(x), layer(x))


def test_a_watch_that_is_dropped_without_closing_leaves_no_trace() -> None:
    tt.watch(encoder(), "*:output")
    gc.collect()
    assert "len" not in vars(transformer)


def test_where_a_hook_of_the_user_keeps_the_kernel_off_it_is_not_the_reason() -> None:
    layer, x = encoder(), torch.ones(1, 2, 8)
    layer.linear1.register_forward_hook(lambda *_: None)
    with torch.no_grad(), tt.watch(layer, "*:output") as w:
        layer(x)
    assert "linear2:output" in w.run
    assert "nn.MultiheadAttention does with out_proj" in reasons(w)["self_attn.out_proj:output"]
