"""Edits do what is asked, exactly, and nothing else: over the zoo and torch's own samples.

What an edit should do is written by hand into a twin: its forwards are wrapped, or its tensors
copied and differentiated through (``truth.py``). Nothing of torchtap is in the twin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import bits
import module_db
import pytest
import torch
from module_db import Sample
from random_numbers import fixed_seed
from torch import Tensor, nn
from truth import Key, _mapped, _no_checkpoints, _Twin, _widened, _widened_leaf

import torchtap as tt
from torchtap.core.tree import leaves
from torchtap.testing import Specimen, default_loss, zoo

PORTS = ("input", "output", "grad_input", "grad_output", "param_grad")
SPECIMENS = {specimen.name: specimen for specimen in zoo()}
Build = Callable[[], tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]

every_specimen = pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=str)


def spread(num: int) -> list[Sample]:
    """A few samples of each module of torch, in float32 so that rounding would be seen."""
    return list(module_db.samples((torch.float32,), most=num))


def by_module(samples: list[Sample]) -> list[Any]:
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    return [pytest.param(chosen, id=name) for name, chosen in found.items()]


every_module = pytest.mark.parametrize("samples", by_module(spread(1)))


def builder(specimen: Specimen) -> Build:
    return lambda: (specimen.build(), *specimen.inputs())


def observed(build: Build, attach: Callable[[nn.Module], Any] | None = None) -> bits.Facts:
    """Everything that one step leaves behind; ``attach`` puts edits on."""
    model, args, kwargs = build()
    with fixed_seed():
        held = None if attach is None else attach(model)
        found = bits.observe(model, args, kwargs, default_loss)
        if held is not None:
            held.close()
    return found


OVERWRITTEN = {
    "flatten_changed",
    "transpose_changed",
    "slice_changed",
    "slice_changed_base_used",
    "base_changed_slice_used",
}
"""The caller writes into a view of a module's argument, after the module has returned."""
ANOTHER_ORDER = {"recurrent_loop"}
"""Three uses of one tensor: an identity before a module changes the order in which they add up."""


HELD_BY_OBJECTS = {
    ("object_beside_a_tensor", "output"),
    ("cache_through_layers", "input"),
    ("cache_through_layers", "output"),
}
"""Some tensors there are attributes of plain objects: left as they are, and said to be."""


# --- off is off -------------------------------------------------------------------------------


def everything(model: nn.Module) -> list[str]:
    has_params = any(True for _ in model.parameters())
    return [f"*:{port}" for port in PORTS if port != "param_grad" or has_params]


@every_specimen
def test_an_edit_whose_step_has_not_come_changes_nothing(specimen: Specimen) -> None:
    build = builder(specimen)

    def attach(model: nn.Module) -> tt.Edit:
        return tt.edit(model, everything(model), tt.edits.zero(), steps=7, missing="ignore")

    assert bits.differences(observed(build), observed(build, attach)) == []


@every_specimen
def test_an_edit_that_is_closed_is_as_if_it_had_never_been(specimen: Specimen) -> None:
    def attach(model: nn.Module) -> None:
        tt.edit(model, everything(model), tt.edits.zero(), missing="ignore").close()

    build = builder(specimen)
    assert bits.differences(observed(build), observed(build, attach)) == []


@every_specimen
def test_nothing_of_an_edit_stays(specimen: Specimen) -> None:
    model, args, kwargs = builder(specimen)()
    given = [tensor for _, tensor in leaves([args, kwargs])]
    before = bits.hooks(model, given)
    output = None
    edit = tt.edit(model, everything(model), lambda t: t, missing="ignore")
    try:
        output = model(*args, **kwargs)
    except ValueError:
        assert specimen.raises is ValueError
    with contextlib.suppress(tt.EditError) if specimen.name in OVERWRITTEN else fixed_seed():
        edit.close()
    assert bits.differences(before, bits.hooks(model, given)) == []
    assert not any(bool(tensor._backward_hooks) for _, tensor in leaves([output]))


@every_specimen
def test_a_gradient_edit_that_is_closed_before_the_backward_changes_nothing(
    specimen: Specimen,
) -> None:
    def run(*, is_edited: bool) -> bits.Facts:
        model, args, kwargs = builder(specimen)()
        with fixed_seed():
            where = "*:grad_input,grad_output"
            edit = tt.edit(model, where, tt.edits.zero(), missing="ignore") if is_edited else None

            def loss(output: Any) -> Tensor | None:
                if edit is not None:
                    edit.close()
                return default_loss(output)

            found = bits.observe(model, args, kwargs, loss)
        return bits.without_nature(found)

    if specimen.name in OVERWRITTEN | ANOTHER_ORDER:
        return  # See below.
    assert bits.differences(run(is_edited=False), run(is_edited=True)) == []


# --- the identity is the identity -------------------------------------------------------------

IDENTITIES: dict[str, Callable[..., Tensor | None]] = {
    "the same": lambda tensor, record: tensor,
    "nothing": lambda tensor, record: None,
}


def cannot_follow(specimen: Specimen, port: str) -> bool:
    if port == "grad_input":
        return specimen.name in OVERWRITTEN
    return port == "grad_output" and specimen.name == "base_changed_slice_used"


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=list(IDENTITIES))
@every_specimen
def test_the_identity_changes_nothing(specimen: Specimen, identity: Callable[..., Any]) -> None:
    build = builder(specimen)
    plain = bits.without_nature(observed(build))
    for where in everything(specimen.build()):
        port = where[2:]

        def attach(model: nn.Module, where: str = where) -> tt.Edit:
            return tt.edit(model, where, identity, missing="ignore")

        if cannot_follow(specimen, port):
            with pytest.raises(tt.EditError, match="overwritten in place"):
                observed(build, attach)
        elif port != "grad_input" or specimen.name not in ANOTHER_ORDER:
            edited = bits.without_nature(observed(build, attach))
            assert bits.differences(plain, edited) == [], port


@every_module
def test_the_identity_changes_nothing_in_a_module_of_torch(samples: list[Sample]) -> None:
    for sample in samples:
        with module_db.quiet():
            plain = bits.without_nature(observed(sample.build))
            for identity in IDENTITIES.values():

                def attach(model: nn.Module, identity: Any = identity) -> tt.Edit:
                    where = [one for one in everything(model) if one != "*:grad_input"]
                    return tt.edit(model, where, identity, missing="ignore")

                edited = bits.without_nature(observed(sample.build, attach))
                assert bits.differences(plain, edited) == [], sample.id


@every_module
def test_the_identity_of_gradients_through_a_module_of_torch_is_that_but_for_rounding(
    samples: list[Sample],
) -> None:
    # A residual and a branch add up in another order.
    for sample in samples:
        with module_db.quiet():
            plain, _ = results(sample.build, lambda model: None)
            edited, _ = results(
                sample.build,
                lambda model: tt.edit(model, "*:grad_input", lambda t: t, missing="ignore"),
            )
        assert_equal(edited, plain, 1e-5)


SHARED = {
    "slice_changed_base_used",
    "base_changed_slice_used",
    "chunks_changed",
}
"""A module's return shares memory with what the caller reads; a product does not."""


@pytest.mark.parametrize("port", ["output", "grad_output", "grad_input", "param_grad"])
@every_specimen
def test_doubling_and_halving_is_the_identity(specimen: Specimen, port: str) -> None:
    build = builder(specimen)
    if cannot_follow(specimen, port) or f"*:{port}" not in everything(specimen.build()):
        return
    if specimen.name in (SHARED if port == "output" else ANOTHER_ORDER):
        return

    def attach(model: nn.Module) -> tt.Edit:
        there_and_back = [tt.edits.scale(2.0), tt.edits.scale(0.5)]
        return tt.edit(model, f"*:{port}", there_and_back, missing="ignore")

    plain, edited = values(observed(build)), values(observed(build, attach))
    assert bits.differences(plain, edited) == []


def values(facts: bits.Facts) -> bits.Facts:
    """Without strides: a product of an expanded tensor is laid out in its own way."""
    return {
        name: (*fact[:2], fact[3]) if name.startswith(("output", "gradient")) and fact else fact
        for name, fact in bits.without_nature(facts).items()
        if not (name.startswith("gradient") and fact and fact[0] == "sparse")
    }


# --- an edit equals the same change in the model's own code -----------------------------------


def bent(tensor: Tensor) -> Tensor:
    """Not linear, so that a gradient changed in parts, twice or in another place would be seen."""
    if tensor.is_floating_point() or tensor.is_complex():
        return (tensor + 0.25 * tensor * tensor).to(tensor.dtype)
    return tensor


def wrapped_by_hand(model: nn.Module, port: str) -> None:
    """Write ``y = bent(y)`` into the forward of every module."""

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def before(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _mapped((args, kwargs), bent)
            return forward(*args, **kwargs)

        def after(*args: Any, **kwargs: Any) -> Any:
            return _mapped(forward(*args, **kwargs), bent)

        return before if port == "input" else after

    for module in model.modules():
        module.forward = wrap(module.forward)


class GradientTwin(_Twin):
    """Hands every module copies, whose gradients are changed by a tensor hook."""

    def __init__(self, model: nn.Module, port: str, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model)
        self._port = {"grad_input": "input", "grad_output": "output"}[port]
        self._change = change

    def passes_over(self) -> bool:
        return False

    def _copied(self, tensor: Tensor, keys: list[Key]) -> Tensor:
        kept = tensor.clone()
        if keys[0].port == self._port:
            kept.register_hook(self._change)
        given = kept.clone()
        self._stands_for(given, self._origin(tensor))
        return given


def wide(specimen: Specimen) -> Build:
    """In float64, so that what is left of a difference is a mistake."""

    def build() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
        model, args, kwargs = builder(specimen)()
        if specimen.double:
            model._apply(_widened)
            args, kwargs = _mapped((args, kwargs), _widened_leaf)
        return model, args, kwargs

    return build


def results(
    build: Build, prepare: Callable[[nn.Module], Any]
) -> tuple[dict[str, Tensor | None], Any]:
    model, args, kwargs = build()
    prepared = prepare(model)
    with fixed_seed():
        output = model(*args, **kwargs)
        loss = default_loss(output)
        if loss is not None:
            loss.backward()
    found: dict[str, Tensor | None] = {f"output {leaf}": one for leaf, one in leaves([output])}
    for leaf, one in leaves([args, kwargs]):
        found[f"gradient of argument {leaf}"] = one.grad if one.is_leaf else None
    for name, param in model.named_parameters():
        found[f"gradient of {name}"] = param.grad
    if isinstance(prepared, tt.Edit):
        prepared.close()
    return found, prepared


def assert_equal(ours: dict[str, Any], hand: dict[str, Any], tolerance: float) -> None:
    assert ours.keys() == hand.keys()
    for name, tensor in ours.items():
        right = hand[name]
        assert (tensor is None) == (right is None), name
        if tensor is None:
            continue
        torch.testing.assert_close(
            tensor.detach().to_dense() if tensor.is_sparse else tensor.detach(),
            right.detach().to_dense() if right.is_sparse else right.detach(),
            rtol=tolerance,
            atol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",  # type: ignore[misc]
        )


OWN_MEANING = {
    "foreign_hooks",  # They are between the forward and the edit.
    "base_changed_slice_used",  # The change saves what is then overwritten: both raise.
}
RUNNING = [specimen for specimen in SPECIMENS.values() if specimen.raises is None]


@pytest.mark.parametrize("port", ["input", "output"])
@pytest.mark.parametrize("specimen", RUNNING, ids=str)
def test_an_edit_of_values_equals_the_change_in_the_code(specimen: Specimen, port: str) -> None:
    build = builder(specimen)
    if specimen.name in OWN_MEANING:
        return

    def by_hand(model: nn.Module) -> None:
        wrapped_by_hand(model, port)

    def by_edit(model: nn.Module) -> tt.Edit:
        return tt.edit(model, f"*:{port}", bent, missing="ignore")

    ours, edit = results(build, by_edit)
    held = [entry for entry in edit.absent if "attribute of a" in entry.reason]
    assert bool(held) is ((specimen.name, port) in HELD_BY_OBJECTS)
    if held:
        return  # The code by hand changes those too.
    hand, _ = results(build, by_hand)
    edit.close()
    assert_equal(ours, hand, 0.0)


USED_INSIDE = {
    "tuple_output",
    "dict_output",
    "namedtuple_output",
    "dataclass_output",
    "recurrent_loop",
    "output_used_inside",
}
"""A module also uses what it returns: all these uses count in the gradient that is edited."""
THROUGH_MEMORY = {"relu_on_a_view", "slice_changed_base_used", "base_changed_slice_used"}
"""No twin of copies; by hand below."""


@pytest.mark.parametrize("port", ["grad_input", "grad_output"])
@pytest.mark.parametrize("specimen", RUNNING, ids=str)
def test_an_edit_of_gradients_equals_that_of_a_twin(specimen: Specimen, port: str) -> None:
    if cannot_follow(specimen, port) or specimen.name in THROUGH_MEMORY:
        return
    if port == "grad_output" and specimen.name in USED_INSIDE:
        return
    build = wide(specimen)

    def by_hand(model: nn.Module) -> None:
        GradientTwin(model, port, bent)

    def by_edit(model: nn.Module) -> tt.Edit:
        return tt.edit(model, f"*:{port}", bent, missing="ignore")

    with _no_checkpoints():
        hand, _ = results(build, by_hand)
    ours, edit = results(build, by_edit)
    edit.close()
    assert_equal(ours, hand, 1e-9 if specimen.double else 2e-2)


@every_module
def test_an_edit_of_values_in_a_module_of_torch_equals_the_change_in_the_code(
    samples: list[Sample],
) -> None:
    for sample in samples:
        if sample.name == "BCELoss":
            continue  # Its arguments must stay probabilities.
        for port in ("input", "output"):
            with module_db.quiet():
                hand, _ = results(sample.build, lambda m, port=port: wrapped_by_hand(m, port))  # type: ignore[misc]
                ours, _ = results(
                    sample.build,
                    lambda m, port=port: tt.edit(m, f"*:{port}", bent, missing="ignore"),  # type: ignore[misc]
                )
            assert_equal(ours, hand, 0.0)


@every_module
def test_an_edit_of_gradients_in_a_module_of_torch_equals_that_of_a_twin(
    samples: list[Sample],
) -> None:
    for sample in samples:
        for port in ("grad_input", "grad_output"):
            with module_db.quiet():
                hand, _ = results(sample.build, lambda m, port=port: GradientTwin(m, port, bent))  # type: ignore[misc]
                ours, _ = results(
                    sample.build,
                    lambda m, port=port: tt.edit(m, f"*:{port}", bent, missing="ignore"),  # type: ignore[misc]
                )
            assert_equal(ours, hand, 1e-4)
