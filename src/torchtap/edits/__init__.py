"""Changes ready to use with ``tt.edit``: each is a function ``(tensor, record) -> tensor``.

They return new tensors and keep the graph, so that gradients through them are exact and the
modules before them still get one (of zeros, where nothing of the tensor is left). They draw no
global random numbers. ``at`` limits most of them to a region: dimension -> index, slice, list of
indices or mask, as in ``at={0: 3, -1: slice(8, 16)}`` (the eight last channels of row 3).

    >>> import torch, torchtap as tt
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> with tt.edit(model, "0", tt.edits.zero(at={-1: 1})) as edit:
    ...     model(torch.ones(1, 2))[0, 1]
    tensor(0., grad_fn=<SelectBackward0>)
    >>> edit.fired
    {'0:output': 1}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from torchtap.core.errors import InputError
from torchtap.core.tensors import short
from torchtap.edits.catalogue.elementwise import (
    add,
    clamp,
    keep_topk,
    mask,
    noise,
    replace,
    scale,
    sign,
    zero,
)
from torchtap.edits.catalogue.norms import clip_norm
from torchtap.edits.catalogue.patching import mean_ablate, patch
from torchtap.edits.catalogue.rectifiers import guided_relu

__all__ = [
    "add",
    "clamp",
    "clip_norm",
    "guided_relu",
    "keep_topk",
    "mask",
    "mean_ablate",
    "noise",
    "patch",
    "replace",
    "scale",
    "sign",
    "zero",
]

_EXAMPLES = {
    "add": "add(1.0)",
    "clamp": "clamp(min=0)",
    "clip_norm": "clip_norm(1.0)",
    "guided_relu": "guided_relu()",
    "keep_topk": "keep_topk(10)",
    "mask": "mask(keep)",
    "mean_ablate": "mean_ablate()",
    "noise": "noise(0.1)",
    "patch": "patch(run)",
    "replace": "replace(0.0)",
    "scale": "scale(0.5)",
    "sign": "sign()",
    "zero": "zero()",
}


def as_edit(function: Any) -> Callable[..., Any]:
    """Return the given edit if it can be one.

    Raises:
        InputError: it is no function, or one that first makes the edit.
    """
    name = getattr(function, "__name__", "")
    if name in _EXAMPLES and function is globals()[name]:
        raise InputError(
            f"tt.edits.{name} makes an edit and is none itself: write tt.edits.{_EXAMPLES[name]}."
        )
    if isinstance(function, type) and issubclass(function, nn.Module):
        raise InputError(
            f"An edit needs a function of (tensor, record); got the class {name}. Write {name}()."
        )
    if callable(function):
        return function  # type: ignore[no-any-return]
    given = "nothing" if function is None else short(function)
    raise InputError(
        f"An edit needs a function of (tensor, record); got {given}. To put something in the "
        f"tensor's place, write tt.edits.replace(value)."
    )
