"""Every operator of PyTorch's ``op_db`` inside a module: attached to or not, the same to the bit.

Forward, backward and double backward. What is recorded is compared with clones of plain hooks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import bits
import pytest
import torch
from bits import content
from op_samples import Op, OpSample, operators, samples
from random_numbers import fixed_seed
from torch import Tensor, nn
from truth import _argument_leaves, _leaves

import torchtap as tt

Attach = Callable[[nn.Module], AbstractContextManager[Any]]
Seen = list[tuple[str, str, Any]]
"""Port, leaf and content of each value, in the order in which they flowed."""


def edited(module: nn.Module) -> AbstractContextManager[Any]:
    """An edit that changes nothing, at all ports where an operator of this kind can be edited.

    The gradient of a tensor that is overwritten comes in two parts in a second backward, which is
    refused.
    """
    ports = "input,output" if getattr(module, "in_place", False) else "*"
    return tt.edit(module, f"*:{ports}", lambda t: None, missing="ignore")


MODES: dict[str, Attach] = {
    "watched": lambda module: tt.watch(module, "*:*"),
    "watched with copies": lambda module: tt.watch(module, "*:*", copy="always"),
    "measured": lambda module: tt.watch(module, "*:*", to=tt.Stats()),
    "edited by None": edited,
    "offloaded": lambda module: tt.offload("disk", model=module, min_bytes=0, missing="ignore"),
    "offloaded in a block": lambda module: tt.offload("disk", min_bytes=0, missing="ignore"),
}
OPERATORS = operators()
UNINITIALIZED = [name for name in OPERATORS if "empty" in name.split("_")]

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Deprecated and beta operators.
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
every_operator = pytest.mark.parametrize("name", OPERATORS)
every_operator_in_place = pytest.mark.parametrize(
    "name",
    [name for name, info in OPERATORS.items() if info.inplace_variant],  # type: ignore[truthy-function]
)


# --- running ----------------------------------------------------------------------------------


def loss_of(output: Any) -> Tensor | None:
    """A scalar whose gradient depends on the output, so that a second backward comes by it."""
    total: Tensor | None = None
    for _, leaf in _leaves(output):
        if not leaf.requires_grad:
            continue
        dense = leaf.to_dense() if leaf.layout != torch.strided else leaf
        real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        places = torch.arange(real.numel(), dtype=torch.float64).cos().view(real.shape)
        term = (real.double() ** 2 * places).sum()
        total = term if total is None else total + term
    return total


def run(sample: OpSample, attach: Attach = contextlib.nullcontext) -> tuple[bits.Facts, Any]:
    """Forward, backward, double backward; what can be seen of it, and what was attached.

    An exception of the operator's backward is one of the facts.
    """
    module, args, kwargs = sample.build()
    wanted = [tensor for _, tensor in _leaves([args, kwargs]) if tensor.requires_grad]
    if isinstance(module, Op) and module.in_place:
        args = (args[0].clone(), *args[1:])
    found: bits.Facts = {}
    with fixed_seed():
        flowed: list[Tensor] = []
        with attach(module) as held:
            try:
                _observe(sample, module, args, kwargs, wanted, found, flowed)
            except RuntimeError as error:
                found["raised"] = f"{type(error).__name__}: {str(error).splitlines()[0]:.99}"
        found["random numbers"] = torch.get_rng_state().numpy().tobytes()
        found["hooks left"] = [len(tensor._backward_hooks or ()) for tensor in flowed]
    return found, held


def _observe(
    sample: OpSample,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: list[Tensor],
    found: bits.Facts,
    flowed: list[Tensor],
) -> None:
    output = module(*args, **kwargs)
    flowed += [tensor for _, tensor in _leaves([args, kwargs, output])]
    for leaf, tensor in _leaves(output):
        found[f"output {leaf}"] = bits.bits(tensor), bits.nature(tensor)
    loss = loss_of(sample.process(output)) if wanted else None
    if loss is not None:
        gradients = torch.autograd.grad(
            loss, wanted, create_graph=sample.has_gradgrad, allow_unused=True
        )
        found |= {f"gradient {n}": laid_out(g) for n, g in enumerate(gradients)}
        again = loss_of([g for g in gradients if g is not None]) if sample.has_gradgrad else None
        if again is not None:
            second = torch.autograd.grad(again, wanted, allow_unused=True)
            found |= {f"gradgradient {n}": laid_out(g) for n, g in enumerate(second)}
    for leaf, tensor in _leaves([args, kwargs]):
        found[f"argument {leaf}"] = bits.bits(tensor), bits.nature(tensor)


def laid_out(tensor: Tensor | None) -> Any:
    """Content and strides, those of dims of size 1 left out: they mean nothing."""
    if tensor is None or tensor.layout != torch.strided:
        return bits.bits(tensor)
    strides = [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return content(tensor), strides


# --- what flows, by plain hooks ---------------------------------------------------------------


@contextlib.contextmanager
def plain_hooks(module: nn.Module) -> Any:
    """Hooks of PyTorch that note inputs, outputs and the gradients of outputs."""
    seen: Seen = []

    def note(port: str, leaf: str, tensor: Tensor) -> None:
        seen.append((port, leaf, content(tensor)))

    def entering(module: nn.Module, args: Any, kwargs: Any) -> None:
        for leaf, tensor in _argument_leaves(args, kwargs):
            note("input", leaf, tensor)

    def leaving(module: nn.Module, args: Any, output: Any) -> None:
        for leaf, tensor in _leaves(output):
            note("output", leaf, tensor)
            if tensor.requires_grad:
                tensor.register_hook(functools.partial(arriving, leaf))

    def arriving(leaf: str, gradient: Tensor | None) -> None:
        if gradient is not None:  # PyTorch calls hooks for gradients that are not defined, too.
            note("grad_output", leaf, gradient)

    module.register_forward_pre_hook(entering, with_kwargs=True)
    module.register_forward_hook(leaving)
    yield seen


def recorded(watch: tt.Watch) -> Seen:
    """Records of a watch in the form in which the plain hooks note them."""
    return [
        (record.site.port, record.site.leaf or "", content(record.value))
        for record in watch.run.records()
        if record.site.port in ("input", "output", "grad_output")
    ]


def wrong_records(watch: tt.Watch, right: Seen) -> set[str]:
    """Ports and leaves where a record is not what the plain hooks have seen."""
    found = recorded(watch)
    places = {seen[:2] for seen in (*found, *right)}
    return {
        f"record of {' '.join(place)}"
        for place in places
        if [seen for seen in found if seen[:2] == place] != [s for s in right if s[:2] == place]
    }


def wrong_gradients(watch: tt.Watch, plain: bits.Facts) -> set[str]:
    """Records of the first backward that are no gradient of an argument, by autograd alone.

    Where an argument is used several times, its parts may be summed in another order.
    """
    right = [
        fact[0]
        for name, fact in plain.items()
        if name.startswith("gradient ") and fact is not None and len(fact) == 2
    ]
    return {
        f"record of grad_input {record.site.leaf or ''}"
        for record in watch.run.records()
        if record.site.port == "grad_input" and record.backward == 0
        if record.value.layout == torch.strided
        if not any(is_near(content(record.value), one) for one in right)
    }


def is_near(left: Any, right: Any) -> bool:
    """Equal but for rounding."""
    (*kind, found), (*other_kind, wanted) = left, right
    if kind != other_kind or not found:
        return bool(left == right)
    found, wanted = (torch.frombuffer(bytearray(data), dtype=kind[0]) for data in (found, wanted))
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-6, equal_nan=True)


# --- the law ----------------------------------------------------------------------------------


def broken(sample: OpSample) -> list[str] | None:
    """Differences of attached from plain; ``None`` where two plain runs differ."""
    plain, _ = run(sample)
    if bits.differences(plain, run(sample)[0]):
        return None
    _, right = run(sample, plain_hooks)
    wrong = []
    for mode, attach in MODES.items():
        facts, held = run(sample, attach)
        forgiven = bits.without_nature if mode == "edited by None" else dict
        different = set(bits.differences(forgiven(plain), forgiven(facts)))
        if "raised" in different:
            different = {f"raised {facts.get('raised')} (plain: {plain.get('raised')})"}
        elif mode.startswith("watched"):
            different |= wrong_records(held, right)
            different |= wrong_gradients(held, plain) if "raised" not in plain else set()
        wrong += [f"{sample.id} {mode}: {what}" for what in sorted(different)]
    return wrong


def check(
    name: str, change: Callable[[OpSample], OpSample] = lambda sample: sample, **which: Any
) -> None:
    if name in UNINITIALIZED:
        pytest.skip("it returns memory that nothing has written")
    wrong, unsteady = [], []
    for sample in samples(OPERATORS[name], **which):
        found = broken(change(sample))
        unsteady += [sample.id] * (found is None)
        wrong += found or []
    assert wrong == []
    if unsteady:
        pytest.skip(f"two plain runs differ: {', '.join(unsteady)}")


@pytest.mark.slow
@every_operator
def test_an_operator_gives_the_same_bits_attached_to(name: str) -> None:
    check(name, most=1)


class Kind(Tensor):
    """Plain in all but its class, so hooks on it are put by another way."""


def of_kind(sample: OpSample) -> OpSample:
    """The sample with arguments of a tensor subclass."""

    def kind(value: Any) -> Any:
        if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested:
            return value.detach().as_subclass(Kind).requires_grad_(value.requires_grad)
        if isinstance(value, tuple | list):
            return type(value)(kind(part) for part in value)
        return value

    def build() -> Any:
        module, args, kwargs = sample.build()
        return module, kind(args), {name: kind(value) for name, value in kwargs.items()}

    return dataclasses.replace(sample, id=f"{sample.id}-subclass", build=build)


@pytest.mark.parametrize("name", ["add", "mul", "split", "nn.functional.linear", "view", "exp"])
def test_an_operator_gives_the_same_bits_of_a_tensor_subclass(name: str) -> None:
    check(name, of_kind, most=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(OPERATORS)[::4])
def test_more_operators_give_the_same_bits_of_a_tensor_subclass(name: str) -> None:
    check(name, of_kind, most=1)


@pytest.mark.slow
@every_operator
def test_an_operator_gives_the_same_bits_in_every_dtype(name: str) -> None:
    check(name, most=2, num_dtypes=3)


@pytest.mark.slow
@every_operator_in_place
def test_an_operator_that_overwrites_gives_the_same_bits_attached_to(name: str) -> None:
    check(name, most=2, in_place=True)
