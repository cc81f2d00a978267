"""Holds parameters and buffers still, and gives them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchtap.errors import EditError, SiteError
from torchtap.hooks.frozen import Frozen
from torchtap.plan import Plan, Where, make_plan, modules_of, several
from torchtap.site import Pattern, Site

Held = set[tuple[str, str, str]]
"""Path, port and name of what is to be held."""

_PORTS = ("param", "buffer")


class Freeze:
    """What ``tt.freeze`` returns: a context manager and a handle, safe to close twice.

    Attributes:
        params: the parameters that are held, as site text (``fc:param[bias]``).
        buffers: the buffers that are held.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.freeze(torch.nn.BatchNorm1d(3), "*:param,buffer")
        <Freeze of 2 parameters and 3 buffers, on>
    """

    def __init__(self, frozen: Frozen) -> None:
        self._frozen = frozen
        self._is_open = True
        frozen.attach()
        self.params = tuple(frozen.params)
        self.buffers = tuple(frozen.buffers)

    def close(self) -> None:
        """Give everything back: ``requires_grad`` is what it was."""
        if self._is_open:
            self._is_open = False
            self._frozen.detach()

    def __enter__(self) -> Freeze:
        if not self._is_open:
            raise EditError("This freeze is closed; call tt.freeze again to go on.")
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "on" if self._is_open else "closed"
        return f"<Freeze of {len(self.params)} parameters and {len(self.buffers)} buffers, {state}>"


def freeze(model: nn.Module, where: Where = "*", *, keep_grad: bool | None = None) -> Freeze:
    """Hold parameters still: no gradient, momentum or decay moves them, until it is closed.

    Args:
        model: any module, also wrapped.
        where: modules, whose parameters are held with those of all modules inside; ``!`` takes
            away in the same way. With a port, just that: ``fc:param[bias]``, ``*:param[bias]``,
            and for running statistics ``*@_BatchNorm:param,buffer`` (buffers are held against
            what the forward writes).
        keep_grad: leave ``requires_grad`` alone, so that gradients are still computed; only
            optimizers are kept from using them. By default where ``model`` is a DDP wrapper,
            which waits for all gradients that it knew of when it was made.

    Returns:
        a context manager and handle.

    Raises:
        SiteError: a pattern fits nothing, or nothing that owns parameters.
        EditError: a tied parameter is selected by one name and taken away by the other; a port
            other than ``param`` and ``buffer``; or (at an optimizer step) an optimizer moved a
            parameter that had no gradient.

    Optimizers that do not derive from ``torch.optim.Optimizer`` are not heard of; they see
    ``requires_grad=False``, and a ``.grad`` that was left from before.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> with tt.freeze(model, "0") as frozen:
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> frozen.params, model[0].weight.grad, model[0].weight.requires_grad
        (('0:param[weight]', '0:param[bias]'), None, True)
    """
    held = _held(model, where)
    plan = make_plan(model, lambda site, _: (site.path, site.port, site.leaf) in held)
    if keep_grad is None:
        keep_grad = isinstance(model, DistributedDataParallel)
    return Freeze(Frozen(plan, keep_grad=keep_grad))


def _held(model: nn.Module, where: Where) -> Held:
    held: Held = set()
    taken: Held = set()
    has_positive = False
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and pattern.negate:
            positive = Pattern(pattern.path, pattern.ports, pattern.type, pattern.leaf)
            taken |= _chosen(model, positive)
        else:
            held |= _chosen(model, pattern)
            has_positive = True
    if not has_positive:
        held = _chosen(model, Pattern("*"))
    if not held - taken:
        raise SiteError(
            f"Nothing of {type(model).__name__} is frozen by {where!r}: what it selects owns no "
            f"parameters, or all were taken away. Select modules that own some; "
            f"model.named_parameters() names them."
        )
    _refuse_torn(model, held - taken, taken)
    return held - taken


def _refuse_torn(model: nn.Module, held: Held, taken: Held) -> None:
    """A parameter with two names cannot be frozen by one and left free by the other."""
    modules, _ = modules_of(model)
    names: dict[int, tuple[str, str, str]] = {}
    for path, port, name in sorted(held):
        tensor = modules[path]._parameters.get(name) if port == "param" else None
        if tensor is not None:
            names[id(tensor)] = path, port, name
    for path, port, name in sorted(taken):
        tensor = modules[path]._parameters.get(name) if port == "param" else None
        if tensor is not None and id(tensor) in names:
            raise EditError(
                f"tt.freeze: {Site(path, port, name)} is to stay free, and it is the same "
                f"parameter as {Site(*names[id(tensor)])}, which is to be frozen. Take both away, "
                f"or neither."
            )


def _chosen(model: nn.Module, item: Any) -> Held:
    plan = make_plan(model, item)
    if not isinstance(item, Pattern) or item.ports is None:
        paths = [planned.path for planned in plan.taps]
        return set(_inside(model, paths))
    return set(_named(plan))


def _inside(model: nn.Module, paths: list[str]) -> Iterator[tuple[str, str, str]]:
    """The parameters of modules and of all modules in them."""
    for path, module in modules_of(model)[0].items():
        if any(path == one or not one or path.startswith(f"{one}.") for one in paths):
            for name in module._parameters:
                yield path, "param", name


def _named(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for planned in plan.taps:
        module = planned.module()
        assert module is not None
        for port, chosen in planned.filters.items():
            if port not in _PORTS:
                raise EditError(
                    f"{Site(planned.path, port)} cannot be frozen; a parameter (port 'param') or "
                    f"a buffer can."
                )
            names = module._parameters if port == "param" else module._buffers
            for name in names:
                if chosen.accepts(name):
                    yield planned.path, port, name
