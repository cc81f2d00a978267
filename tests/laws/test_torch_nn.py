"""PyTorch's own tests of ``torch.nn``, as they are in the wheel, on modules that are attached to.

``torch.testing`` brings the tests of every module with it: against reference functions, with
non-contiguous tensors, pickled, in place, in other dtypes, by gradcheck and gradgradcheck. Each
module is attached to as soon as it is made; the verdict has to be that of PyTorch alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import module_db
import pytest
import torch
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.testing._internal.common_nn import (
    CriterionTest,
    NewModuleTest,
    NNTestCase,
    criterion_tests,
    get_new_module_tests,
    module_tests,
)

import torchtap as tt

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Of modules and arguments that are old.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

Attach = Callable[[nn.Module], AbstractContextManager[Any]]
EDITED = ["*:input", "*:output"]
"""Edits of gradients are refused, with a message, where gradcheck tries a batch of gradients."""
MODES: dict[str, Attach] = {
    "watched": lambda module: tt.watch(module, "*:*"),
    "measured": lambda module: tt.watch(module, "*:*", to=tt.Stats()),
    "edited by None": lambda module: tt.edit(module, EDITED, lambda t: None, missing="ignore"),
    "offloaded": lambda module: tt.offload("disk", model=module, min_bytes=0, missing="ignore"),
}


class Case(NNTestCase):
    """How PyTorch's ``test_nn`` runs a module."""

    def _forward(self, module: nn.Module, input: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            return module(*input) if isinstance(input, tuple) else module(input)

    def _backward(
        self, module: nn.Module, input: Any, output: Tensor, grad_output: Any, create_graph: Any = 0
    ) -> Any:
        output.backward(grad_output, retain_graph=True, create_graph=bool(create_graph))
        if isinstance(input, tuple):
            return tuple(None if i.grad is None else i.grad.data for i in input)
        return None if input.grad is None else input.grad.data

    def _forward_criterion(
        self, criterion: nn.Module, input: Any, target: Any, extra_args: tuple[Any, ...] = ()
    ) -> Any:
        given = input if isinstance(input, tuple) else (input,)
        return criterion(*given, target, *extra_args)

    def _zero_grad_parameters(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                with torch.no_grad():
                    parameter.grad.zero_()
                parameter.grad.detach_()

    def _get_parameters(self, module: nn.Module) -> Any:
        parameters = list(module.parameters())
        return parameters, [p.grad for p in parameters]


def made(attach: Attach, attached: contextlib.ExitStack, constructor: Any) -> Any:
    """The constructor, whose modules are attached to until the test ends."""

    @functools.wraps(constructor)
    def construct(*args: Any, **kwargs: Any) -> nn.Module:
        module: nn.Module = constructor(*args, **kwargs)
        attached.enter_context(attach(module))
        return module

    return construct


def cases() -> dict[str, dict[str, Any]]:
    """PyTorch's descriptions of its tests, by name; criteria are told by their target."""
    found: dict[str, dict[str, Any]] = {}
    for given in (*module_tests, *get_new_module_tests(), *criterion_tests):
        constructor = given.get("constructor") or getattr(nn, given["module_name"])
        name = given.get("fullname") or constructor.__name__
        unique = name if not given.get("desc") else f"{name}_{given['desc']}"
        while unique in found:
            unique += "_"
        found[unique] = {**given, "constructor": constructor}
    return found


def run(given: dict[str, Any], attach: Attach) -> str | None:
    """PyTorch's test; what it says, or ``None`` where it passes."""
    of_criterion = any(key.startswith("target") for key in given)
    with contextlib.ExitStack() as attached:
        construct = made(attach, attached, given["constructor"])
        kind = CriterionTest if of_criterion else NewModuleTest
        test = kind(**{**given, "constructor": construct})
        with fixed_seed():
            try:
                test(Case())
            except (AssertionError, RuntimeError, ValueError, TypeError, AttributeError) as error:
                return f"{type(error).__name__}: {error}"
    return None


CASES = module_db.seeded_by("cases of torch.nn", cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_test_of_pytorch_says_the_same_attached_to(name: str) -> None:
    plain = run(CASES[name], lambda module: contextlib.nullcontext())
    found = {mode: run(CASES[name], attach) for mode, attach in MODES.items()}
    assert {mode: said for mode, said in found.items() if said != plain} == {}
    if plain is not None:
        pytest.skip(f"it fails in PyTorch alone: {plain}")
