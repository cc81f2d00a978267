"""Plain calls that are taken natively leave the same as those that Python takes, to the bit.

The two share the kernels and their tallies, and neither is the truth here: ``test_laws.py`` and the
tests of ``capture/`` compare each with it, whichever is in use.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from models import TinyGPT, seeded
from random_numbers import fixed_seed
from torch import nn

import torchtap as tt
from torchtap.capture.plain_calls import new_step_counter
from torchtap.core.torch_private import STAGES
from torchtap.hooks.call_numbers import StepCounter
from torchtap.hooks.module_hook import NativeHook
from torchtap.stats.kernels import native
from torchtap.testing import Net, Specimen, default_loss, zoo

if not native.takes_calls():
    pytest.skip("the native kernel was not built", allow_module_level=True)

NUM_STEPS = 3
WHERE = "*:output,grad_output"
"""Ports of plain calls. A module of which more is wanted is left to Python as a whole."""
Program = Callable[[nn.Module, tt.Watch], None]
Copies = Literal["auto", "always"]


def tallies(w: tt.Watch) -> dict[str, tuple[Any, ...]]:
    """Return the counts of each site, and of each module."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, tap in w._engine.hooks.taps.items():
        found[f"{path} itself"] = (tap.has_run, tap.has_trained, next(tap.call_numbers))
        for (port, leaf), state in tap.states.items():
            if state is not None:
                counts = state.expected, state.received, state.seen, state.reason, state.copies
                found[f"{path}:{port}[{leaf}]"] = counts
    return found


def measured(w: tt.Watch) -> dict[str, Any]:
    """All that was measured, as text and bytes."""
    series = w._delivery.sinks[0].measured()  # type: ignore[attr-defined]
    steps, rows = series.rows.as_array()
    found: dict[str, Any] = {"steps": steps, "rows": rows.tobytes()}
    for place, summary in enumerate(series.measured):
        about = str(summary.site), summary.dtype, summary.shape, summary.num_samples, summary.notes
        found[f"site {place}"] = repr(about)
        sums = summary.mean_sum
        found[f"sums {place}"] = None if sums is None else np.asarray(sums).tobytes()
        for step in (*steps, -1):
            counted = series.histogram(step, place)
            found[f"histogram {place} {step}"] = counted and (
                counted.bins.tobytes(),
                counted.counts.tobytes(),
                counted.is_sample,
            )
    return found


def outcome(
    build: Callable[[], nn.Module], program: Program, where: str | list[str], **how: Any
) -> dict[str, Any]:
    """Return all that a watch of a program has at its end."""
    model = build()
    with fixed_seed(), tt.watch(model, where, to=tt.Stats(**how)) as w:
        for _ in range(NUM_STEPS):
            program(model, w)
            w.step()
        notes = w._engine.calls.num_entries, repr(replace(w.run.meta, created=""))
        absent = [repr(one) for one in w.absent]
        return measured(w) | {"tallies": tallies(w), "absent": absent, "notes": notes}


def assert_equal(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[], nn.Module],
    program: Program,
    where: str | list[str] = WHERE,
    **how: Any,
) -> None:
    """Assert that both ways leave the same."""
    found = []
    for way in ("0", "1"):
        monkeypatch.setenv("TORCHTAP_NATIVE", way)
        found.append(outcome(build, program, where, **how))
    python, natively = found
    assert natively == python


def assert_kept_equal(
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[], nn.Module],
    program: Program,
    make_sink: Callable[[list[tt.Record]], Any],
    copy: Copies = "auto",
) -> None:
    """Assert that both ways make the same records, in the same order."""
    found = []
    for way in ("0", "1"):
        monkeypatch.setenv("TORCHTAP_NATIVE", way)
        kept: list[tt.Record] = []
        rows: list[Any] = []
        model = build()
        with fixed_seed(), tt.watch(model, WHERE, to=make_sink(kept), copy=copy) as w:
            for _ in range(NUM_STEPS):
                program(model, w)
                rows += [as_row(one) for one in kept]
                kept.clear()
                w.step()
            found.append((rows, tallies(w), [repr(one) for one in w.absent]))
    python, natively = found
    assert len(python[0]) > 0
    assert natively == python


def as_row(record: tt.Record) -> tuple[Any, ...]:
    """A record with its value as bytes, and how it was kept."""
    kept = record.kept
    how = record.version, kept.requires_grad, kept._is_view(), kept.data_ptr() != 0
    value = None if record.overwritten else kept.detach().float().numpy().tobytes()
    return (*record[:-2], how, tuple(kept.shape), kept.dtype, value)


class Borrowing:
    """A sink that keeps no value, so that values need no copy."""

    keeps = False

    def __init__(self, kept: list[tt.Record]) -> None:
        self.kept = kept

    def take(self, record: tt.Record) -> None:
        self.kept.append(record._replace(kept=record.kept.detach().clone()))

    def close_step(self, step: int) -> None:
        """It has no steps."""

    def close(self) -> None:
        """It has no end."""


def train(model: nn.Module, *args: Any, **kwargs: Any) -> None:
    default_loss(model(*args, **kwargs)).backward()
    model.zero_grad()


@pytest.mark.parametrize("specimen", zoo(), ids=str)
def test_a_specimen_leaves_the_same(specimen: Specimen, monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, w: tt.Watch) -> None:
        args, kwargs = specimen.inputs()
        try:
            output = model(*args, **kwargs)
        except Exception as error:
            if specimen.raises is None or not isinstance(error, specimen.raises):
                raise
            return
        if specimen.backward:
            default_loss(output).backward()

    assert_equal(monkeypatch, specimen.build, program)


TOKENS = torch.arange(64).reshape(4, 16) % 65


def gpt() -> nn.Module:
    torch.manual_seed(0)
    return TinyGPT(layers=2)


@pytest.mark.parametrize("make_sink", [tt.Stats, tt.Memory])
def test_most_calls_of_a_training_are_taken_natively(make_sink: Callable[[], Any]) -> None:
    """Else the rest of this file would compare Python with itself."""
    model = gpt()
    with tt.watch(model, WHERE, to=make_sink()):
        hooks = [h for m in model.modules() for h in m._forward_hooks.values()]
        entered = list(model._forward_pre_hooks.values())
        for _ in range(2):
            train(model, TOKENS)
    assert len(hooks) == len(list(model.modules()))
    assert all(isinstance(hook, NativeHook) for hook in (*hooks, *entered))


def functions_called(action: Callable[[], object]) -> set[str]:
    """Return the names of the functions of Python that something calls."""
    found = set[str]()
    sys.setprofile(lambda frame, *_: found.add(frame.f_code.co_qualname))
    try:
        action()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("make_sink", [tt.Stats, tt.Memory])
def test_calls_of_the_model_itself_are_followed_natively(
    make_sink: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where pipeline stages may call the model, Python looks which one does.
    monkeypatch.delitem(sys.modules, STAGES, raising=False)
    model = gpt()
    with tt.watch(model, WHERE, to=make_sink()) as w:
        called = []
        for _ in range(3):
            called.append(functions_called(lambda: model(TOKENS)))
            w.step()
        model.eval()
        called.append(functions_called(lambda: model(TOKENS)))
    by_python = {"WatchedCalls.enter", "WatchedCalls.leave"}
    first, *_, last, in_eval = (by_python & own for own in called)
    assert "WatchedCalls.begin_training" in called[0]
    assert "WatchedCalls.enter" not in first  # Python notes that the model trains, and no more.
    assert "WatchedCalls.begin_training" not in called[2]
    assert (last, in_eval) == (set(), by_python)


@pytest.mark.parametrize(
    "how",
    [{}, {"histogram": False}, {"exact": True}, {"sample_mean": ("output", "grad_output")}],
    ids=str,
)
def test_a_training_leaves_the_same(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, w: tt.Watch) -> None:
        train(model, TOKENS)

    assert_equal(monkeypatch, gpt, program, **how)


def test_modules_of_which_more_is_wanted_leave_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, w: tt.Watch) -> None:
        train(model, TOKENS)

    where = ["*:output,grad_output", "blocks.0*:input,grad_input,param_grad"]
    assert_equal(monkeypatch, gpt, program, where)


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten())


def head() -> nn.Module:
    """Returns no view: its own calls are plain too."""
    torch.manual_seed(0)
    pooled = nn.AdaptiveAvgPool2d(2), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), *pooled, nn.Linear(16, 5))


def image(rows: int = 2, size: int = 8) -> torch.Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(1))


def shapes_vary(model: nn.Module, w: tt.Watch) -> None:
    for rows, size in ((2, 8), (3, 8), (0, 8), (2, 6)):
        train(model, image(rows, size))


def channels_last(model: nn.Module, w: tt.Watch) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    train(model, image().to(memory_format=torch.channels_last))
    train(model, image())


def dtypes_vary(model: nn.Module, w: tt.Watch) -> None:
    train(model, image())
    with torch.autocast("cpu", torch.bfloat16):
        train(model, image())
    model.double()
    train(model, image().double())
    model.float()


def backward_twice(model: nn.Module, w: tt.Watch) -> None:
    loss = default_loss(model(image()))
    loss.backward(retain_graph=True)
    loss.backward()


def paused(model: nn.Module, w: tt.Watch) -> None:
    with w.pause():
        train(model, image())
    train(model, image())


def evaluated(model: nn.Module, w: tt.Watch) -> None:
    train(model, image())
    with torch.no_grad():
        model(image())
    with w.evaluating():
        train(model, image())


def edited(model: nn.Module, w: tt.Watch) -> None:
    edits = {"1": tt.edits.scale(2.0), "1:grad_output": tt.edits.clamp(min=0)}
    with tt.edit(model, edits):
        train(model, image())


def second_order(model: nn.Module, w: tt.Watch) -> None:
    x = image().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()


def batched(model: nn.Module, w: tt.Watch) -> None:
    x = torch.ones(2, 3, 8, 8, requires_grad=True)
    y = model(x)
    torch.autograd.grad(y, x, torch.ones(2, *y.shape), is_grads_batched=True, retain_graph=True)
    y.sum().backward()


def transformed(model: nn.Module, w: tt.Watch) -> None:
    model.eval()
    torch.func.vmap(model, randomness="same")(image().unsqueeze(0))
    model.train()
    train(model, image())


def late(model: nn.Module, w: tt.Watch) -> None:
    loss = default_loss(model(image()))
    w.step()
    loss.backward()


def in_threads(model: nn.Module, w: tt.Watch) -> None:
    """One after the other: sums over samples depend on the order."""
    for _ in range(2):
        thread = threading.Thread(target=train, args=(model, image()))
        thread.start()
        thread.join()


def gradients_given(model: nn.Module, w: tt.Watch) -> None:
    y = model(image())
    given = torch.ones_like(y)
    y.backward(given)
    given.zero_()


def raised(model: nn.Module, w: tt.Watch) -> None:
    train(model, image())
    with pytest.raises(RuntimeError):
        model(image()[:, :2])
    train(model, image())


def interrupted(model: nn.Module, w: tt.Watch) -> None:
    """Forward hooks are not called after it, so the model's call is never left."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    handle = model.get_submodule("1").register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(image())
    handle.remove()
    train(model, image())
    train(model, image())


def backward_failed(model: nn.Module, w: tt.Watch) -> None:
    def stop(_: object) -> None:
        raise RuntimeError("stop")

    x = image().requires_grad_()
    x.register_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        train(model, x)
    train(model, image())


def inside_itself(model: nn.Module, w: tt.Watch) -> None:
    """A call of the model inside another."""
    calls = iter([True])

    def call(*_: object) -> None:
        if next(calls, False):
            model(image(1))

    handle = model.get_submodule("1").register_forward_pre_hook(call)
    train(model, image())
    handle.remove()
    train(model, image())


def mode_changes(model: nn.Module, w: tt.Watch) -> None:
    train(model, image())
    train(model.eval(), image())
    train(model.train(), image())


PROGRAMS = [
    raised,
    interrupted,
    backward_failed,
    inside_itself,
    mode_changes,
    shapes_vary,
    channels_last,
    dtypes_vary,
    backward_twice,
    paused,
    evaluated,
    edited,
    second_order,
    batched,
    transformed,
    late,
    in_threads,
    gradients_given,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize(
    ("make_sink", "copy"),
    [(lambda kept: kept.append, "auto"), (lambda kept: kept.append, "always"), (Borrowing, "auto")],
    ids=["kept", "copied", "borrowed"],
)
def test_values_of_a_program_are_kept_the_same(
    program: Program,
    make_sink: Callable[[list[tt.Record]], Any],
    copy: Copies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert_kept_equal(monkeypatch, conv, program, make_sink, copy)


@pytest.mark.parametrize(
    ("make_sink", "copy"),
    [(lambda kept: kept.append, "auto"), (lambda kept: kept.append, "always"), (Borrowing, "auto")],
    ids=["kept", "copied", "borrowed"],
)
def test_values_of_views_that_are_overwritten_are_kept_the_same(
    make_sink: Callable[[list[tt.Record]], Any], copy: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(model: nn.Module, w: tt.Watch) -> None:
        model(torch.ones(4, 5, 8)).sum().backward()

    assert_kept_equal(monkeypatch, views_overwritten, program, make_sink, copy)


@pytest.mark.parametrize(
    "make_sink", [lambda kept: kept.append, Borrowing], ids=["kept", "borrowed"]
)
def test_memory_of_the_caller_and_of_the_model_is_kept_the_same(
    make_sink: Callable[[list[tt.Record]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model returns the argument itself, written into, or a view of a weight."""

    def forward(m: Any, x: torch.Tensor, *, own: bool) -> torch.Tensor:
        result: torch.Tensor = m.inner.weight.view(-1) if own else x.mul_(2)
        return result

    def program(model: nn.Module, w: tt.Watch) -> None:
        for own in (False, True, False):
            x = torch.ones(2, 3, requires_grad=True) * 1
            model(x, own=own).sum().backward()
            x.detach().zero_()

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Net(forward, inner=nn.Linear(3, 3))

    assert_kept_equal(monkeypatch, build, program, make_sink)


@pytest.mark.parametrize("build", [conv, head], ids=lambda build: build.__name__)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_that_is_not_plain_leaves_the_same(
    program: Program, build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_equal(monkeypatch, build, program)


def views_overwritten() -> nn.Module:
    """Returned views are written into while calls around them run, and after the last one."""
    torch.manual_seed(0)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        y = m.a(x)  # Without a bias and of three dims: a view.
        z = m.flat(y)
        y.mul_(2)
        z[:, :3] += 1
        return m.b(y) + z.sum()

    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    return Net(forward, a=a, flat=nn.Flatten(1), b=b)


@pytest.mark.parametrize("is_written", [False, True], ids=["inside", "and outside"])
def test_views_that_are_overwritten_leave_the_same(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[torch.Tensor] = []

    def program(model: nn.Module, w: tt.Watch) -> None:
        x = torch.ones(4, 5, 8)
        handle = model.b.register_forward_hook(lambda m, a, output: kept.append(output))
        y = model(x)
        handle.remove()
        if is_written:
            kept[-1].mul_(3)
            y = y + kept[-1].sum()
        y.sum().backward()

    assert_equal(monkeypatch, views_overwritten, program)


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_numbered_the_same(seed: int) -> None:
    """The module calls itself, in two threads, and is left by an interrupt now and then."""
    drawn = random.Random(seed)
    steps = StepCounter(), new_step_counter()
    counts = [one.new_numbers() for one in steps]
    with ThreadPoolExecutor(1) as other:
        for _ in range(200):
            what = drawn.choices(("enter", "leave", "begin a step"), (5, 5, 1))[0]
            run = drawn.choice((lambda function: function(), lambda f: other.submit(f).result()))
            if what == "enter":
                for one in counts:
                    run(one.enter)
            elif what == "leave":
                python, natively = (run(one.__next__) for one in counts)
                assert natively == python
            else:
                for step in steps:
                    step.current += 1


def test_interrupted_calls_are_forgotten_the_oldest_first() -> None:
    found = []
    for steps in (StepCounter(), new_step_counter()):
        numbers = steps.new_numbers()
        for _ in range(5000):
            numbers.enter()
        found.append([next(numbers) for _ in range(4098)])
    assert found[0] == found[1]
    assert found[0][-3:] == [904, 5000, 5001]


def test_calls_of_a_backward_are_not_numbered_as_they_are_entered() -> None:
    numbers = new_step_counter().new_numbers()
    x = torch.ones(1, requires_grad=True)
    x.register_hook(lambda gradient: numbers.enter())
    x.sum().backward()
    assert next(numbers) == 0
    numbers.enter()
    numbers.enter()
    assert [next(numbers), next(numbers)] == [2, 1]


class Again(nn.Module):
    """Calls itself, and hands on what the last call returned as it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return self(y, depth - 1) if depth else y


def test_a_module_that_calls_itself_leaves_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, w: tt.Watch) -> None:
        train(model, torch.ones(2, 3))

    assert_equal(monkeypatch, lambda: nn.Sequential(Again()), program)


def test_tables_that_others_hook_into_leave_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that goes out of three modules, under two watches, an edit and a hook of others."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Sequential(nn.Dropout(0.0))))

    def program(model: nn.Module, w: tt.Watch) -> None:
        gradients = w._engine.calls.gradients
        gradients.prune(force=True)  # Only now and then where steps are ended in one call.
        handle = model[0].register_forward_hook(
            lambda module, args, output: (
                output.register_hook(lambda gradient: 2 * gradient) and None
            )
        )
        with tt.watch(model, WHERE, to=tt.Stats()) as other:
            train(model, torch.ones(2, 3))
        with tt.edit(model, {"1.0:grad_output": tt.edits.scale(2.0)}):
            train(model, torch.ones(2, 3))
        handle.remove()
        seen.append((len(gradients.on_tensors.tables), measured(other)["rows"]))

    seen: list[Any] = []
    assert_equal(monkeypatch, build, program)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("num_batches", [1, 2])
def test_a_compiled_graph_leaves_the_same(
    num_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value of several modules is measured by Python for each, and natively once."""

    def make() -> nn.Module:
        block = nn.Sequential(nn.Linear(6, 900), nn.GELU(), nn.Dropout(0.0))
        return nn.Sequential(block, nn.Identity(), nn.Linear(900, 3))

    def program(model: nn.Module, w: tt.Watch) -> None:
        call: Any = torch.compile(model, fullgraph=True)
        for _ in range(num_batches):
            train(call, torch.randn(5, 6))
        with torch.no_grad():
            call(torch.randn(5, 6))

    assert_equal(monkeypatch, lambda: seeded(make), program)
