"""The value at a site inside of the model that is the target, with its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.errors import CaptureError, InputError
from torchtap.core.plan import Plan
from torchtap.core.site import Site
from torchtap.explain.site_probe import SiteProbe, Visit
from torchtap.hooks.checkpoint_calls import is_in_reentrant_checkpoint


def value_at(
    site: Site,
    plan: Plan,
    modules: Mapping[str, nn.Module],
    called: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Tensor:
    """Call a model, and return the value of the last call at a site.

    Args:
        site: for messages.
        plan: selects it.
        modules: path -> module, of the whole model.
        called: the model.
        args: of the call.
        kwargs: of the call.

    Raises:
        InputError: there are several tensors at the site, or none.
        CaptureError: a reentrant checkpoint keeps the graph back.
    """
    taken = _TakenValues()
    with SiteProbe(modules, plan, taken, reads=True):
        called(*args, **kwargs)
    values = taken.values()
    if len(values) != 1:
        raise InputError(
            f"{site} gave {len(values)} tensors; expected one: a module that runs, and which of "
            f"its outputs, as in 'fc:output[0]'."
        )
    return values[0]


class _TakenValues:
    """A visitor that takes values with their graph, the last of each site."""

    def __init__(self) -> None:
        self._wants_graph = torch.is_grad_enabled()
        self._taken: dict[Site, tuple[Tensor, Tensor, int]] = {}

    def __call__(self, tensor: Tensor, visit: Visit) -> None:
        if self._wants_graph and not torch.is_grad_enabled() and is_in_reentrant_checkpoint():
            raise CaptureError(
                f"{visit.site} is inside a reentrant checkpoint, which runs it without a graph, so "
                f"it cannot be differentiated. Use checkpoint(use_reentrant=False)."
            )
        version = -1 if tensor.grad_fn is None else tensor._version
        self._taken[visit.site] = tensor.clone(), tensor, version

    def values(self) -> list[Tensor]:
        """Return the values as they were when they came by.

        A tensor that was not overwritten is cloned now, and not when it came by: autograd runs
        nodes that were made last first, and adds gradients in that order, so they are added as if
        the tensor itself was used, to the bit.
        """
        return [
            tensor.clone() if version >= 0 and tensor._version == version else clone
            for clone, tensor, version in self._taken.values()
        ]
