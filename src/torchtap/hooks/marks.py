"""Intermediate tensors that name themselves."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

from torchtap.errors import InputError
from torchtap.hooks.callbacks import keep_dynamo_out

if TYPE_CHECKING:
    from torchtap.hooks.engine import Engine

# A mark has nothing but this to find out who is watching. A watch that nobody closed goes with its
# model, which holds it by its hooks.
open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def mark(tensor: Tensor, name: str) -> Tensor:
    """Make an intermediate tensor a site of its own: ``name:output`` and ``name:grad_output``.

    To be called inside a forward. Free when nobody watches.

    Args:
        tensor: any tensor.
        name: its path in patterns and runs, as it stands: no module's path is put before it, and
            it must not be that of a module. Several calls in one step are told apart by number.

    Returns:
        the same tensor object.

    Raises:
        InputError: it is no tensor.

    Example:
        >>> import torch, torchtap as tt
        >>> class Net(torch.nn.Module):
        ...     def forward(self, x):
        ...         return tt.mark(x * 2, "doubled").sum()
        >>> model = Net()
        >>> with tt.watch(model, "doubled:output,grad_output") as w:
        ...     model(torch.ones(2, requires_grad=True)).backward()
        >>> w.run["doubled:grad_output"]
        tensor([1., 1.])
    """
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"tt.mark {name!r} got {type(tensor).__name__}; expected a tensor. Mark the tensors in "
            f"it one by one."
        )
    if open_engines:
        _mark(tensor, name)
    return tensor


def _mark(tensor: Tensor, name: str) -> None:
    for engine in list(open_engines):
        engine.mark(tensor, name)


keep_dynamo_out(_mark)
