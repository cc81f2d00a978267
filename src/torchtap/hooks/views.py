"""A view that a module returned, and whether its memory was overwritten since."""

from __future__ import annotations

from torch import Tensor


class ViewWatch:
    """Knows whether a returned view was overwritten, and whether its gradient was saved.

    Held by hooks, so it must not hold any of the graph: the garbage collector cannot see a cycle
    that goes through autograd's nodes.
    """

    __slots__ = ("alias", "is_repaired", "version")

    def __init__(self, view: Tensor) -> None:
        self.alias = view.detach()  # Shares the version counter.
        self.version = view._version
        self.is_repaired = False

    @property
    def is_overwritten(self) -> bool:
        """Whether anything wrote into the memory since the view was returned."""
        return bool(self.alias._version != self.version)

    @property
    def is_lost(self) -> bool:
        """Whether the gradient would be incomplete."""
        return self.is_overwritten and not self.is_repaired
