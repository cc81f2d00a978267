"""Intermediate tensors that name themselves."""

from __future__ import annotations

import weakref
from operator import attrgetter
from typing import Protocol

from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.shared_state import members
from torchtap.hooks.hook_order import AFTER, BEFORE
from torchtap.hooks.module_hook import MARKS, keep_dynamo_out

_SIGNS = frozenset("*?[]:!@")
"""Characters that mean something in a pattern."""


class Watching(Protocol):
    """Interface of the engine of a watch, which reads marked tensors.

    Attributes:
        looks: ``after`` edits, or ``before`` them.
    """

    @property
    def looks(self) -> str:
        """Return whether it looks ``after`` edits, or ``before`` them."""

    def mark(self, tensor: Tensor, name: str) -> None:
        """Read a marked tensor."""

    def hold_dynamo_setting(self) -> None:
        """Let code that is compiled from now on depend on the hook tables."""


class Editing(Protocol):
    """Interface of the engine of an edit, which may replace marked tensors.

    Attributes:
        serial: editors run in ascending order of it.
    """

    serial: int

    def mark(self, tensor: Tensor, name: str) -> Tensor:
        """Return the tensor to go on with."""


# tt.mark knows neither the model nor its hooks: these sets are its only way to watches and edits.
# They are weak, so that a watch that was never closed is freed with the model whose hooks hold it.
open_engines: weakref.WeakSet[Watching] = weakref.WeakSet()
open_editors: weakref.WeakSet[Editing] = weakref.WeakSet()


def mark(tensor: Tensor, name: str) -> Tensor:
    """Make an intermediate tensor a site of its own: ``name:output`` and ``name:grad_output``.

    To be called inside a forward. Costs nothing where no watch and no edit is open.

    Args:
        tensor: any tensor.
        name: its path in patterns and runs, as it stands: no module's path is put before it, and
            it must not be that of a module. Any text without the signs of a pattern,
            ``* ? [ ] : ! @``. Several calls in one step are told apart by number.

    Returns:
        the same tensor object, unless a ``tt.edit`` of that name replaces it: go on with what is
        returned, ``x = tt.mark(x, "name")``, or the edit is lost.

    Raises:
        InputError: it is no tensor, or the name cannot be found by a pattern.

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
    # This runs in every forward; nearly all names are words, which one call can tell.
    if not isinstance(name, str) or not name.isidentifier():
        _check_name(name)
    return _mark(tensor, name) if open_engines or open_editors else tensor


def _check_name(name: object) -> None:
    if isinstance(name, str) and name not in ("", ".") and _SIGNS.isdisjoint(name):
        return
    if not isinstance(name, str) or name in ("", "."):
        raise InputError(
            f"tt.mark got the name {name!r}; expected a text of its own, as in "
            f"tt.mark(x, 'hidden')."
        )
    plain = "".join("_" if sign in _SIGNS else sign for sign in name)
    raise InputError(
        f"tt.mark got the name {name!r}, in which a pattern would read a sign of its own; expected "
        f"none of * ? [ ] : ! @. Call it {plain!r}."
    )


def _mark(tensor: Tensor, name: str) -> Tensor:
    engines = members(open_engines)
    for engine in engines:
        if engine.looks == BEFORE:
            engine.mark(tensor, name)
    for editor in sorted(members(open_editors), key=attrgetter("serial")):
        tensor = editor.mark(tensor, name)
    for engine in engines:
        if engine.looks == AFTER:
            engine.mark(tensor, name)
    return tensor


keep_dynamo_out(_mark, reason=MARKS)
