"""Calls of modules inside a backward: checkpoints computed again, and all others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import seeded
from random_numbers import leaf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.testing import Specimen, default_loss, zoo
from torchtap.testing.zoo.inside_backward import ComputedAgain

SPECIMENS = {specimen.name: specimen for specimen in zoo()}


class CallsInBackward(torch.autograd.Function):
    """Doubles; its forward and its backward call a function beside that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, before: Callable[..., Any], after: Callable[..., Any]) -> Any:
        ctx.after = after
        ctx.save_for_backward(x)
        before(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        with torch.enable_grad():
            ctx.after(ctx.saved_tensors[0].detach(), grad)
        return grad * 2, None, None


def nothing(*_: Any) -> None:
    """Calls no module."""


def rows(seed: int = 0) -> Tensor:
    return leaf(2, 3, seed=seed, dtype=torch.float32)


def linear(seed: int = 0) -> nn.Linear:
    return seeded(lambda: nn.Linear(3, 3), seed)


def calls_of(run: tt.Run, site: str, phase: str) -> list[int]:
    return [record.call for record in run.records(site, phase=phase)]


def values_of(run: tt.Run, site: str, phase: str) -> list[Tensor]:
    return [record.value for record in run.records(site, phase=phase)]


def run_of(specimen: Specimen, model: nn.Module) -> None:
    args, kwargs = specimen.inputs()
    loss = default_loss(model(*args, **kwargs))
    assert loss is not None
    loss.backward()


def plain_inputs(specimen: Specimen, path: str) -> tuple[list[Tensor], list[Tensor]]:
    """Plain hooks on a module: its inputs in the forward, and inside the backward."""
    model, forward, backward = specimen.build(), list[Tensor](), list[Tensor]()

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inside = torch._C._current_graph_task_id() != -1
        (backward if inside else forward).append(args[0].detach().clone())

    model.get_submodule(path).register_forward_pre_hook(look)
    run_of(specimen, model)
    return forward, backward


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


# --- custom functions and hooks ---------------------------------------------------------------


@pytest.mark.parametrize("times_before", [0, 1, 2])
def test_a_call_inside_a_custom_backward_has_a_phase_of_its_own(times_before: int) -> None:
    module = linear()

    def after(x: Tensor, grad: Tensor) -> None:
        module(torch.full_like(grad, 7.0)).sum().backward()

    with tt.watch(module, ".:*") as w:
        hidden = rows()
        for _ in range(times_before):
            hidden = module(hidden)
        CallsInBackward.apply(hidden, nothing, after).sum().backward()
    assert calls_of(w.run, ".:input", "forward") == list(range(times_before))
    assert calls_of(w.run, ".:input", "recompute") == []
    assert_equal(values_of(w.run, ".:input", "backward"), [torch.full((2, 3), 7.0)])
    assert_equal(values_of(w.run, ".:grad_output", "backward"), [torch.ones(2, 3)])
    assert calls_of(w.run, ".:grad_output", "forward") == list(reversed(range(times_before)))


@pytest.mark.parametrize("name", ["adjoint", "reversible", "hook_calls_module"])
@pytest.mark.parametrize("where", ["*:input", "{path}:input"], ids=["all", "alone"])
def test_values_inside_a_backward_are_those_that_plain_hooks_see(name: str, where: str) -> None:
    specimen = SPECIMENS[name]
    path = {"adjoint": "field.0", "reversible": "f", "hook_calls_module": "a"}[name]
    forward, backward = plain_inputs(specimen, path)
    model = specimen.build()
    with tt.watch(model, where.format(path=path)) as w:
        run_of(specimen, model)
    assert_equal(values_of(w.run, f"{path}:input", "forward"), forward)
    assert_equal(values_of(w.run, f"{path}:input", "backward"), backward)
    assert calls_of(w.run, f"{path}:input", "backward") == list(range(len(backward)))
    assert calls_of(w.run, f"{path}:input", "recompute") == []


def test_gradients_of_an_adjoint_solver_are_its_vector_jacobian_products() -> None:
    specimen = SPECIMENS["adjoint"]
    model, twin = specimen.build(), specimen.build()
    with tt.watch(model, "field:*") as w:
        run_of(specimen, model)
    # The same by hand: Euler to the end, then back.
    x = twin.first(specimen.inputs()[0][0]).detach()
    for _ in range(3):
        x = x + 0.25 * twin.field(x).detach()
    end = x.clone().requires_grad_()
    adjoint = torch.autograd.grad(default_loss(twin.last(end)), end)[0]  # type: ignore[arg-type]
    outgoing, incoming = [], []
    for _ in range(3):
        x = x.detach().requires_grad_()
        slope = twin.field(x)
        outgoing.append(0.25 * adjoint)
        incoming.append(torch.autograd.grad(slope, x, outgoing[-1])[0])
        x, adjoint = x - 0.25 * slope, adjoint + incoming[-1]
    for port, expected in (("grad_output", outgoing), ("grad_input", incoming)):
        found = list(w.run.records(f"field:{port}", phase="backward"))
        assert [record.call for record in found] == [0, 1, 2]
        assert {record.backward for record in found} == {0}
        assert_equal([record.value for record in found], expected)
        assert calls_of(w.run, f"field:{port}", "forward") == []


def test_gradients_of_a_reversible_block_are_those_of_the_plain_one() -> None:
    specimen = SPECIMENS["reversible"]
    model, twin = specimen.build().double(), specimen.build().double()
    x = specimen.inputs()[0][0].double()
    with tt.watch(model, ["f:grad_output", "g:grad_output"]) as w:
        default_loss(model(x)).backward()
    first, second = twin.first(x).chunk(2, -1)
    made = {"f": [], "g": []}  # type: ignore[var-annotated]
    for _ in range(2):
        made["f"].append(twin.f(second))
        first = first + made["f"][-1]
        made["g"].append(twin.g(first))
        second = second + made["g"][-1]
    loss = default_loss(twin.last(torch.cat([first, second], -1)))
    for path, outputs in made.items():
        right = torch.autograd.grad(loss, outputs[::-1], retain_graph=True)  # type: ignore[arg-type]
        found = values_of(w.run, f"{path}:grad_output", "backward")
        torch.testing.assert_close(found, list(right))


def test_numbers_inside_a_backward_begin_anew_with_each_step() -> None:
    module, x = linear(), rows()
    with tt.watch(module, ".:input") as w:
        for _ in range(2):
            hidden = module(x)
            hidden.register_hook(lambda g: nothing(module(g), module(g)))
            hidden.sum().backward()
            w.step()
    found = [(record.step, record.call) for record in w.run.records(phase="backward")]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_hook_on_what_a_reentrant_checkpoint_returns_is_not_computed_again() -> None:
    module, x = linear(), rows()
    with tt.watch(module, ".:*") as w:
        hidden = checkpoint(module, x, use_reentrant=True)
        hidden.register_hook(lambda g: nothing(module(g)))
        hidden.sum().backward()
    assert_equal(values_of(w.run, ".:input", "backward"), [torch.ones(2, 3)])
    assert_equal(values_of(w.run, ".:input", "recompute"), [x.detach()])
    assert calls_of(w.run, ".:grad_output", "forward") == [0]


def test_what_was_saved_inside_a_backward_is_recorded() -> None:
    module = linear()

    def after(x: Tensor, grad: Tensor) -> None:
        module(torch.full_like(grad, 7.0)).sum().backward()

    with tt.watch(module, ".:saved") as w:
        CallsInBackward.apply(module(rows()), nothing, after).sum().backward()
    sites = {str(record.site) for record in w.run.records(phase="backward")}
    assert sites == {".:saved[AddmmBackward0.mat1]"}
    assert torch.equal(values_of(w.run, *sites, "backward")[0], torch.full((2, 3), 7.0))  # type: ignore[call-arg]


def test_an_interrupt_inside_a_backward_leaves_nothing_behind() -> None:
    module, x = nn.Sequential(linear(), nn.Tanh()), rows()

    def interrupt(*_: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            raise KeyboardInterrupt

    handle = module[1].register_forward_pre_hook(interrupt)
    with tt.watch(module, "*:input,output,grad_output") as w:
        hidden = module(x)
        hidden.register_hook(lambda g: nothing(module(g)))
        with pytest.raises(KeyboardInterrupt):
            hidden.sum().backward()
        handle.remove()
        (module(x) * 2).sum().backward()
        right = module(x).detach()
    assert calls_of(w.run, ".:input", "backward") == [0]
    assert calls_of(w.run, ".:output", "backward") == []
    assert_equal(values_of(w.run, ".:output", "forward"), [right] * 3)
    assert torch.equal(w.run.get(".:grad_output", call=1), torch.full((2, 3), 2.0))


# --- custom checkpoints -----------------------------------------------------------------------


def checkpointed(block: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    hidden = x * 2
    for _ in range(2):
        hidden = ComputedAgain.apply(block, hidden)
    return hidden * 3


def test_a_custom_checkpoint_is_recognised_call_by_call() -> None:
    block, x = nn.Sequential(linear(0), nn.Tanh(), linear(1)), rows()
    with tt.watch(block, "*:output,grad_output") as w:
        checkpointed(block, x).sum().backward()
    hidden = x * 2
    first = block(hidden)
    second = block(first)
    right = torch.autograd.grad((second * 3).sum(), [second, first])
    assert calls_of(w.run, "0:output", "recompute") == [1, 0]
    assert calls_of(w.run, "2:output", "recompute") == [1, 0]
    assert not list(w.run.records(phase="backward"))
    torch.testing.assert_close(values_of(w.run, ".:grad_output", "forward"), list(right))
    assert w.absent == []


def test_custom_checkpoints_inside_one_another_are_recognised() -> None:
    inner, outer, x = linear(0), linear(1), rows()

    def segment(x: Tensor) -> Tensor:
        return outer(ComputedAgain.apply(inner, outer(x)))

    model = nn.ModuleList([inner, outer])
    with tt.watch(model, ["0:output,grad_output", "1:output,grad_output"]) as w:
        checkpointed(segment, x).sum().backward()
    assert calls_of(w.run, "0:output", "recompute") == [1, 1, 0, 0]
    assert calls_of(w.run, "1:output", "recompute") == [2, 3, 0, 1]
    assert calls_of(w.run, "1:grad_output", "forward") == [3, 2, 1, 0]
    assert not list(w.run.records(phase="backward"))


def test_another_call_after_the_same_one_is_not_computed_again() -> None:
    module, x = linear(), rows()

    def before(x: Tensor) -> None:
        module(x)
        module(x + 1)

    def after(x: Tensor, grad: Tensor) -> None:
        module(x)
        module(x - 1)
        module(x + 1)

    with tt.watch(module, ".:input") as w:
        CallsInBackward.apply(x * 1, before, after).sum().backward()
    assert calls_of(w.run, ".:input", "recompute") == [0]
    assert_equal(values_of(w.run, ".:input", "backward"), [x.detach() - 1, x.detach() + 1])


def test_memory_that_was_overwritten_is_no_sign_of_a_checkpoint() -> None:
    module, x = linear(), rows()

    class Solver(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            state = x.clone()
            for _ in range(3):
                state += 0.1 * module(state)
            ctx.state = state
            return state.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            module(ctx.state)
            return grad

    with tt.watch(module, ".:output") as w:
        Solver.apply(x).sum().backward()
    assert calls_of(w.run, ".:output", "recompute") == []
    assert calls_of(w.run, ".:output", "backward") == [0]


def test_a_module_that_ran_once_without_grad_is_not_taken_for_computed_again() -> None:
    module, x = linear(), rows()
    with torch.no_grad(), tt.watch(module, ".:*") as w:
        module(x)
        with torch.enable_grad():
            hidden = x * 2
            hidden.register_hook(lambda g: nothing(module(g)))
            hidden.sum().backward()
    assert calls_of(w.run, ".:input", "recompute") == []
    assert calls_of(w.run, ".:input", "backward") == [0]


# --- what a checkpoint runs again and cannot be identified ----------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_a_checkpoint_of_an_earlier_step_is_not_booked_on_calls_of_this(reentrant: bool) -> None:
    module, x = linear(), rows()
    with tt.watch(module, ".:output,grad_output") as w:
        hidden = checkpoint(module, x, use_reentrant=reentrant)
        w.step()
        with torch.no_grad():
            module(x)
        hidden.sum().backward()
    assert calls_of(w.run, ".:output", "recompute") == []
    assert calls_of(w.run, ".:output", "backward") == ([0] if reentrant else [])
    assert not list(w.run.records(".:grad_output", steps=1))
    reasons = [entry.reason for entry in w.absent]
    assert any("could not be determined" in reason and "(1 call)" in reason for reason in reasons)


def test_a_checkpoint_that_began_before_the_watch_is_reported_and_refused_by_an_edit() -> None:
    module, x = linear(), rows()
    hidden = checkpoint(module, x, use_reentrant=True)
    with tt.watch(module, ".:output,grad_output") as w:
        hidden.sum().backward()
    assert_equal(values_of(w.run, ".:grad_output", "backward"), [torch.ones(2, 3)])
    assert {str(entry.site) for entry in w.absent} == {".:output", ".:grad_output"}
    hidden = checkpoint(module, x, use_reentrant=True)
    unknown = pytest.raises(tt.EditError, match="which call it is could not be determined")
    with unknown, tt.edit(module, ".", lambda t: t * 2):
        hidden.sum().backward()


def amid_others(module: nn.Module, x: Tensor) -> Tensor:
    """A segment in which the module is not the first, so that no memory tells which call it is."""
    return checkpoint(lambda y: module(y.sin()).exp(), x, use_reentrant=False)


def test_an_edit_inside_of_checkpoints_knows_the_call_that_is_still_to_be_computed_again() -> None:
    module, x = linear(), rows()
    # The gradient of the bias is twice the gradient of what goes into the exponential.
    expected = [(2 * module(rows(seed).sin())).exp().detach() for seed in range(3)]
    with tt.edit(module, ".", tt.edits.scale(2.0)):
        for seed in range(3):
            module.zero_grad()
            amid_others(module, rows(seed)).sum().backward()
            torch.testing.assert_close(module.bias.grad, 2 * expected[seed].sum(0))
        module.zero_grad()
        first, _ = amid_others(module, x), amid_others(module, x)
        first.sum().backward()  # The other call was entered after the nodes of this were made.
        torch.testing.assert_close(module.bias.grad, 2 * expected[0].sum(0))


def test_of_two_calls_that_may_be_computed_again_an_edit_takes_neither() -> None:
    module, x = linear(), rows()
    with tt.edit(module, ".", tt.edits.scale(2.0)), pytest.raises(tt.EditError, match="which call"):
        _, second = amid_others(module, x), amid_others(module, x)
        second.sum().backward()


def test_calls_in_a_transform_are_reported_though_others_were_recorded() -> None:
    module, x = linear(), rows()
    with tt.watch(module, ".:output") as w:
        module(x)
        torch.func.vmap(module)(x)
        torch.func.vmap(module)(x)
    assert len(w.run) == 1
    (entry,) = w.absent
    assert "torch.func transform" in entry.reason and "(2 calls)" in entry.reason


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("num_nodes", [0, 50])
def test_checkpoints_of_several_threads_are_told_apart(reentrant: bool, num_nodes: int) -> None:
    model = nn.Sequential(linear(0), linear(1))
    for _ in range(num_nodes):
        rows().sum()  # Each thread numbers its nodes by itself; this one's run ahead.

    def train(seed: int) -> None:
        checkpoint(model, rows(seed), use_reentrant=reentrant).sum().backward()

    with tt.watch(model, "*:output,grad_output") as w:
        for seed in range(3):
            thread = threading.Thread(target=train, args=(seed,))
            thread.start()
            thread.join()
    for call in range(3):
        assert torch.equal(w.run.get("1", call=call), model(rows(call)).detach())
        if reentrant:
            again = w.run.get("1", call=call, phase="recompute")
            assert torch.equal(again, model(rows(call)).detach())
    assert calls_of(w.run, "1:grad_output", "forward") == [0, 1, 2]
    assert w.absent == []


def test_the_backward_of_another_thread_is_told_by_memory() -> None:
    model, made = linear(), list[Tensor]()
    with tt.watch(model, ".:output,grad_output") as w:
        for seed in range(3):
            thread = threading.Thread(
                target=lambda seed=seed: made.append(
                    checkpoint(model, rows(seed), use_reentrant=True).sum()
                )
            )
            thread.start()
            thread.join()
        for loss in reversed(made):
            loss.backward()
    assert calls_of(w.run, ".:output", "recompute") == [2, 1, 0]
    assert calls_of(w.run, ".:grad_output", "forward") == [2, 1, 0]


def test_a_module_that_its_own_hook_calls_has_the_same_numbers_in_every_watch() -> None:
    model, x = nn.Sequential(linear(), nn.Tanh()), rows()

    def call_once(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if args[0].requires_grad:
            module(args[0].detach() * 2)

    model[0].register_forward_hook(call_once)
    with tt.watch(model, "0:input,output") as both, tt.watch(model, "0:output") as one:
        model(x)
    inner = nn.functional.linear(x * 2, model[0].weight, model[0].bias).detach()  # type: ignore[arg-type]
    assert torch.equal(both.run.get("0", call=1), inner)
    assert torch.equal(one.run.get("0", call=1), inner)


@pytest.mark.parametrize(
    "kind", ["bool", "complex", "empty", "meta", "conj", "float8", "inference"]
)
def test_any_argument_may_be_looked_at(kind: str) -> None:
    with torch.inference_mode(kind == "inference"):
        odd = {
            "bool": torch.ones(4, dtype=torch.bool),
            "complex": torch.ones(4, dtype=torch.complex64),
            "empty": torch.ones(0),
            "meta": torch.ones(4, device="meta"),
            "conj": torch.ones(4, dtype=torch.complex64).conj(),
            "float8": torch.ones(4).to(torch.float8_e4m3fn),
            "inference": torch.ones(4),
        }[kind]
    module = nn.Identity()
    with tt.watch(module, ".:input") as w:
        hidden = CallsInBackward.apply(rows(), lambda x: module(odd), lambda x, grad: module(odd))
        hidden.sum().backward()
    is_known = kind not in ("meta", "conj")
    assert calls_of(w.run, ".:input", "recompute") == ([0] if is_known else [])
    assert calls_of(w.run, ".:input", "backward") == ([] if is_known else [0])


# --- edits ------------------------------------------------------------------------------------


def test_an_edit_inside_a_backward_is_told_so_and_counted_apart() -> None:
    module, x = linear(), rows()
    seen: list[tuple[str, int]] = []

    def double(tensor: Tensor, record: tt.Record) -> Tensor:
        seen.append((record.phase, record.call))
        return tensor * 2

    found: list[Tensor] = []
    with tt.edit(module, ".", double) as edit:
        hidden = module(module(x))
        hidden.register_hook(lambda g: found.append(module(g)))
        hidden.sum().backward()
    assert seen == [("forward", 0), ("forward", 1), ("backward", 0)]
    assert edit.calls == {".:output": {-1: 1, 0: 1, 1: 1}}
    assert_equal(found, [module(torch.ones(2, 3)).detach() * 2])


def test_chosen_calls_of_an_edit_are_calls_of_the_forward() -> None:
    module, x = linear(), rows()
    with tt.edit(module, ".", lambda t: t * 2, calls=0) as edit:
        hidden = module(x)
        hidden.register_hook(lambda g: nothing(module(g)))
        hidden.sum().backward()
    assert edit.calls == {".:output": {0: 1}}


def test_an_edit_that_only_fired_inside_a_backward_has_happened() -> None:
    module, x = linear(), rows()
    with tt.edit(module, ".", lambda t: t * 2) as edit:
        CallsInBackward.apply(x, nothing, lambda x, grad: module(grad)).sum().backward()
    assert edit.fired == {".:output": 1}


def test_a_gradient_edit_inside_a_backward_has_its_phase() -> None:
    module, phases = linear(), list[str]()

    def look(tensor: Tensor, record: tt.Record) -> None:
        phases.append(record.phase)

    def after(x: Tensor, grad: Tensor) -> None:
        module(grad).sum().backward()

    with tt.edit(module, ".:grad_output", look):
        CallsInBackward.apply(module(rows()), nothing, after).sum().backward()
    assert phases == ["backward", "forward"]


def test_a_patch_takes_the_call_of_the_same_phase() -> None:
    module, x = linear(), rows()
    found: list[Tensor] = []

    def step() -> None:
        hidden = module(x)
        hidden.register_hook(lambda g: found.append(module(g)))
        hidden.sum().backward()

    with tt.watch(module, ".:output") as w:
        step()
    with torch.no_grad():
        module.weight.add_(1)
    with tt.edit(module, ".", tt.edits.patch(w.run)):
        step()
    assert torch.equal(found[1], w.run.get(".", phase="backward"))
    assert not torch.equal(found[1], w.run["."])


def test_noise_inside_a_backward_is_not_that_of_the_forward() -> None:
    module, x = nn.Identity(), torch.zeros(2, 3, requires_grad=True)
    found: list[Tensor] = []
    with tt.edit(module, ".", tt.edits.noise(1.0)):
        hidden = module(x) * 1
        found.append(hidden.detach())
        hidden.register_hook(lambda g: found.append(module(torch.zeros_like(g))))
        hidden.sum().backward()
    assert not torch.equal(*found)


# --- what is said of them ---------------------------------------------------------------------


def test_statistics_are_of_the_forward_and_say_so() -> None:
    specimen = SPECIMENS["adjoint"]
    model = specimen.build()
    with tt.watch(model, "*:output", to=tt.Stats()) as w:
        run_of(specimen, model)
    assert w.run.stats("field:output").num_tensors == 3
    assert {str(entry.site) for entry in w.absent} == {
        f"field{end}:output" for end in ("", ".0", ".1")
    }
    assert all("inside a backward" in entry.reason for entry in w.absent)


def test_a_run_says_what_it_holds_of_a_backward(tmp_path: Path) -> None:
    module = linear()
    with tt.watch(module, ".:output") as w:
        CallsInBackward.apply(rows(), nothing, lambda x, grad: module(grad)).sum().backward()
    assert "1 record inside a backward, in phase='backward'" in repr(w.run)
    for ask in (w.run.get, w.run.cat, w.run.stats, lambda site: w.run.over_steps(site, "l2")):
        with pytest.raises(tt.SiteError, match="Others have phase='backward'"):
            ask(".")
    right = module(torch.ones(2, 3)).detach()
    assert torch.equal(w.run.get(".", phase="backward"), right)
    w.run.save(tmp_path / "run.safetensors")
    loaded = tt.open(tmp_path / "run.safetensors")
    assert torch.equal(loaded.get(".", phase="backward"), right)
    assert repr(loaded) == repr(w.run)


# --- modules without a mode -------------------------------------------------------------------


class RaisesForMode(nn.Linear):
    """A module whose own ``__getattr__`` raises another error than ``AttributeError``."""

    def __getattr__(self, name: str) -> Any:
        if name == "training":
            raise RuntimeError(name)
        return super().__getattr__(name)


def without_mode() -> nn.Module:
    model = nn.Sequential(RaisesForMode(3, 3), nn.ReLU(), linear())
    for module in (model, *model):
        del module.training
    return model


def edited(model: nn.Module, x: Tensor) -> None:
    with tt.edit(model, "*:output,grad_output", lambda t: t * 2):
        model(x).sum().backward()


def watched(model: nn.Module, x: Tensor, **how: Any) -> None:
    with tt.watch(model, "*:*", **how):
        model(x).sum().backward()


def offloaded(model: nn.Module, x: Tensor) -> None:
    with tt.offload(to="disk", model=model, min_bytes=0):
        model(x).sum().backward()


def frozen_features(model: nn.Module, x: Tensor) -> None:
    features = tt.features(model, "1", frozen=True)
    features(x)
    features.close()


@pytest.mark.parametrize(
    "use",
    [
        watched,
        lambda model, x: watched(model, x, to=tt.Stats()),
        edited,
        offloaded,
        frozen_features,
        lambda model, x: tt.verify(model, x),
        lambda model, x: tt.summary(model, x),
        lambda model, x: tt.saved_report(model, x),
        lambda model, x: tt.sweep(model, x, "1", tt.edits.scale(2.0), lambda out: out.sum()),
        lambda model, x: tt.advise_offload(model, lambda: model(x).sum().backward(), 1000),
    ],
)
def test_a_module_without_a_mode_works(use: Callable[..., Any]) -> None:
    model, x = without_mode(), rows()
    use(model, x)
    assert not any("training" in vars(module) for module in model.modules())
    assert model(x).shape == (2, 3)
