"""Two steps of training of many families of ``transformers``: attached to or not, the same bits.

Records are compared with clones that plain hooks of PyTorch take on a model of the same weights.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import bits
import numpy
import pytest
import torch
from bits import content
from random_numbers import fixed_seed
from torch import Tensor, nn
from truth import _leaves

import torchtap as tt

pytest.importorskip("transformers", minversion="5")

from families import FAMILIES, Family, loss_of, quiet

pytestmark = pytest.mark.slow

NUM_STEPS = 2
Attach = Callable[[nn.Module], AbstractContextManager[Any]]
Seen = dict[tuple[str, str, str], Counter[Any]]
"""Path, port and leaf -> the values that were seen, in any order."""


def same(tensor: Tensor) -> Tensor:
    """Another tensor, so that outputs are made anew, of the same memory and strides."""
    return torch.ops.aten.alias.default(tensor)


MODES: dict[str, Attach] = {
    "watched": lambda model: tt.watch(model, "*:*"),
    "measured": lambda model: tt.watch(model, "*:*", to=tt.Stats()),
    "edited": lambda model: tt.edit(model, "*:output", same, missing="ignore"),
    "offloaded": lambda model: tt.offload("disk", model=model, min_bytes=0, missing="ignore"),
}
every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


# --- running ----------------------------------------------------------------------------------


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """All random numbers that a model of ``transformers`` may draw; put back at the end."""
    python, of_numpy = random.getstate(), numpy.random.get_state()
    with fixed_seed():
        random.seed(0)
        numpy.random.seed(0)
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(of_numpy)


def train(family: Family, attach: Attach = contextlib.nullcontext) -> tuple[list[bits.Facts], Any]:
    """Everything that each step leaves behind, and what was attached."""
    model = family.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    with seeded(), quiet(), attach(model) as held:
        for step in range(NUM_STEPS):
            if step and isinstance(held, tt.Watch | tt.Edit):
                held.step()
            optimizer.zero_grad()
            facts = bits.observe(model, (), family.arguments(), loss_of)
            facts["random numbers of numpy"] = numpy.random.get_state()[1].tobytes()
            facts["random numbers of Python"] = random.getstate()
            found.append(facts)
            optimizer.step()
    return found, held


def unlike(left: list[bits.Facts], right: list[bits.Facts], *, is_edited: bool) -> list[str]:
    """Names of the facts that are not the same."""
    forgiven = bits.without_nature if is_edited else dict
    return [
        f"step {step}: {name}"
        for step, (before, after) in enumerate(zip(left, right, strict=True))
        for name in bits.differences(forgiven(before), forgiven(after))
    ]


PLAIN: dict[str, list[bits.Facts] | str] = {}


def plain(family: Family) -> list[bits.Facts]:
    """The steps of PyTorch alone; what cannot run, or is not the same twice, is left out."""
    if family.name not in PLAIN:
        PLAIN.clear()
        try:
            facts, again = train(family)[0], train(family)[0]
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            PLAIN[family.name] = f"it does not run in PyTorch alone: {error}"
        else:
            unsteady = unlike(facts, again, is_edited=False)
            PLAIN[family.name] = f"two plain runs differ: {unsteady}" if unsteady else facts
    found = PLAIN[family.name]
    if isinstance(found, str):
        pytest.skip(f"{family}: {found}")
    return found


# --- what flows, by plain hooks ---------------------------------------------------------------


@contextlib.contextmanager
def plain_hooks(model: nn.Module) -> Iterator[Seen]:
    """Hooks of PyTorch on every module that note outputs and their gradients."""
    seen: Seen = {}

    def note(place: tuple[str, str, str], tensor: Tensor | None) -> None:
        if tensor is not None:
            seen.setdefault(place, Counter())[content(tensor)] += 1

    def leaving(path: str, module: nn.Module, args: Any, output: Any) -> None:
        for leaf, tensor in _leaves(output):
            note((path, "output", leaf), tensor)
            if tensor.requires_grad:
                tensor.register_hook(partial(note, (path, "grad_output", leaf)))

    for path, module in model.named_modules():
        module.register_forward_hook(partial(leaving, path))
    yield seen


def recorded(run: tt.Run) -> Seen:
    """Records of a watch in the form in which the plain hooks note them."""
    found: Seen = {}
    for record in run.records(phase=None):
        place = record.site.path, record.site.port, record.site.leaf or ""
        found.setdefault(place, Counter())[content(record.value)] += 1
    return found


# --- the laws ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@every_family
def test_a_family_trains_the_same_attached_to(family: Family, mode: str) -> None:
    right = plain(family)
    found, _ = train(family, MODES[mode])
    assert unlike(right, found, is_edited=mode == "edited") == []


@every_family
def test_every_output_and_its_gradient_is_what_a_plain_hook_sees(family: Family) -> None:
    plain(family)
    _, right = train(family, plain_hooks)
    _, watch = train(family, MODES["watched"])
    found = recorded(watch.run)
    assert [place for place, values in right.items() if found.get(place) != values] == []


@pytest.mark.parametrize("mode", MODES)
@every_family
def test_nothing_stays_on_a_family(family: Family, mode: str) -> None:
    plain(family)
    model = family.build()
    with seeded(), quiet():
        loss_of(model(**family.arguments())).backward()  # Some put hooks of their own on then.
        before = bits.hooks(model)
        with MODES[mode](model):
            loss_of(model(**family.arguments())).backward()
    assert bits.differences(before, bits.hooks(model)) == []


def test_there_are_forty_families() -> None:
    assert len(FAMILIES) >= 40
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
