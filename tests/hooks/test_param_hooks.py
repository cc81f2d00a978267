"""Hooks on parameters that are lent, replaced, or made late."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call

import torchtap as tt


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_teacher_called_with_lent_parameters_leaves_the_edit_in_place(
    requires_grad: bool,
) -> None:
    student, x = nn.Linear(3, 2), torch.randn(4, 3)
    teacher = {
        name: param.detach().clone().requires_grad_(requires_grad)
        for name, param in student.named_parameters()
    }
    with (
        tt.watch(student, ".:param_grad", edits="before") as w,
        tt.edit(student, ".:param_grad", tt.edits.zero()) as e,
    ):
        for _ in range(3):
            student.zero_grad()
            out = student(x)
            lent = functional_call(student, teacher, (x + 1,))
            ((out - lent) ** 2).sum().backward()
            assert not student.weight.grad.any() and not student.bias.grad.any()
            w.step()
    assert e.fired == {".:param_grad[bias]": 3, ".:param_grad[weight]": 3}
    assert len(list(w.run.records(".:param_grad[weight]"))) == 3 and not w.absent
    if requires_grad:  # The model does not own them when the gradient comes.
        assert all(tensor.grad.any() for tensor in teacher.values())


def test_a_parameter_that_is_put_in_the_old_ones_place_is_edited() -> None:
    model = nn.Linear(3, 2)
    with tt.edit(model, ".:param_grad[weight]", tt.edits.zero()) as e:
        for _ in range(2):
            model.weight = nn.Parameter(torch.ones(2, 3))
            model(torch.ones(1, 3)).sum().backward()
            assert not model.weight.grad.any() and model.bias.grad.any()
    assert e.fired == {".:param_grad[weight]": 2}


def test_a_lazy_parameter_is_edited_from_its_first_gradient_on() -> None:
    model = nn.LazyLinear(2)
    with tt.edit(model, ".:param_grad", tt.edits.zero()) as e:
        model(torch.ones(1, 3)).sum().backward()
    assert not model.weight.grad.any() and not model.bias.grad.any()
    assert e.fired == {".:param_grad[bias]": 1, ".:param_grad[weight]": 1}


ONES = torch.ones(2, 3)


def test_a_parameter_that_is_replaced_is_edited_from_the_next_forward_on() -> None:
    model = nn.Linear(3, 1)
    with tt.edit(model, ".:param_grad[weight]", tt.edits.zero()) as edit:
        model(ONES).sum().backward()
        model.weight = nn.Parameter(torch.ones(1, 3))
        model(ONES).sum().backward()
    assert not model.weight.grad.any() and edit.fired == {".:param_grad[weight]": 2}
