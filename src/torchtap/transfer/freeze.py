"""Holds parameters and buffers still, and gives them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from torchtap.core.closable import Closable
from torchtap.core.doors import require
from torchtap.core.errors import EditError, SiteError
from torchtap.core.module_paths import Where, modules_of, several
from torchtap.core.plan import Plan, make_plan
from torchtap.core.site import Pattern, Site
from torchtap.transfer.freeze_hooks import FreezeHooks, Gradients

Name = tuple[str, str, str]
"""Path, port and the tensor's own name."""

Held = set[Name]

_KINDS = {"param": "parameter", "buffer": "buffer"}


class Freeze(Closable):
    """The result of ``tt.freeze``: a context manager and a handle, safe to close twice.

    Attributes:
        params: the parameters that are held, as site text (``fc:param[bias]``).
        buffers: the buffers that are held.

    Example:
        >>> import torch, torchtap as tt
        >>> tt.freeze(torch.nn.BatchNorm1d(3), "*:param,buffer")
        <Freeze of 2 parameters and 3 buffers, on>
    """

    def __init__(self, frozen: FreezeHooks) -> None:
        self._frozen = frozen
        frozen.attach()
        self.params = tuple(frozen.params)
        self.buffers = tuple(frozen.buffers)

    def close(self) -> None:
        """Give everything back: ``requires_grad`` is what it was."""
        super().close()

    def _closed(self) -> EditError:
        return EditError("This freeze is closed; call tt.freeze again to go on.")

    def _finish(self, *, raising: bool) -> None:
        self._frozen.detach()

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
            what the forward of their module writes: it works on copies).
        keep_grad: ``True`` leaves ``requires_grad`` alone and gradients where they are computed;
            only optimizers are kept from using them. ``False`` switches ``requires_grad`` off. By
            default the latter; and where ``model`` is a DDP wrapper, which waits for all
            gradients that it knew of when it was made, the gradients come and are zeros.

    Returns:
        a context manager and handle.

    Raises:
        SiteError: a pattern fits nothing, or nothing that owns parameters.
        EditError: a tied tensor is selected by one name and taken away by the other; a port other
            than ``param`` and ``buffer``; a lazy module that has not run yet; or (at a step with
            a closure) an optimizer moved a parameter by what it remembered, and ran the closure
            with it moved. It is put back then, too.

    Some optimizers may move a parameter that has no gradient: those that are not PyTorch's own,
    have step hooks, or are given a closure. Held parameters that they were given are put back bit
    by bit after the step, from a copy that lives as long as the step. Leave them out of such an
    optimizer's parameters where that memory is short. Its own state (momentum, slow weights) may
    change.

    Only steps of a ``torch.optim.Optimizer`` and forwards are guarded. Any other code can write
    into what is held: ``load_state_dict``, ``AveragedModel.update_parameters``, your own lines.
    Optimizers of other kinds see ``requires_grad=False``, and a ``.grad`` that was left from
    before.

    A tensor that takes the place of a held parameter (by ``fully_shard``,
    ``load_state_dict(assign=True)``, or an assignment) is held from the next step of an optimizer
    on.

    A copy (``copy.deepcopy``) or a file (pickle, ``torch.save``) of the model is not frozen: its
    parameters require grad as they did before.

    With ``keep_grad=True`` the gradients stand in ``.grad``, so ``clip_grad_norm_`` over all
    parameters counts them: give it those that are trained, or use ``tt.edits.clip_norm`` with
    ``over="all"``, which leaves out what is frozen. An optimizer of which everything is frozen has
    no gradients for ``GradScaler.step``, which then raises ``AssertionError``, as it does for
    ``requires_grad=False``: do not make that step, or pass ``keep_grad=True``.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> with tt.freeze(model, "0") as frozen:
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> frozen.params, model[0].weight.grad, model[0].weight.requires_grad
        (('0:param[weight]', '0:param[bias]'), None, True)
    """
    require("tt.freeze", model)
    held = _held(model, where)
    plan = make_plan(model, lambda site, _: (site.path, site.port, site.leaf) in held)
    return Freeze(FreezeHooks(plan, _gradients(model, keep_grad)))


def _gradients(model: nn.Module, keep_grad: bool | None) -> Gradients:
    if keep_grad is None:
        return "zero" if isinstance(model, DistributedDataParallel) else "none"
    return "keep" if keep_grad else "none"


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
    return _with_twins(model, held - taken, taken)


def _with_twins(model: nn.Module, held: Held, taken: Held) -> Held:
    """Return all names of what is held.

    Raises:
        EditError: a tensor with two names is to be held by one and free by the other; or it is
            not there yet.
    """
    names: dict[int, Name] = {}
    tensors = dict(_tensors(model))
    for name in sorted(held):
        tensor = tensors.get(name)
        if tensor is not None:
            names[id(tensor)] = name
            _refuse_lazy(name, tensor)
    twins = {name for name, tensor in tensors.items() if id(tensor) in names}
    for name in sorted(twins & taken):
        raise EditError(
            f"tt.freeze: {Site(*name)} is to stay free, and it is the same {_KINDS[name[1]]} as "
            f"{Site(*names[id(tensors[name])])}, which is to be frozen. Take both away, or neither."
        )
    return held | {name for name in twins if name[1] == "buffer"}


def _tensors(model: nn.Module) -> Iterator[tuple[Name, Tensor]]:
    for path, module in modules_of(model)[0].items():
        for port, own in (("param", module._parameters), ("buffer", module._buffers)):
            for name, tensor in own.items():
                if tensor is not None:
                    yield (path, port, name), tensor


def _refuse_lazy(name: Name, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise EditError(
            f"tt.freeze: {Site(*name)} has no values yet; a lazy module makes them in its first "
            f"forward. Run the model once on a batch, then freeze."
        )


def _chosen(model: nn.Module, item: Any) -> Held:
    plan = make_plan(model, item)
    if not isinstance(item, Pattern) or item.ports is None:
        paths = [planned.path for planned in plan.taps]
        return set(_inside(model, paths))
    return set(_named(plan))


def _inside(model: nn.Module, paths: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the parameters of modules and of all modules in them."""
    for path, module in modules_of(model)[0].items():
        if any(path == one or not one or path.startswith(f"{one}.") for one in paths):
            for name in module._parameters:
                yield path, "param", name


def _named(plan: Plan) -> Iterator[tuple[str, str, str]]:
    for planned in plan.taps:
        module = planned.module()
        assert module is not None
        for port, chosen in planned.filters.items():
            if port not in _KINDS:
                raise EditError(
                    f"{Site(planned.path, port)} cannot be frozen; a parameter (port 'param') or "
                    f"a buffer can."
                )
            names = module._parameters if port == "param" else module._buffers
            for name in names:
                if chosen.accepts(name):
                    yield planned.path, port, name
