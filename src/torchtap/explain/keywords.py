"""Keywords that neither a method nor the model takes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence

from torch import nn

from torchtap.core.errors import InputError
from torchtap.core.site import did_you_mean


def refuse_unknown(model: nn.Module, given: Collection[str], what: str, own: Sequence[str]) -> None:
    """Raise if a keyword is no argument of the model.

    Args:
        model: that would get it.
        given: names.
        what: what a keyword may be otherwise, as ``setting of 'occlusion'``.
        own: the names of these.

    Raises:
        InputError: it is none; the message says which there are.
    """
    if not given:
        return
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (AttributeError, TypeError, ValueError):  # No module, or compiled code.
        return
    if model._forward_pre_hooks_with_kwargs or any(
        one.kind is one.VAR_KEYWORD for one in parameters
    ):
        return  # Hooks may take keywords away.
    taken = {one.name for one in parameters}
    for name in given:
        if name not in taken:
            raise InputError(
                f"{name} is no {what}, and no argument of {type(model).__name__}"
                f"{did_you_mean(name, [*own, *taken])} There are {', '.join(own) or 'none'}."
            )
