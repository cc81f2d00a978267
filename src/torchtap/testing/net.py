"""A module whose forward is a plain function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn


class Net(nn.Module):
    """A module whose forward is a plain function of it: ``Net(body, a=nn.Linear(3, 3))``.

    Args:
        body: called as ``body(net, *args, **kwargs)``.
        parts: children, parameters and (plain tensors) buffers, by name.

    Example:
        >>> import torch
        >>> net = Net(lambda m, x: m.a(x) + 1, a=nn.Identity())
        >>> net(torch.zeros(2))
        tensor([1., 1.])
    """

    if TYPE_CHECKING:  # The parts have the types that they were given.

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, body: Callable[..., Any], /, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            if isinstance(part, nn.Module):
                self.add_module(name, part)
            elif isinstance(part, nn.Parameter):
                self.register_parameter(name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Whatever ``body`` makes of it."""
        return self.body(self, *args, **kwargs)

    def extra_repr(self) -> str:
        """The name of the body."""
        return self.body.__name__
