"""Taps and hooks of a plan that are made together are those that are made one by one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt
from torchtap.capture.bulk import find_hooked
from torchtap.capture.callbacks import PostForward
from torchtap.core.plan import make_plan
from torchtap.hooks.hidden_handle import hooked
from torchtap.hooks.module_hook import NativeHook, TapHook
from torchtap.hooks.tap import Tap
from torchtap.hooks.tap_follower import CallCounter
from torchtap.stats.kernels import native

ENGINES = ("0", "1")
pytestmark = pytest.mark.skipif(not native.takes_calls(), reason="nothing is made natively here")


class Block(nn.Module):
    """May call itself, as any module whose code is not PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.inner(x)) + x


def new_model() -> nn.Module:
    """Make a model with modules that may call themselves, and a shared one."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.LayerNorm(4), Block(), nn.Flatten(), nn.Linear(4, 2))
    model[2].act = model[0].act
    return model


def described(hook: Any) -> Any:
    """Describe a hook by its classes, its tap and what of it is set."""
    if isinstance(hook, NativeHook):
        return type(hook).__name__, hook.func.__name__, described(hook.args[1])
    if not isinstance(hook, TapHook):
        return "another"
    names = [name for one in type(hook).__mro__ for name in getattr(one, "__slots__", ())]
    kept = {name for name in names if _is_set(hook, name) and name not in ("owner", "tap", "part")}
    values = {name: getattr(hook, name) for name in kept if name in ("role", "has_frame")}
    return type(hook).__name__, hook.tap.path, sorted(kept - {"ticket", "asks"}), values


def _is_set(hook: Any, name: str) -> bool:
    try:
        getattr(hook, name)
    except AttributeError:
        return False
    return True


def described_tap(tap: Tap) -> dict[str, Any]:
    """Describe a tap by all that it has."""
    names = [name for name in Tap.__slots__ if name not in ("_meter", "_make_state", "_steps")]
    own = {name: getattr(tap, name) for name in names}
    for name in ("plain_output", "plain_gradient"):
        state = own[name]
        parts = ("site", "copies", "seen", "expected", "received", "reason")
        own[name] = state and {part: getattr(state, part) for part in parts}
    own["take_plain"] = own["take_plain"] is not None
    own["call_numbers"] = type(own["call_numbers"]).__name__
    return own


def tables(model: nn.Module) -> Iterator[Any]:
    """Yield the tables of hooks of all modules, and which notes stand on them."""
    for module in model.modules():
        for name in ("_forward_pre_hooks", "_forward_hooks"):
            yield [described(hook) for hook in getattr(module, name).values()]
        for name in ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
            yield len(getattr(module, name))
        yield len(module._forward_pre_hooks_with_kwargs)


PLANS = [
    ("*", {}),
    ("*:output,grad_output", {}),
    ("*:grad_output", {}),
    (["0*", "4"], {}),
    ("*:input", {}),
    ("*:output,param", {}),
    ("*", {"copy": "always"}),
    ("*", {"edits": "before"}),
]
SINKS = {
    "memory": tt.Memory,
    "stats": tt.Stats,
    "both": lambda: [tt.Memory(), tt.Stats()],
    "further": lambda: tt.Stats(statistics=[tt.stats.top_k(2)]),
    "function": lambda: lambda record: None,
}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize(("where", "options"), PLANS)
def test_hooks_and_taps_are_those_of_a_plan_made_one_by_one(
    where: Any, options: dict[str, Any], sink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    together, kernel = ["make_taps", "make_hooks", "new_meters", "hooked"], native.kernel()
    for is_bulk in (True, False):
        if not is_bulk:
            for name in together:
                monkeypatch.delattr(kernel, name)
        model = new_model()
        handle = model[4].register_forward_hook(lambda *_: None)
        with tt.watch(model, where, to=SINKS[sink](), **options) as w:
            calls = w._engine.calls
            taps = [calls.hooks.root, *calls.hooks.taps.values()]
            described_taps = [described_tap(tap) for tap in taps]
            found.append((list(tables(model)), described_taps))
            assert all(tap._steps is calls.hooks._steps for tap in taps)
            numbers = [tap.call_numbers for tap in {id(one): one for one in taps}.values()]
            assert len(set(map(id, numbers))) == len(numbers)
        handle.remove()
        assert not any(tables(model))
    assert found[0] == found[1]


@pytest.mark.parametrize("where", ["*", "*:output,grad_output"])
def test_both_engines_record_the_same(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for engine in ENGINES:
        monkeypatch.setenv("TORCHTAP_NATIVE", engine)
        model, x = new_model(), torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
        with (
            tt.watch(model, where, to=[tt.Memory()]) as w,
            tt.watch(model, where, to=tt.Stats()) as s,
        ):
            model(x).square().sum().backward()
        assert not w.absent and not s.absent
        rows = {(one.site, one.call): one.value for one in w.run.records()}
        sites = list(s.run.sites)
        runs.append(
            (list(rows), rows, sites, [s.run.stats(site) for site in sites], s.run.meta.order)
        )
    one, other = runs
    assert one[0] == other[0] and one[2] == other[2] and one[4] == other[4]
    assert all(torch.equal(value, other[1][key]) for key, value in one[1].items())
    assert list(map(repr, one[3])) == list(map(repr, other[3]))


def test_a_sink_that_was_used_before_goes_on_where_it_was() -> None:
    model, stats, x = new_model(), tt.Stats(), torch.ones(2, 4)
    for where in ("4", "*", "*:output,grad_output", "0"):
        with tt.watch(model, where, to=stats) as w:
            model(x).sum().backward()
    assert [stats.series.known_place(site) for site in stats.series.measured.sites] == list(
        range(len(stats.series.measured.sites))
    )
    assert w.run.stats("4:output").num_tensors == 3
    assert w.run.stats("0:output").num_tensors == 3
    assert tt.Site("4") in stats.series and tt.Site("nowhere") not in stats.series


def test_a_step_that_calls_a_module_twice_numbers_its_calls() -> None:
    model = new_model()
    with tt.watch(model, "*:output") as w:
        model(torch.ones(1, 4))
        w.step()
        model(torch.ones(1, 4))
    assert [one.call for one in w.run.records("0.act")] == [0, 1, 0, 1]
    assert [one.call for one in w.run.records("0")] == [0, 0]


def test_objects_go_with_their_watch_also_while_the_collector_looks_all_the_time() -> None:
    model, x = new_model(), torch.ones(2, 4)
    kinds = (Tap, PostForward, CallCounter, NativeHook)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for sink in (tt.Memory, tt.Stats):
            for _ in range(3):
                with tt.watch(model, "*:output,grad_output", to=sink()) as w:
                    model(x).sum().backward()
                assert len(w.run.sites) == 18
            del w
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, kinds)]


def test_threads_open_watches_of_one_model_at_once() -> None:
    model, x = new_model(), torch.ones(2, 4)
    expected = _watched(model, x)
    failed: list[object] = []

    def work() -> None:
        for _ in range(40):
            found = _watched(model, x)
            if not expected <= found:
                failed.append(expected - found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed
    assert not any(tables(model))


def _watched(model: nn.Module, x: Tensor) -> set[tt.Site]:
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        model(x).sum().backward()
    return set(w.run.sites)


def test_what_is_no_object_of_slots_is_refused() -> None:
    plan = make_plan(nn.Linear(2, 2), "*")
    with pytest.raises(TypeError, match="slots alone"):
        native.kernel().make_taps(nn.Linear(2, 2), plan.taps, None, None)
    with pytest.raises(TypeError, match="native Clock"):
        native.kernel().new_meters(object(), 0, b"\0")


def test_modules_with_hooks_are_found_by_both() -> None:
    model = new_model()
    modules = list(model.modules())
    assert find_hooked(modules) == hooked(modules) == []
    handle = model[1].register_forward_pre_hook(lambda *_: None)
    with tt.watch(model, "0.inner", every=2) as w:
        w.step()  # Its hooks rest.
        assert not model[0].inner._forward_hooks
        found = find_hooked(modules)
        assert found == hooked(modules)
        assert {id(one) for one in found} == {id(model), id(model[0].inner), id(model[1])}
    handle.remove()
    assert find_hooked(modules) == hooked(modules) == []


def test_long_shapes_are_measured_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for engine in ENGINES:
        monkeypatch.setenv("TORCHTAP_NATIVE", engine)
        model = nn.Sequential(nn.Identity(), nn.Tanh())
        shapes = [(2,) * 9, (2,) * 10, (3, *(2,) * 9), (2,) * 3, (2,) * 9]
        with tt.watch(model, "1", to=tt.Stats()) as w:
            for shape in shapes:
                x = torch.linspace(-1, 1, torch.Size(shape).numel(), requires_grad=True)
                model(x.view(shape))
                w.step()
        summary = w._source.series.of(tt.Site("1"))
        whole = w.run.stats("1:output")
        found.append((summary.shape, summary.why_no_mean, repr(whole)))
    assert found[0] == found[1]
