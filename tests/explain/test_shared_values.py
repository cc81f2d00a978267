"""A value that the model reads under another name too: refused where a replacement misses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn

import torchtap as tt
from torchtap.testing import Net

METHODS = ("gradient", "occlusion", "integrated_gradients", "deeplift")
SHARED = "read under another name"


def net(forward: Callable[[Net, Tensor], Tensor], site: nn.Module) -> Net:
    return seeded(
        lambda: Net(
            forward,
            c=nn.Conv1d(3, 4, 3, padding=1),
            r=site,
            c2=nn.Conv1d(4, 4, 3, padding=1),
            o=nn.Linear(4, 3),
        )
    ).eval()


def skip(m: Net, x: Tensor) -> Tensor:
    before = m.c(x)
    return m.o((m.c2(m.r(before)) + before).mean(-1))


def statement(m: Net, x: Tensor) -> Tensor:
    value = m.c(x)
    m.r(value)
    return m.o(m.c2(value).mean(-1))


def plain(m: Net, x: Tensor) -> Tensor:
    return m.o(m.c2(m.r(m.c(x))).mean(-1))


CASES = {
    "in-place activation with a skip": (skip, lambda: nn.ReLU(inplace=True)),
    "in-place activation as a statement": (statement, lambda: nn.ReLU(inplace=True)),
    "dropout that returns its input": (skip, nn.Dropout),
    "identity": (skip, nn.Identity),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", METHODS)
def test_a_site_whose_tensor_is_read_under_another_name_is_refused(case: str, method: str) -> None:
    forward, site = CASES[case]
    model, x = net(forward, site()), normal(2, 3, 7)
    given = {"sliding_window_shapes": (4, 7)} if method == "occlusion" else {}
    with pytest.raises(tt.InputError, match=f"r:output is {SHARED}"):
        tt.attribute(model, x, at="r", target=1, method=method, **given)
    with pytest.raises(tt.InputError, match=f"r:output is {SHARED}"):
        tt.cam(model, x, layer="r", target=1, method="ablationcam")


def test_what_a_hook_has_stored_is_another_name() -> None:
    model, kept = net(plain, nn.ReLU()), []
    model.r.register_forward_hook(lambda _, __, out: kept.append(out))

    def with_kept(out: Tensor) -> Tensor:
        return out[:, 1] + kept[-1].sum((1, 2))

    with pytest.raises(tt.InputError, match=SHARED):
        tt.attribute(model, normal(2, 3, 7), at="r", target=with_kept, method="gradient")
    assert all(one.isfinite().all() for one in kept)


@pytest.mark.parametrize("make", [lambda: nn.ReLU(inplace=True), nn.ReLU, nn.Dropout, nn.Identity])
@pytest.mark.parametrize("at", ["r", "r:input"])
def test_where_no_other_name_is_read_it_is_the_gradient_of_the_rest(
    make: Callable[[], nn.Module], at: str
) -> None:
    model, x = net(plain, make()), normal(2, 3, 7)
    before = model.c(x).detach()
    rectifies = isinstance(model.r, nn.ReLU)
    value = (before.relu() if rectifies and at == "r" else before.clone()).requires_grad_()
    used = value.relu() if rectifies and at != "r" else value
    score = model.o(model.c2(used).mean(-1))[:, 1].sum()
    (expected,) = torch.autograd.grad(score, value)
    found = tt.attribute(model, x, at=at, target=1, method="gradient")
    torch.testing.assert_close(found.values, expected)


def test_what_a_module_takes_is_one_use_unless_it_is_written_in_place() -> None:
    model, x = net(skip, nn.ReLU()), normal(2, 3, 7)
    before = model.c(x).detach()
    value = before.clone().requires_grad_()
    score = model.o((model.c2(value.relu()) + before).mean(-1))[:, 1].sum()
    (expected,) = torch.autograd.grad(score, value)
    found = tt.attribute(model, x, at="r:input", target=1, method="gradient")
    torch.testing.assert_close(found.values, expected)
    for forward in (skip, statement):
        with pytest.raises(tt.InputError, match=f"r:input is {SHARED}"):
            tt.attribute(
                net(forward, nn.ReLU(inplace=True)), x, at="r:input", target=1, method="gradient"
            )


@pytest.mark.parametrize("tokens", [[[3, 1, 4]], [[3, 1, 1, 3]], [[2, 2, 2]]])
def test_tokens_that_are_read_under_another_name_are_refused_all_the_same(tokens: Any) -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o(m.e(m.i(x)).mean(1) + m.e(x).mean(1))

    model = seeded(lambda: Net(forward, i=nn.Identity(), e=nn.Embedding(6, 4), o=nn.Linear(4, 2)))
    with pytest.raises(tt.InputError, match=SHARED):
        tt.attribute(model, torch.tensor(tokens), at="i", target=1, method="occlusion")


def test_a_parameter_that_is_returned_is_refused_and_stays() -> None:
    class Position(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(normal(4, 7))

        def forward(self) -> Tensor:
            return self.weight

    def forward(m: Net, x: Tensor) -> Tensor:
        return m.o((m.c2(m.c(x) + m.r()) * m.r.weight).mean(-1))

    model = net(forward, Position())
    before = model.r.weight.detach().clone()
    with pytest.raises(tt.InputError, match=SHARED):
        tt.attribute(model, normal(2, 3, 7), at="r", target=1, method="gradient")
    assert torch.equal(model.r.weight, before)


def test_a_lack_of_memory_says_nothing_of_who_reads_a_value() -> None:
    def forward(m: Net, x: Tensor) -> Tensor:
        before = m.c(x)
        after = m.r(before)
        if before.isnan().any():
            raise torch.OutOfMemoryError
        return m.o(m.c2(after).mean(-1))

    model = net(forward, nn.Identity())
    with pytest.raises(torch.OutOfMemoryError):
        tt.attribute(model, normal(2, 3, 7), target=1, at="r")
