"""The shapes of expressions without a value are those that running them would give."""

from __future__ import annotations

import linecache
from types import TracebackType

import pytest
import torch
from torch import Tensor

from torchtap.failures.derived_shapes import shaped_operands
from torchtap.failures.failure import Failure

X = torch.arange(24.0).reshape(2, 3, 4)
MASK = torch.ones(2, 4)
OF_ONE_SHAPE = [
    "x + 1e-6",
    "mask == 0",
    "x.cpu()[0]",
    "~(mask > 0)",
    "x.transpose(1, 2)",
    "x[:, 0]",
    "x[..., None, :2]",
    "x.float().mean(1, keepdim=True)",
    "x.flatten(1).unsqueeze(0)",
    "x.view(x.size(0), -1)",
    "x @ x.mT",
    "x.permute(2, 0, 1)[:, :, -1]",
    "-x * mask[:, None]",
    "x.sum((0, 2))[:, None].mT",
]


def failed(text: str, x: Tensor, mask: Tensor) -> Failure:
    """Return the failure of an operation on an expression and on what never fits it."""
    file = "<an expression>"
    namespace = {"x": x, "mask": mask, "other": torch.ones(7, 7, 7, 7, 7), "torch": torch}
    source = f"torch.add({text}, other)\n"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), namespace)
    except RuntimeError as error:
        trace = error.__traceback__
        assert isinstance(trace, TracebackType)
        error.__traceback__ = trace.tb_next
        return Failure(error)
    raise AssertionError(text)


@pytest.mark.parametrize("text", OF_ONE_SHAPE)
def test_a_shape_is_that_of_the_value(text: str) -> None:
    first = shaped_operands(failed(text, X, MASK))[0].value
    wanted = eval(text, {"x": X, "mask": MASK})
    assert isinstance(first, Tensor)
    assert first.is_meta
    assert first.shape == wanted.shape
    assert first.dtype == wanted.dtype


@pytest.mark.parametrize("text", ["x.clone().add_(1)", "x.cos()"])
def test_an_expression_that_writes_or_is_not_known_has_no_shape(text: str) -> None:
    held = X.clone()
    operands = shaped_operands(failed(text, X, MASK))
    assert not any(isinstance(one.value, Tensor) and one.value.is_meta for one in operands)
    assert torch.equal(X, held)


def test_the_shape_of_an_expression_that_draws_is_found_without_drawing() -> None:
    failure = failed("torch.rand(3) + x[:, 0, 0].cos()", X, MASK)
    before = torch.get_rng_state()
    shapes = [one.value.shape for one in shaped_operands(failure) if isinstance(one.value, Tensor)]
    assert (3,) in shapes
    assert torch.equal(before, torch.get_rng_state())
