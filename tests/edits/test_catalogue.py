"""Each ready edit against its formula, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edited import FLOATS, INF, NAN, at_site, done, exactly
from random_numbers import normal
from torch import nn

import torchtap as tt
from torchtap import edits

ROW = torch.tensor([-2.0, -0.0, 0.5, 3.0, NAN, INF, -INF])

FORMULAS: dict[str, tuple[Any, list[float]]] = {
    "zero": (edits.zero(), [0.0] * 7),
    "scale": (edits.scale(2.0), [-4.0, -0.0, 1.0, 6.0, NAN, INF, -INF]),
    "clamp": (edits.clamp(-1.0, 1.0), [-1.0, 0.0, 0.5, 1.0, NAN, 1.0, -1.0]),
    "clamp from below": (edits.clamp(min=0.0), [0.0, 0.0, 0.5, 3.0, NAN, INF, 0.0]),
    "add": (edits.add(1.0), [-1.0, 1.0, 1.5, 4.0, NAN, INF, -INF]),
    "replace": (edits.replace(7.0), [7.0] * 7),
    "replace by nan": (edits.replace(NAN), [NAN] * 7),
    "mask": (
        edits.mask(torch.tensor([True, True, True, True, False, False, True])),
        [-2.0, 0.0, 0.5, 3.0, 0.0, 0.0, -INF],
    ),
    "patch": (edits.patch(torch.arange(7.0)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_ready_edit_is_its_formula(name: str, dtype: torch.dtype) -> None:
    edit, right = FORMULAS[name]
    if name == "patch":
        edit = edits.patch(torch.arange(7.0, dtype=dtype))
    exactly(done(edit, ROW.to(dtype)), right)


def test_sign_is_minus_one_zero_or_one() -> None:
    exactly(done(edits.sign(), torch.tensor([-3.0, 0.0, 1e-30, INF])), [-1.0, 0.0, 1.0, 1.0])


SHAPES: dict[str, Any] = {
    "no dimension": torch.tensor(3.0),
    "empty": torch.ones(0, 3),
    "no rows and no columns": torch.ones(0),
    "not contiguous": torch.arange(6.0).view(2, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "integers": torch.arange(4),
    "bytes": torch.arange(4, dtype=torch.uint8),
    "complex": torch.tensor([1 + 2j, -3j]),
    "complex of half width": torch.tensor([1 + 2j, -3j], dtype=torch.complex64),
}
SIMPLE: dict[str, tuple[Any, Any]] = {
    "zero": (edits.zero(), lambda t: torch.zeros_like(t)),
    "scale": (edits.scale(2), lambda t: t * 2),
    "add": (edits.add(1), lambda t: t + 1),
    "replace": (edits.replace(1), lambda t: torch.ones_like(t)),
    "mask": (edits.mask(torch.tensor(False)), lambda t: torch.zeros_like(t)),
    "patch": (edits.patch({"m": torch.ones(())}), None),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", SIMPLE)
def test_a_ready_edit_takes_every_kind_of_tensor(name: str, kind: str) -> None:
    tensor = SHAPES[kind]
    edit, formula = SIMPLE[name]
    if formula is None:
        edit, formula = edits.patch(torch.ones((), dtype=tensor.dtype)), torch.ones_like
    exactly(done(edit, tensor), formula(tensor))


@pytest.mark.parametrize("kind", ["no dimension", "empty", "no rows and no columns"])
@pytest.mark.parametrize(
    "edit", [edits.keep_topk(2), edits.keep_topk(0.5, dim=-1), edits.noise(0.0)], ids=repr
)
def test_edits_of_the_whole_tensor_take_small_ones(edit: Any, kind: str) -> None:
    tensor = SHAPES[kind]
    if kind == "no dimension":
        exactly(done(edit, tensor), tensor)
    else:
        assert done(edit, tensor).numel() == 0


REGIONS: dict[str, tuple[Any, Any]] = {
    "an index": ({0: 1}, (1,)),
    "a negative index": ({-1: -1}, (slice(None), -1)),
    "a slice": ({1: slice(0, 2)}, (slice(None), slice(0, 2))),
    "a step": ({1: slice(None, None, 2)}, (slice(None), slice(None, None, 2))),
    "a list": ({1: [0, 3]}, (slice(None), [0, 3])),
    "a mask": (
        {0: torch.tensor([True, False, True])},
        (torch.tensor([True, False, True]),),
    ),
    "indices": ({1: torch.tensor([2, 2, 0])}, (slice(None), [0, 2])),
    "two dimensions": ({0: 1, -1: slice(2, 4)}, (1, slice(2, 4))),
    "no dimension": ({}, ()),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is_changed_and_the_rest_is_not(name: str) -> None:
    at, index = REGIONS[name]
    tensor = torch.arange(1.0, 13.0).view(3, 4)
    right = tensor.clone()
    right[index if index else ...] = 0
    exactly(done(edits.zero(at=at), tensor), right)
    both = tensor.clone()
    both[index if index else ...] = 9
    exactly(done(edits.patch(torch.full_like(tensor, 9), at=at), tensor), both)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({2: 0}, "dimension 2"),
        ({0: 5}, "dimension 0"),
        ({1: [9]}, "dimension 1"),
        ({1: slice(4, 8)}, "dimension 1"),
        ({1: slice(2, 2)}, "dimension 1"),
    ],
)
def test_a_region_that_is_not_there_is_an_error(at: Any, message: str) -> None:
    tensor = torch.ones(3, 4)
    with pytest.raises(tt.EditError, match=rf"m:output.*{message}.*float32\[3, 4\]"):
        edits.zero(at=at)(tensor, at_site(tensor))


def test_a_region_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(tt.InputError, match="at is 3"):
        edits.zero(at=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "index", [[], [False, False], torch.tensor([], dtype=torch.long), torch.tensor([False, False])]
)
def test_a_region_of_nothing_is_an_error_at_once(index: Any) -> None:
    with pytest.raises(tt.InputError, match="chooses nothing of dimension 1"):
        edits.zero(at={1: index})


def test_a_slice_of_an_empty_dimension_is_no_mistake() -> None:
    tensor = torch.ones(3, 0)
    exactly(edits.zero(at={1: slice(0, 2)})(tensor, at_site(tensor)), tensor)


def test_a_mask_of_another_length_is_an_error_of_the_edit() -> None:
    tensor = torch.ones(3, 4)
    with pytest.raises(tt.EditError, match="dimension 0"):
        edits.zero(at={0: torch.tensor([True, False])})(tensor, at_site(tensor))


def test_the_gradient_outside_of_a_region_is_untouched_by_what_is_inside() -> None:
    x = torch.tensor([INF, 1.0, NAN], requires_grad=True)
    new = edits.zero(at={0: [0, 2]})(x, at_site(x))
    new.sum().backward()
    exactly(x.grad, [0.0, 1.0, 0.0])  # type: ignore[arg-type]


# --- topk, noise, clip_norm, mean -------------------------------------------------------------


def test_keep_topk_keeps_the_largest_by_magnitude() -> None:
    tensor = torch.tensor([[1.0, -5.0, 3.0, 0.0], [2.0, 0.5, -0.25, 4.0]])
    exactly(done(edits.keep_topk(2), tensor), [[0.0, -5.0, 0.0, 0.0], [0.0, 0.0, 0.0, 4.0]])
    exactly(done(edits.keep_topk(1, dim=1), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 4.0]])
    exactly(done(edits.keep_topk(0.25), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 4.0]])
    exactly(done(edits.keep_topk(0.01), tensor), [[0, -5.0, 0, 0], [0, 0, 0, 0]])
    exactly(done(edits.keep_topk(99), tensor), tensor)
    exactly(done(edits.keep_topk(2), tensor.t()), done(edits.keep_topk(2), tensor).t())
    with pytest.raises(tt.InputError, match="positive"):
        edits.keep_topk(0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=str)
def test_noise_is_normal_reproducible_and_draws_nothing_global(dtype: torch.dtype) -> None:
    tensor = torch.zeros(64, 64, dtype=dtype)
    state = torch.get_rng_state()
    first = done(edits.noise(2.0), tensor)
    assert torch.equal(torch.get_rng_state(), state)
    exactly(done(edits.noise(2.0), tensor), first)
    for other in (
        done(edits.noise(2.0, seed=1), tensor),
        done(edits.noise(2.0), tensor, call=1),
        done(edits.noise(2.0), tensor, step=1),
        done(edits.noise(2.0), tensor, site="n:output"),
    ):
        assert not torch.equal(other, first)
    spread = first.to(torch.complex128 if dtype.is_complex else torch.float64).abs()
    assert spread.square().mean().sqrt().item() == pytest.approx(2.0, rel=0.05)


def test_relative_noise_is_in_units_of_the_tensor() -> None:
    tensor = normal(1000) * 50
    difference = done(edits.noise(0.1, relative=True), tensor) - tensor
    exactly(difference.std() / tensor.std(), difference.std() / tensor.std())
    assert (difference.std() / tensor.std()).item() == pytest.approx(0.1, rel=0.1)


# --- what is printed --------------------------------------------------------------------------


def test_an_edit_shows_how_it_was_made() -> None:
    shown = {
        repr(edits.zero()): "tt.edits.zero()",
        repr(edits.scale(2.0, at={0: 1})): "tt.edits.scale(factor=2.0, at={0: 1})",
        repr(edits.patch(torch.ones(2, 3))): "tt.edits.patch(source=float32[2, 3])",
        repr(edits.clip_norm(1.0, over="all")): "tt.edits.clip_norm(max_norm=1.0, over='all')",
        repr(edits.guided_relu()): "tt.edits.guided_relu()",
    }
    for found, right in shown.items():
        assert found == right


# --- arguments --------------------------------------------------------------------------------

WRONG: dict[str, Any] = {
    "clip_norm(max_norm='a'": lambda: edits.clip_norm("a"),  # type: ignore[arg-type]
    "clip_norm(max_norm=True": lambda: edits.clip_norm(True),
    "clip_norm(p='x'": lambda: edits.clip_norm(1.0, p="x"),  # type: ignore[arg-type]
    "clip_norm(over='al'": lambda: edits.clip_norm(1.0, over="al"),  # type: ignore[arg-type]
    "scale(factor=None": lambda: edits.scale(None),  # type: ignore[arg-type]
    "add(value='a'": lambda: edits.add("a"),  # type: ignore[arg-type]
    "clamp(min='a'": lambda: edits.clamp("a"),  # type: ignore[arg-type]
    "clamp(max=[1]": lambda: edits.clamp(max=[1]),  # type: ignore[arg-type]
    "replace(value=None": lambda: edits.replace(None),  # type: ignore[arg-type]
    "mask(keep=[True]": lambda: edits.mask([True]),  # type: ignore[arg-type]
    "noise(std=-1": lambda: edits.noise(-1),
    "noise(seed=1.5": lambda: edits.noise(1.0, seed=1.5),  # type: ignore[arg-type]
    "noise(relative='y'": lambda: edits.noise(1.0, relative="y"),  # type: ignore[arg-type]
    "keep_topk(k=1.5": lambda: edits.keep_topk(1.5),
    "keep_topk(k='a'": lambda: edits.keep_topk("a"),  # type: ignore[arg-type]
    "keep_topk(dim='x'": lambda: edits.keep_topk(2, dim="x"),  # type: ignore[arg-type]
    "mean_ablate(source='x'": lambda: edits.mean_ablate("x"),  # type: ignore[arg-type]
    "mean_ablate(dim=1.5": lambda: edits.mean_ablate(dim=1.5),  # type: ignore[arg-type]
    "patch(source=3": lambda: edits.patch(3),  # type: ignore[arg-type]
    "patch(source=Linear": lambda: edits.patch(nn.Linear),  # type: ignore[arg-type]
    "patch(step='a'": lambda: edits.patch(ROW, step="a"),  # type: ignore[arg-type]
    "patch(call=0.5": lambda: edits.patch(ROW, call=0.5),  # type: ignore[arg-type]
    "patch(site=3": lambda: edits.patch(ROW, site=3),  # type: ignore[arg-type]
    "patch(model=3": lambda: edits.patch(inputs=ROW, model=3),  # type: ignore[arg-type]
    "guided_relu(others='x'": lambda: edits.guided_relu(others="x"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", list(WRONG))
def test_an_argument_of_the_wrong_kind_is_refused_at_once(call: str) -> None:
    with pytest.raises(tt.InputError) as caught:
        WRONG[call]()
    name, _, given = call.partition("(")
    assert str(caught.value).startswith(f"tt.edits.{name} got {given}; expected ")


@pytest.mark.parametrize(
    "index", ["x", 1.5, None, [1.5], ["a"], True, ROW, torch.ones(2, 2, dtype=torch.bool)]
)
def test_a_place_that_is_none_is_refused_at_once(index: Any) -> None:
    with pytest.raises(tt.InputError, match="is no place in dimension 0; expected whole numbers"):
        edits.zero(at={0: index})


@pytest.mark.parametrize("index", [range(1, 3), (1, 2), torch.tensor([1, 2]), slice(2, 0, -1)])
def test_a_place_may_be_written_in_many_ways(index: Any) -> None:
    exactly(done(edits.zero(at={0: index}), torch.ones(4)), [1.0, 0.0, 0.0, 1.0])


@pytest.mark.parametrize("name", edits.__all__)
def test_an_edit_that_was_not_called_is_recognised(name: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    for ask in (
        lambda function: tt.edit(model, "0", function),
        lambda function: tt.edit(model, {"0": [function]}),
        lambda function: tt.sweep(model, torch.ones(1, 2), "0", function, torch.sum),
    ):
        with pytest.raises(tt.InputError) as caught:
            ask(getattr(edits, name))
        text = str(caught.value)
        assert f"tt.edits.{name} makes an edit" in text
        example = text.rpartition("write tt.edits.")[2].removesuffix(".")
        known = {"run": {"0": torch.ones(1)}, "keep": torch.ones(2) > 0}
        assert callable(eval(f"edits.{example}", {"edits": edits, **known}))


def test_a_class_of_modules_is_no_edit() -> None:
    with pytest.raises(tt.InputError, match=r"got the class ReLU. Write ReLU\(\)"):
        tt.edit(nn.Linear(2, 2), ".", nn.ReLU)  # type: ignore[arg-type]


def test_an_edit_that_returns_an_edit_says_which() -> None:
    model = nn.Linear(2, 2)
    said = r"returned the function scale\(factor=2.0\) where"
    with pytest.raises(tt.EditError, match=said), tt.edit(model, ".", lambda _: edits.scale(2.0)):  # type: ignore[arg-type]
        model(torch.ones(1, 2))
