"""Other people's hooks on modules do the same, in the same order, with torchtap attached to them.

Written anew after PyTorch's ``test_module_hooks``. Each program notes what its hooks see, once in
PyTorch alone and once attached to, before or after the hooks were put there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import bits
import pytest
import torch
from models import seeded
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules

import torchtap as tt
from torchtap.core.tree import leaves
from torchtap.testing import Net

Log = list[Any]
Program = Callable[[nn.Module, Log], Callable[[], object]]
"""Puts hooks on a model; what it returns runs the model."""

MODES: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "watched": lambda model: tt.watch(model, "*:*"),
    "measured": lambda model: tt.watch(model, "*:*", to=tt.Stats()),
    "edited": lambda model: tt.edit(model, "*:*", lambda t: None, missing="ignore"),
    "offloaded": lambda model: tt.offload("disk", model=model, min_bytes=0, missing="ignore"),
}


def network() -> nn.Module:
    """A child that takes a keyword, and one that can be told to raise."""

    def body(m: Any, x: Tensor, *, shift: Tensor) -> Tensor:
        return m.last(m.inner(m.first(x), scale=shift))

    def inner(m: Any, x: Tensor, *, scale: Tensor) -> Tensor:
        if bool(scale > 100):
            raise ArithmeticError("too large")
        return m.act(x) * scale

    def make() -> nn.Module:
        return Net(
            body, first=nn.Linear(3, 3), inner=Net(inner, act=nn.Tanh()), last=nn.Linear(3, 2)
        )

    return seeded(make)


def x() -> Tensor:
    return torch.arange(6.0).view(2, 3).cos().requires_grad_()


def step(model: nn.Module, log: Log) -> Callable[[], object]:
    """A forward and a backward; what they leave behind."""

    def run() -> None:
        given, shift = x(), torch.tensor(2.0, requires_grad=True)
        output = model(given, shift=shift)
        output.square().sum().backward()
        log.append(("output", bits.bits(output), bits.bits(given.grad), bits.bits(shift.grad)))
        log.append([bits.bits(param.grad) for param in model.parameters()])

    return run


def note(log: Log, name: str, *values: Any) -> None:
    """Who was called, with which tensors."""
    log.append((name, [(leaf, bits.bits(tensor)) for leaf, tensor in leaves(list(values))]))


# --- programs ---------------------------------------------------------------------------------


def forward_hooks(model: Any, log: Log) -> Callable[[], object]:
    for name, module in model.named_modules():
        for prepend, kwargs in itertools.product((False, True), repeat=2):
            who = f"{name} {prepend} {kwargs}"
            how = {"prepend": prepend, "with_kwargs": kwargs}
            module.register_forward_pre_hook(
                lambda m, *given, who=who: note(log, f"pre {who}", *given), **how
            )
            module.register_forward_hook(
                lambda m, *given, who=who: note(log, f"post {who}", *given), **how
            )
    return step(model, log)


def hooks_that_replace(model: Any, log: Log) -> Callable[[], object]:
    model.first.register_forward_pre_hook(lambda m, args: (args[0] * 3,))
    model.first.register_forward_pre_hook(lambda m, args: args[0] + 1)
    model.inner.register_forward_pre_hook(
        lambda m, args, kwargs: ((args[0].clone(),), {"scale": kwargs["scale"] + 1}),
        with_kwargs=True,
    )
    model.inner.register_forward_hook(lambda m, args, output: output.sin())
    model.last.register_forward_hook(lambda m, args, output: output * 2, prepend=True)
    return step(model, log)


def hooks_that_are_always_called(model: Any, log: Log) -> Callable[[], object]:
    for path in ("", "inner"):
        model.get_submodule(path).register_forward_hook(
            lambda m, args, output, path=path: note(log, f"always {path}", args, output),
            always_call=True,
        )
        model.get_submodule(path).register_forward_hook(
            lambda m, args, output, path=path: note(log, f"not always {path}", args, output)
        )

    def run() -> None:
        with pytest.raises(ArithmeticError, match="too large"):
            model(x(), shift=torch.tensor(200.0))
        step(model, log)()

    return run


def backward_hooks(model: Any, log: Log) -> Callable[[], object]:
    for name, module in model.named_modules():
        module.register_full_backward_pre_hook(
            lambda m, out, name=name: note(log, f"pre {name}", out)
        )
        module.register_full_backward_hook(
            lambda m, into, out, name=name: note(log, f"back {name}", into, out)
        )
    model.last.register_full_backward_pre_hook(lambda m, out: (out[0] * 2,), prepend=True)
    model.first.register_full_backward_hook(lambda m, into, out: (into[0] + 1,))
    return step(model, log)


def hooks_that_remove_themselves(model: Any, log: Log) -> Callable[[], object]:
    handles: dict[Any, Any] = {}

    def once(name: str, m: nn.Module, *given: Any) -> None:
        note(log, name, *given)
        handles.pop(name).remove()

    for name, register in {
        "pre": model.inner.register_forward_pre_hook,
        "post": model.inner.register_forward_hook,
        "back": model.inner.register_full_backward_hook,
    }.items():
        handles[name] = register(partial(once, name))
        register(lambda m, *given, name=name: note(log, f"stays {name}", *given))

    def run() -> None:
        for _ in range(2):
            step(model, log)()

    return run


def hooks_that_put_hooks(model: Any, log: Log) -> Callable[[], object]:
    def enter(m: Any, args: Any) -> None:
        note(log, "enter", args)
        m.last.register_forward_hook(lambda m, args, output: note(log, "late", output))

    model.register_forward_pre_hook(enter)

    def run() -> None:
        for _ in range(2):
            step(model, log)()

    return run


def hooks_of_all_modules(model: Any, log: Log) -> Callable[[], object]:
    def run() -> None:
        with contextlib.ExitStack() as stack:
            for name, register in {
                "pre": of_all_modules.register_module_forward_pre_hook,
                "post": of_all_modules.register_module_forward_hook,
                "back pre": of_all_modules.register_module_full_backward_pre_hook,
                "back": of_all_modules.register_module_full_backward_hook,
            }.items():
                handle = register(
                    lambda m, *given, name=name: note(log, f"{name} {type(m).__name__}", *given)
                )
                stack.callback(handle.remove)
            step(model, log)()

    return run


def hooks_on_tensors(model: Any, log: Log) -> Callable[[], object]:
    def leaving(m: Any, args: Any, output: Tensor) -> None:
        output.register_hook(lambda g: note(log, "tensor", g))
        output.register_hook(lambda g: g * 2)
        output.register_hook(lambda g: note(log, "tensor later", g))

    model.inner.register_forward_hook(leaving)
    model.first.weight.register_hook(lambda g: note(log, "parameter", g))
    model.first.weight.register_post_accumulate_grad_hook(lambda p: note(log, "summed", p.grad))
    return step(model, log)


def hooks_on_states(model: Any, log: Log) -> Callable[[], object]:
    model.register_state_dict_pre_hook(lambda m, prefix, keep: log.append(("pre", prefix, keep)))
    model.register_state_dict_post_hook(
        lambda m, state, prefix, meta: log.append(("post", prefix, sorted(state)))
    )
    model.register_load_state_dict_pre_hook(
        lambda m, state, prefix, *rest: log.append(("load", prefix, sorted(state)))
    )
    model.register_load_state_dict_post_hook(lambda m, keys: log.append(("loaded", list(keys))))

    def run() -> None:
        step(model, log)()
        state = model.state_dict()
        log.append(list(state))
        model.load_state_dict({name: value * 2 for name, value in state.items()})
        step(model, log)()

    return run


def hooks_that_raise(model: Any, log: Log) -> Callable[[], object]:
    def fails(m: Any, *given: Any) -> None:
        raise LookupError("from a hook")

    def run() -> None:
        for register in (
            model.inner.register_forward_pre_hook,
            model.inner.register_forward_hook,
            model.inner.register_full_backward_hook,
        ):
            handle = register(fails)
            with pytest.raises(LookupError, match="from a hook"):
                step(model, log)()
            handle.remove()
        model.zero_grad()
        step(model, log)()

    return run


PROGRAMS: tuple[Program, ...] = (
    forward_hooks,
    hooks_that_replace,
    hooks_that_are_always_called,
    backward_hooks,
    hooks_that_remove_themselves,
    hooks_that_put_hooks,
    hooks_of_all_modules,
    hooks_on_tensors,
    hooks_on_states,
    hooks_that_raise,
)
every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
every_mode = pytest.mark.parametrize("mode", MODES)


# --- claims -----------------------------------------------------------------------------------


def plain(program: Program) -> Log:
    log: Log = []
    program(network(), log)()
    assert log
    return log


@every_mode
@every_program
def test_hooks_put_before_attaching_see_the_same(program: Program, mode: str) -> None:
    log: Log = []
    model = network()
    run = program(model, log)
    with MODES[mode](model):
        run()
    assert log == plain(program)


@every_mode
@every_program
def test_hooks_put_after_attaching_see_the_same(program: Program, mode: str) -> None:
    log: Log = []
    model = network()
    with MODES[mode](model):
        program(model, log)()
    assert log == plain(program)


@every_mode
@every_program
def test_the_hooks_of_the_user_stay_and_no_other_does(program: Program, mode: str) -> None:
    def tables(model: nn.Module) -> dict[str, int]:
        return {name: len(found) for name, found in bits.hooks(model).items()}

    alone, attached = network(), network()
    program(alone, [])()
    with MODES[mode](attached):
        program(attached, [])()
    assert tables(attached) == tables(alone)


@every_mode
def test_closing_inside_the_hook_of_another_changes_nothing(mode: str) -> None:
    def run(*, is_attached: bool) -> Log:
        log: Log = []
        model = network()
        held = MODES[mode](model) if is_attached else contextlib.nullcontext()
        model.inner.register_forward_hook(lambda m, args, output: note(log, "before", output))
        model.inner.register_forward_hook(lambda *_: held.__exit__(None, None, None))
        model.inner.register_forward_hook(lambda m, args, output: note(log, "after", output))
        with held:
            step(model, log)()
        return log

    assert run(is_attached=True) == run(is_attached=False)
