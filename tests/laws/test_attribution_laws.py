"""Attribution leaves no trace, and its gradients are the truth: over the zoo."""

from __future__ import annotations

from typing import Any

import bits
import pytest
import torch
from random_numbers import fixed_seed
from torch import Tensor

import torchtap as tt
from torchtap.core.tree import argument_leaves, leaves
from torchtap.explain.maps.map import Map
from torchtap.testing import Specimen, default_loss, zoo

every_specimen = pytest.mark.parametrize("specimen", zoo(), ids=str)

SETTINGS: dict[str, dict[str, Any]] = {
    "gradient": {},
    "integrated_gradients": {"n_steps": 4},
    "guided_backprop": {},
    "deconvolution": {},
    "lrp": {},
    "deeplift": {},
    "occlusion": {"max_evals": 5},
    "feature_permutation": {"max_evals": 3},
    "shapley": {"n_samples": 2, "max_evals": 9},
    "smoothgrad": {"n_samples": 3},
}

# The model's own: PyTorch warns of reentrant checkpoints, and refuses torch.autograd.grad there.
pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")


def loss(output: Any) -> Tensor:
    """One number of any output, also of one without a graph."""
    found = [one for _, one in leaves(output) if one.is_floating_point() or one.is_complex()]
    sums = [(one.abs() if one.is_complex() else one).double().sum() for one in found]
    return torch.stack(sums).sum() if sums else torch.zeros(())


def facts(model: torch.nn.Module, args: Any, kwargs: Any) -> bits.Facts:
    found = argument_leaves(args, kwargs)
    tensors = [tensor for _, tensor in found]
    given = {
        f"argument {leaf}": (bits.bits(one), bits.nature(one), bits.bits(one.grad))
        for leaf, one in found
        if one.is_leaf
    }
    return bits.state(model) | bits.hooks(model, tensors) | given


@every_specimen
@pytest.mark.parametrize(
    "method",
    [
        method
        if method in ("gradient", "occlusion")
        else pytest.param(method, marks=pytest.mark.slow)
        for method in SETTINGS
    ],
)
def test_attribution_leaves_no_trace(specimen: Specimen, method: str) -> None:
    model = specimen.build()
    args, kwargs = specimen.inputs()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    before = facts(model, args, kwargs)
    try:
        tt.attribute(model, *args, target=loss, method=method, **SETTINGS[method], **kwargs)
    except tt.InputError:
        pass  # What is refused is told in tests/explain.
    except (ValueError, RuntimeError) as error:
        known = specimen.raises is not None or specimen.reentrant
        assert known or specimen.name == "chunks_changed", error
    assert bits.differences(before, facts(model, args, kwargs)) == []


REFUSED = {"chunks_changed"}
"""PyTorch itself refuses the in-place operation, once the input requires grad."""


@every_specimen
def test_a_gradient_is_that_of_plain_autograd(specimen: Specimen) -> None:
    model, (args, kwargs) = specimen.build(), specimen.inputs()
    given = next((one for _, one in argument_leaves(args, kwargs)), None)
    is_fit = given is not None and given.is_floating_point() and given.numel() > 0
    if not is_fit or specimen.raises or specimen.reentrant or specimen.name in REFUSED:
        pytest.skip("nothing to compare: PyTorch computes no gradient there")
    args, kwargs = specimen.inputs()
    leaf = next(one for _, one in argument_leaves(args, kwargs)).requires_grad_()
    with fixed_seed():
        # Models write into their arguments: a clone can be written into, a leaf cannot.
        output = model(*_with_clone(args, leaf), **_with_clone(kwargs, leaf))
        value = default_loss(output)
        expected = None
        if value is not None and value.requires_grad:
            (expected,) = torch.autograd.grad(value, leaf, allow_unused=True)
    model, (args, kwargs) = specimen.build(), specimen.inputs()
    with fixed_seed():
        if expected is None:
            with pytest.raises(tt.InputError, match="no gradient with respect to the value"):
                _gradient(model, args, kwargs)
        else:
            found = _gradient(model, args, kwargs)
            torch.testing.assert_close(
                found.values, expected.to(found.values.dtype), equal_nan=True
            )


def _gradient(model: torch.nn.Module, args: Any, kwargs: Any) -> Map:
    return tt.attribute(model, *args, target=_default, method="gradient", **kwargs)


def _default(output: Any) -> Tensor:
    value = default_loss(output)
    return torch.zeros(()) if value is None else value


def _with_clone(value: Any, leaf: Tensor) -> Any:
    from torchtap.core.rebuild import replace

    return replace(
        value,
        lambda _, one: one.clone() if one is leaf else one,
        inside=lambda _, one, __: one,
    )


# ---------------------------------------------------------------------- the check of a map


def rows(output: Any) -> Tensor:
    """One number of each row of the first floating tensor."""
    found = [one for _, one in leaves(output) if one.is_floating_point() and one.dim()]
    return found[0].double().flatten(1).sum(1) if found[0].dim() > 1 else found[0].double()


def map_to_check(specimen: Specimen, target: Any) -> tuple[Map, torch.nn.Module, bits.Facts]:
    """A map that was checked, its model, and the facts before."""
    model = specimen.build()
    args, kwargs = specimen.inputs()
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    try:
        found = tt.attribute(model, *args, target=target, method="gradient", **kwargs)
    except (tt.InputError, ValueError, RuntimeError, IndexError):
        pytest.skip("there is no gradient to check")
    return found, model, facts(model, args, kwargs)


@pytest.mark.slow
@every_specimen
@pytest.mark.parametrize("target", [loss, rows], ids=["of all", "of each row"])
def test_a_check_leaves_no_trace_and_says_what_it_has_not_measured(
    specimen: Specimen, target: Any
) -> None:
    found, model, before = map_to_check(specimen, target)
    assert found.again is not None
    subject = found.again.subject
    check = found.check(steps=2, num_controls=1, num_random=1, num_noise=1)
    assert bits.differences(before, facts(model, subject.args, subject.kwargs)) == []
    measured = {
        "repeat": check.repeat,
        "deletion": check.deletion,
        "insertion": check.insertion,
        "random_weights": check.random_weights,
        "noise": check.noise,
    }
    missing = dict(check.missing)
    assert missing.keys() == {name for name, value in measured.items() if value is None}
    assert str(check)
