"""Shapes in the place of tensors, a habit from other summaries, and what to say of them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from torchtap.core.errors import InputError, TorchtapError
from torchtap.core.tree import leaves

_SETTINGS = ("input_size", "input_shape", "input_data", "dtypes", "batch_size", "batch_dim")
"""Names that other libraries use for the input that a model is to be run on."""


@contextlib.contextmanager
def noticing_shapes(
    name: str, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Say where a model got a shape, or another library's keyword, and failed at it.

    Args:
        name: of the function that runs the model, for the message.
        model: the model.
        args: what it is called with.
        kwargs: and by name.

    Raises:
        InputError: a keyword is another library's, and the model does not take it; or the model
            raised, and it was given a shape and no tensor.
    """
    wrong = [key for key in kwargs if key in _SETTINGS and not _takes(model, key)]
    if wrong:
        shape = _shape_in([kwargs[wrong[0]]])
        raise InputError(
            f"{type(model).__name__} takes no {wrong[0]}: {name} runs the model on what it is "
            f"called with{_way_out(name, shape)}"
        )
    shape_given = _shape_in([*args, *kwargs.values()])
    has_tensor = any(True for _ in leaves((tuple(args), dict(kwargs))))
    try:
        yield
    except TorchtapError:
        raise
    except Exception as error:
        if shape_given is None or has_tensor:
            raise
        raise InputError(
            f"{type(model).__name__} was called with the shape {shape_given} and with no tensor, "
            f"and raised {type(error).__name__}: {name} runs the model on what it is called "
            f"with{_way_out(name, shape_given)}"
        ) from error


def _way_out(name: str, shape: Sequence[int] | None) -> str:
    if shape is None:
        return f". Give it the batch itself: {name}(model, batch)."
    numbers = ", ".join(map(str, shape))
    return f". Give it a batch: {name}(model, torch.randn({numbers}))."


def _shape_in(values: Sequence[Any]) -> tuple[int, ...] | None:
    """The first of the values that is a shape; one that stands alone in a list counts too."""
    for value in values:
        if isinstance(value, tuple | list) and value:
            if all(isinstance(one, int) and not isinstance(one, bool) for one in value):
                return tuple(value)
            inner = _shape_in(value)
            if inner is not None:
                return inner
    return None


def _takes(model: nn.Module, key: str) -> bool:
    try:
        params = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return True
    return key in params or any(param.kind is param.VAR_KEYWORD for param in params.values())
