"""The gradient at an output tells the targets of a loss, and how far outputs agree with them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchtap.capture.target_agreement import Told, agreement, judge, share_among, told_targets

F = nn.functional
CLASSES = torch.tensor([0, 3, 1, 1, 2, 3, 0, 2])
BITS = torch.tensor([0.0, 1, 1, 0, 1, 0, 0, 1])[:, None]
NUMBERS = torch.linspace(-2, 5, 8)[:, None]

LOSSES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], Tensor, bool]] = {
    "cross-entropy": ((8, 4), lambda y: F.cross_entropy(y, CLASSES), CLASSES, False),
    "its sum": ((8, 4), lambda y: F.cross_entropy(y, CLASSES, reduction="sum"), CLASSES, False),
    "scaled": ((8, 4), lambda y: F.cross_entropy(y, CLASSES) * 65536 / 3, CLASSES, False),
    "smoothed": (
        (8, 4),
        lambda y: F.cross_entropy(y, CLASSES, label_smoothing=0.1),
        CLASSES,
        False,
    ),
    "classes second": (
        (8, 4, 3),
        lambda y: F.cross_entropy(y, CLASSES[:, None].expand(8, 3)),
        CLASSES[:, None].expand(8, 3),
        False,
    ),
    "logits of bits": (
        (8, 1),
        lambda y: F.binary_cross_entropy_with_logits(y, BITS),
        BITS[:, 0],
        False,
    ),
    "weighted bits": (
        (8, 1),
        lambda y: F.binary_cross_entropy_with_logits(y, BITS, pos_weight=torch.tensor([4.0])),
        BITS[:, 0],
        False,
    ),
    "squares": ((8, 1), lambda y: 7 * F.mse_loss(y, NUMBERS), NUMBERS[:, 0], True),
}


def _told(name: str) -> Told | None:
    shape, loss, _, is_squared = LOSSES[name]
    output = torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    value = loss(output)
    (gradient,) = torch.autograd.grad(value, output)
    factor = 2 * float(value.detach()) / float(gradient.square().sum()) if is_squared else None
    return told_targets(output.detach(), gradient, factor)


@pytest.mark.parametrize("name", LOSSES)
def test_targets_are_those_that_the_loss_was_given(name: str) -> None:
    told, wanted = _told(name), LOSSES[name][2]
    assert told is not None
    assert told.labels is not None
    assert told.labels.shape == wanted.shape
    assert torch.allclose(told.labels.float(), wanted.float(), atol=1e-4)


def test_probabilities_tell_their_targets_too() -> None:
    output = torch.rand(8, 1, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (gradient,) = torch.autograd.grad(F.binary_cross_entropy(output, BITS), output)
    told = told_targets(output.detach(), gradient)
    assert told is not None
    assert torch.equal(told.targets, BITS)


def test_pairs_are_told_by_rows_and_columns_together() -> None:
    output = torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    own = torch.arange(6)
    loss = F.cross_entropy(output, own) + F.cross_entropy(output.T, own)
    (gradient,) = torch.autograd.grad(loss, output)
    told = told_targets(output.detach(), gradient)
    assert told is not None
    assert torch.equal(told.targets, torch.eye(6))


def test_the_gradient_of_a_policy_tells_no_targets() -> None:
    torch.manual_seed(0)
    output = torch.randn(64, 2, requires_grad=True)
    move = torch.randint(2, (64,))
    taken = output.log_softmax(1).gather(1, move[:, None])[:, 0]
    (gradient,) = torch.autograd.grad(-(taken * torch.randn(64)).mean(), output)
    assert told_targets(output.detach(), gradient) is None


def test_a_gradient_of_zeros_and_outputs_that_are_not_finite_tell_nothing() -> None:
    assert told_targets(torch.randn(8, 1), torch.zeros(8, 1)) is None
    assert told_targets(torch.full((8, 4), torch.inf), torch.randn(8, 4)) is None


def test_agreement_is_the_correlation_of_numpy() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(40, 1), torch.randn(40, 1)
    found = agreement(Told(outputs, targets, None))
    assert found == pytest.approx(np.corrcoef(outputs[:, 0], targets[:, 0])[0, 1], abs=1e-6)


def test_there_is_no_agreement_with_targets_that_are_all_one_and_none_of_equal_outputs() -> None:
    varied = torch.randn(8, 1)
    assert agreement(Told(varied, torch.ones(8, 1), None)) is None
    assert agreement(Told(torch.ones(8, 1), varied, None)) == 0


def test_targets_are_found_in_a_column_and_in_the_places_of_a_sequence() -> None:
    table = torch.randn(8, 5)
    assert share_among(table[:, 3], [table]) == 1
    assert share_among(table[:, 3], [torch.randn(8, 5)]) == 0
    words = torch.randint(9, (4, 6))
    assert share_among(words, [words]) == 1
    assert share_among(words, [torch.full_like(words, 11)]) == 0


@pytest.mark.parametrize("name", [*LOSSES, "one class", "one number"])
def test_a_look_at_once_finds_the_same(name: str) -> None:
    """The parts above are compared with numpy, and with the targets themselves."""
    shape, loss, _, is_squared = LOSSES.get(name, LOSSES["squares"])
    if name == "one class":
        shape, loss = (8, 4), lambda y: F.cross_entropy(y, torch.full((8,), 2))
    elif name == "one number":
        loss = lambda y: F.mse_loss(y, torch.full((8, 1), 3.0))  # noqa: E731
    output = torch.randn(shape, generator=torch.Generator().manual_seed(3)).requires_grad_()
    value = loss(output)
    (gradient,) = torch.autograd.grad(value, output)
    square = float(gradient.square().sum())
    factor = 2 * float(value.detach()) / square if shape == (8, 1) and is_squared else None
    told = told_targets(output.detach(), gradient, factor)
    judged = judge(output.detach(), gradient, factor)
    assert told is not None
    assert judged is not None
    assert judged.agreement == pytest.approx(agreement(told), abs=1e-6)
    assert (judged.lowest, judged.highest) == pytest.approx(
        (float(told.targets.min()), float(told.targets.max())), abs=1e-5
    )
    assert judged.labels is not None
    assert told.labels is not None
    torch.testing.assert_close(judged.labels, told.labels)
