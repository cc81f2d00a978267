"""Views that modules return, whose gradients are followed past writes into their memory.

A write into the memory of a view puts a ``CopySlices`` node on the base, in place of the view's own
node, and hooks on the view are not called for that node. The derivative with respect to what was
returned then comes in two parts: by the old node (uses before the write), and by the cut of
``CopySlices``' gradient (uses after it). See docs/explanations/gradients.md for a drawing.

While the calls around a returned view run, each of their ends is a chance to find the node. After
the outermost call nothing of ours runs between a write and the backward: a view that is overwritten
then has lost its gradient, which its :class:`ViewState` tells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from torchtap.core.torch_private import sequence_number
from torchtap.hooks.graph_edges import Geometry, geometry_in_base, overwriting_node


class ViewState:
    """Knows whether a returned view was overwritten, and whether its gradient was saved.

    Held by hooks, so it must not hold any of the graph: the garbage collector cannot see a cycle
    that goes through autograd's nodes.
    """

    __slots__ = ("alias", "is_repaired", "version")

    def __init__(self, alias: Tensor, version: int) -> None:
        self.alias = alias
        self.version = version
        self.is_repaired = False

    def release_memory(self) -> None:
        """Hold the memory of the view no longer: an empty alias shares the version counter too.

        Costs two microseconds, more than all the rest of following a view.
        """
        alias = self.alias
        alias.data = torch.empty(0, dtype=alias.dtype, device=alias.device)

    @property
    def is_overwritten(self) -> bool:
        """Return whether anything wrote into the memory since the view was returned."""
        return bool(self.alias._version != self.version)

    @property
    def is_lost(self) -> bool:
        """Return whether the gradient would be incomplete."""
        return self.is_overwritten and not self.is_repaired


class ViewGradient(Protocol):
    """The gradient of a view, which one owner reads and another changes."""

    def on_overwritten(self, geometry: Geometry, argument: Geometry | None) -> Callable[..., Any]:
        """Make the hook of the ``CopySlices`` node that overwrote the view.

        Args:
            geometry: geometry of the view in its base.
            argument: see :meth:`FollowedViews.follow`.
        """


AnyGradient = TypeVar("AnyGradient", bound=ViewGradient)


class FollowedView(Generic[AnyGradient]):
    """A view while the calls around it run. Holds its graph, so no hook may hold it.

    Args:
        view: a plain tensor.
        gradient: of the view.
        argument: see :meth:`FollowedViews.follow`.
        first: nodes with this number and larger ones are younger than the return.
        watch: over writes into it.
    """

    __slots__ = ("argument", "first", "gradient", "view", "watch")

    def __init__(
        self,
        view: Tensor,
        gradient: AnyGradient,
        argument: Geometry | None,
        first: int,
        watch: ViewState,
    ) -> None:
        self.view = view
        self.gradient = gradient
        self.argument = argument
        self.first = first
        self.watch = watch

    @property
    def is_overwritten(self) -> bool:
        """Return whether anything wrote into the memory since the view was returned."""
        return self.watch.is_overwritten

    def repair(self) -> Any:
        """Follow the view to the node that took over; returns the hook's handle, if there is."""
        node = overwriting_node(self.view, self.first)
        if node is None:
            return None
        self.watch.is_repaired = True
        geometry = geometry_in_base(self.view)
        # A hook on the tensor would be called for the node that it had when it was hooked; the
        # gradient of the memory after the write comes to this one.
        return node.register_hook(self.gradient.on_overwritten(geometry, self.argument))


class Inside(threading.local):
    """Views returned within the calls that a thread is inside of.

    Each has ``view``, ``is_overwritten`` and ``repair()``, as :class:`FollowedView`.
    """

    def __init__(self) -> None:
        self.views: list[Any] = []


class FollowedViews(Generic[AnyGradient]):
    """The views that one owner follows. Its length is their number in the running thread.

    Args:
        hold: takes the handles of hooks, to remove them with the others.
        ended: called with the gradient of each view that is followed no further, though its memory
            may yet be overwritten.

    Attributes:
        inside: the views.
    """

    def __init__(
        self, hold: Callable[[Any], None], ended: Callable[[AnyGradient], None] | None = None
    ) -> None:
        self._hold = hold
        self._ended = ended
        self.inside = Inside()

    def __len__(self) -> int:
        return len(self.inside.views)

    def follow(
        self, view: Tensor, gradient: AnyGradient, argument: Geometry | None = None
    ) -> tuple[ViewState, ...]:
        """Follow a view from now on; return its state, or nothing of what cannot be followed.

        Args:
            view: a tensor, see :func:`can_be_followed`.
            gradient: of the view.
            argument: where that is the gradient of the module's argument, of which the view is a
                part, geometry of the argument in the base.
        """
        if not can_be_followed(view):
            return ()
        # detach() shares the version counter; that of ``data`` is its own (pytorch/pytorch#5396).
        watch = ViewState(view.detach(), view._version)
        followed = FollowedView(view, gradient, argument, sequence_number(), watch)
        self.inside.views.append(followed)
        return (watch,)

    def leave(self, first: int, returned: Collection[int], *, is_outermost: bool) -> None:
        """A call ends: follow the views that were overwritten within it to their new nodes.

        Args:
            first: how many views were followed when the call began.
            returned: ids of the tensors that the call returns; its caller may yet overwrite them.
            is_outermost: no call is around it, at whose end a later write would be seen.
        """
        views = self.inside.views
        if len(views) <= first:
            return
        kept = []
        for followed in self._unrepaired(views[first:]):
            # Its caller gets it and may write into it; of any other view this call was the last
            # user.
            if not is_outermost and id(followed.view) in returned:
                kept.append(followed)
            elif self._ended is not None:
                self._ended(followed.gradient)
        views[first:] = kept

    def repair(self) -> None:
        """Follow the views that were overwritten so far to their new nodes."""
        views = self.inside.views
        if views:
            views[:] = self._unrepaired(views)

    def _unrepaired(self, views: list[Any]) -> list[Any]:
        unrepaired = []
        for followed in views:
            handle = followed.repair() if followed.is_overwritten else None
            if handle is None:
                unrepaired.append(followed)
            else:
                self._hold(handle)
        return unrepaired

    def drop(self) -> None:
        """Forget the views of this thread; no call is running."""
        self.inside.views.clear()


def can_be_followed(tensor: Tensor) -> bool:
    """Return whether a tensor is a plain view whose gradient could move to another node.

    Autograd refuses to write into a view of a leaf that requires grad.
    """
    if type(tensor) is not Tensor or not tensor._is_view():
        return False
    base = tensor._base
    return base is not None and not base.is_leaf
