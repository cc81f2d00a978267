"""The loss that a command differentiates."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchtap.cli.model import load_object
from torchtap.core.errors import InputError
from torchtap.core.text import class_of

if TYPE_CHECKING:
    from torch import Tensor


Loss = Callable[[Any], "Tensor"]


def load_loss(text: str) -> Loss:
    """Return a loss from ``mean``, ``logit:CLASS`` or ``package.module:callable``.

    ``mean`` adds up the means of all floating-point tensors that the model returns. ``logit:CLASS``
    adds up that class's entry along the last dimension of the first of them.

    Raises:
        InputError: it is none of these.
    """
    if text == "mean":
        return _mean
    if text.startswith("logit:"):
        index = text.removeprefix("logit:")
        if not index.isdecimal():
            raise InputError(f"--loss is {text!r}; expected logit:CLASS with a class number.")
        return lambda output: _logit(output, int(index))
    if ":" not in text:
        raise InputError(
            f"--loss is {text!r}; expected mean, logit:CLASS or package.module:callable."
        )
    function = load_object(text, what="--loss")
    if not callable(function):
        raise InputError(f"--loss {text} is {class_of(function)}; expected a callable.")
    return lambda output: _called(text, function, output)


def _floating(output: Any) -> list[Tensor]:
    from torchtap.core.tree import leaves

    floating = [tensor for _, tensor in leaves(output) if tensor.is_floating_point()]
    if not floating:
        raise InputError(
            f"The model returned {class_of(output)} without a floating-point tensor; no loss can "
            f"be made of it."
        )
    return floating


def _mean(output: Any) -> Tensor:
    first, *others = (tensor.mean() for tensor in _floating(output))
    return _differentiable(sum(others, first), "mean")


def _logit(output: Any, index: int) -> Tensor:
    from torchtap.core.tensors import kind_of

    logits = _floating(output)[0]
    if not logits.dim() or index >= logits.shape[-1]:
        raise InputError(
            f"--loss logit:{index} asks for class {index}; the model returned {kind_of(logits)}."
        )
    return _differentiable(logits[..., index].sum(), f"logit:{index}")


def _called(text: str, function: Callable[[Any], Any], output: Any) -> Tensor:
    import torch

    from torchtap.core.tensors import kind_of

    loss = function(output)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = kind_of(loss) if isinstance(loss, torch.Tensor) else class_of(loss)
        raise InputError(f"--loss {text} returned {what}; expected a tensor with one number.")
    return _differentiable(loss.reshape(()), text)


def _differentiable(loss: Tensor, text: str) -> Tensor:
    if not loss.requires_grad:
        raise InputError(
            f"--loss {text} depends on nothing that requires grad, so there is nothing to "
            f"back-propagate. Leave --loss away to record the forward alone."
        )
    return loss
