"""Keeps parameters and buffers from moving."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from torchtap.core.distributed import sharded_parameters
from torchtap.core.errors import EditError
from torchtap.core.shared_state import members, new_lock
from torchtap.core.site import Site
from torchtap.hooks.held_params import holders
from torchtap.hooks.optimizer_hooks import has_closure, listen_to_optimizers
from torchtap.hooks.tap import Tap
from torchtap.transfer.buffer_copies import BufferCopies

if TYPE_CHECKING:
    from torchtap.core.plan import Plan

Gradients = Literal["none", "zero", "keep"]
"""How gradients of held parameters end: none is asked for, they are zeros, or they stay."""


class FreezeHooks:
    """Holds what a plan selects (ports ``param`` and ``buffer``) still, until it is detached.

    Parameters: an optimizer that makes a step sees no gradient of theirs, so that neither momentum
    nor decay moves them, and one that might move them all the same finds them put back. Buffers:
    forwards write into copies.

    Args:
        plan: what is selected.
        gradients: what becomes of them.
    """

    def __init__(self, plan: Plan, gradients: Gradients) -> None:
        self.plan = plan
        self.params: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._gradients = gradients
        self._ids: frozenset[int] = frozenset()
        self._required: dict[int, tuple[Tensor, bool]] = {}
        self._steps: dict[int, _Step] = {}
        self._handles: list[Any] = []
        self._stand_ins: list[BufferCopies] = []

    def attach(self) -> None:
        """Freeze."""
        with _lock:
            self._attach()

    def _attach(self) -> None:
        shards = sharded_parameters()
        for planned, module in self._owners():
            # By the module, weakly: optimizers' hooks are global and know this object weakly, too.
            _keepers.setdefault(module, set()).add(self)
            tap = Tap(planned.path, planned.filters)
            for name, param in _chosen(tap, "param", module._parameters).items():
                shard = shards.get(id(param), param)  # What the optimizer moves.
                self.params[str(Site(tap.path, "param", name))] = shard
            buffers = _chosen(tap, "buffer", module._buffers)
            for name, buffer in buffers.items():
                self.buffers[str(Site(tap.path, "buffer", name))] = buffer
            if buffers:
                self._stand_ins.append(BufferCopies(tap, module, buffers))
        self._ids = frozenset(id(param) for param in self.params.values())
        for param in {id(one): one for one in self.params.values()}.values():
            self._hold(param)
        self._handles += listen_to_optimizers(self)
        holders.add(self)

    def _hold(self, param: Tensor) -> None:
        if self._gradients == "none":
            self._required[id(param)] = param, param.requires_grad
            _copy_as_free(param)  # First: a thread that copies the model meanwhile needs it.
            param.requires_grad_(False)
        elif self._gradients == "zero" and param.requires_grad:
            # The hook is called before the gradient is accumulated, so .grad gets zeros.
            handle = param.register_hook(torch.zeros_like)  # type: ignore[no-untyped-call]
            self._handles.append(handle)

    def _follow(self) -> None:
        """Hold what stands now where a parameter stood that was replaced.

        ``fully_shard`` and ``load_state_dict(assign=True)`` do so, and optimizers know the new one.
        """
        for planned, module in self._owners():
            for name, now in module._parameters.items():
                site = str(Site(planned.path, "param", name))
                held = self.params.get(site)
                if held is None or now is None or now is held:
                    continue
                now = sharded_parameters().get(id(now), now)
                if now is not held:
                    self._replace(site, held, now)

    def _replace(self, site: str, held: Tensor, now: Tensor) -> None:
        self.params[site] = now
        self._ids = frozenset(id(param) for param in self.params.values())
        _, required = self._required.get(id(held), (held, False))
        required = required or now.requires_grad  # What took its place was made without, too.
        self._hold(now)
        if id(now) in self._required:
            self._required[id(now)] = now, required

    def detach(self) -> None:
        """Give everything back."""
        with _lock:
            self._detach()

    def _detach(self) -> None:
        self._follow()
        for handle in self._handles:
            handle.remove()
        for buffer_copies in self._stand_ins:
            buffer_copies.detach()
        self._handles.clear()
        self._stand_ins.clear()
        for key in list(self._steps):  # Of optimizers whose step raised.
            self._steps.pop(key).show()
        holders.discard(self)
        for _, module in self._owners():
            _keepers.get(module, set()).discard(self)
        for key, (param, required) in self._required.items():
            # Freezes of one parameter may be closed in any order: the first would give back what a
            # later one still holds.
            others = [other for other in _freezes() if key in other._required]
            if others:  # Still held; who closes last gives it back.
                others[0]._required[key] = param, required or others[0]._required[key][1]
            else:
                param.requires_grad_(required)
                _copy_as_it_is(param)
        self._required.clear()
        self.params.clear()
        self.buffers.clear()
        self._ids = frozenset()

    def holds(self, param: Tensor) -> bool:
        """Return whether a parameter is among those held."""
        return id(param) in self._ids

    # ------------------------------------------------------------------ optimizers

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """A step begins: the arguments to make it with, where they are others."""
        if id(optimizer) in self._steps:  # Its last one raised.
            self._steps.pop(id(optimizer)).show()
        with _lock:
            self._follow()
        every = [param for group in optimizer.param_groups for param in group["params"]]
        held = [param for param in every if self.holds(param)]
        if not held:
            return None
        computes = has_closure(args, kwargs)
        step = _Step(held, has_closure=computes, is_known=_passes_over(optimizer))
        self._steps[id(optimizer)] = step
        step.hide()
        if not computes:
            return None
        positional = (arg if not callable(arg) else step.around(arg) for arg in args[1:])
        named = {name: step.around(one) if callable(one) else one for name, one in kwargs.items()}
        # The first argument is the optimizer itself.
        return (args[0], *positional), named

    def after_step(self, optimizer: Optimizer) -> None:
        """The step returned: the gradients are back, and so are values that moved.

        Raises:
            EditError: the optimizer called its closure while a held parameter was moved.
        """
        step = self._steps.pop(id(optimizer), None)
        if step is None:
            return
        step.show()
        moved = step.put_back()
        if moved:
            names = [text for text, param in self.params.items() if id(param) in moved]
            kind = type(optimizer).__name__
            raise EditError(
                f"tt.freeze: {kind} moved {', '.join(names[:3])} although it has no gradient, and "
                f"called its closure with it moved. It has its value again, but what {kind} did to "
                f"the others rests on that. Make a new {kind} when something is frozen: this one "
                f"remembers steps from before."
            )

    def _owners(self) -> Iterator[tuple[Any, nn.Module]]:
        for planned in self.plan.taps:
            module = planned.module()
            if module is not None:
                yield planned, module


class _Step:
    """One step of an optimizer, in which what is held has no gradient.

    Args:
        params: what is held of the optimizer's parameters.
        has_closure: whether the step computes gradients itself, perhaps several times.
        is_known: whether the optimizer leaves alone what has no gradient. If so, and without a
            closure, no copy is made.
    """

    def __init__(self, params: list[Tensor], *, has_closure: bool, is_known: bool) -> None:
        self._params = params
        self._gradients: list[Tensor | None] = [None] * len(params)
        self._has_closure = has_closure
        self._values: list[Tensor] = []
        if has_closure or not is_known:
            # Momentum and decay of an optimizer of the user's may move what has no gradient.
            self._values = [param.detach().clone() for param in params]

    def hide(self) -> None:
        """No gradient, no step: optimizers pass over what has none."""
        self._gradients = [param.grad for param in self._params]
        for param in self._params:
            param.grad = None

    def show(self) -> None:
        """The gradients are there again."""
        for param, gradient in zip(self._params, self._gradients, strict=True):
            # Or a closure that computed new gradients would lose them to the old ones.
            if param.grad is None:
                param.grad = gradient

    def around(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure, which finds the gradients that it left, and has its own hidden."""

        def with_own_gradients() -> Any:
            self.show()
            try:
                return closure()
            finally:
                self.hide()

        return with_own_gradients

    def put_back(self) -> set[int]:
        """Every value is what it was; the ids of those with which a closure ran moved."""
        moved = set()
        with torch.no_grad():
            for param, value in zip(self._params, self._values, strict=False):
                if self._has_closure and not _is_same(param, value):
                    moved.add(id(param))
                # Not seen by autograd: for it nothing has happened.
                param.data.copy_(value)
        return moved


# A handle that is dropped leaves the freeze on, as long as the model lives.
_lock = new_lock()
"""Taken while freezes hand on parameters to each other: the last holder gives one back."""
_keepers: weakref.WeakKeyDictionary[nn.Module, set[FreezeHooks]] = weakref.WeakKeyDictionary()


def _freezes() -> list[FreezeHooks]:
    """Return those that are open; several may hold one parameter."""
    return [holder for holder in members(holders) if isinstance(holder, FreezeHooks)]


class _Free:
    """Copying and pickling of a held parameter, as if it were not held.

    Its methods stand on the parameter as attributes, see :mod:`torchtap.hooks.module_hook`.
    """

    __slots__ = ("_id", "given_back")

    def __init__(self, param: nn.Parameter) -> None:
        self._id = id(param)  # A weak reference would keep Module.to from swapping the tensor.
        # Set as this is taken off the parameter, for a thread that is about to copy it.
        self.given_back: Tensor | None = None

    def deepcopy(self, memo: dict[int, Any]) -> Any:
        """Return a copy, for ``copy.deepcopy``."""
        return copy.deepcopy(self._twin(), memo)

    def reduce(self, protocol: int) -> Any:
        """Return the reduced form of the parameter, for pickle."""
        return self._twin().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def _twin(self) -> nn.Parameter:
        """Return a parameter of the same memory that requires grad as this one did."""
        with _lock:
            held = [one._required[self._id] for one in _freezes() if self._id in one._required]
            if self.given_back is not None:
                held = [(self.given_back, self.given_back.requires_grad)]
            param = held[0][0]
            own = {name: one for name, one in vars(param).items() if name not in _ASKED}
        twin = nn.Parameter(param.data, requires_grad=any(required for _, required in held))
        vars(twin).update(own)
        return twin


_ASKED = ("__deepcopy__", "__reduce_ex__")


def _copy_as_free(param: Tensor) -> None:
    if type(param) is nn.Parameter and not any(name in vars(param) for name in _ASKED):
        free = _Free(param)
        vars(param).update(__deepcopy__=free.deepcopy, __reduce_ex__=free.reduce)


def _copy_as_it_is(param: Tensor) -> None:
    free = getattr(vars(param).get("__reduce_ex__"), "__self__", None)
    if isinstance(free, _Free):
        free.given_back = param
        for name in _ASKED:
            del vars(param)[name]


def _chosen(tap: Tap, port: str, tensors: Any) -> dict[str, Tensor]:
    """Return the tensors that are selected, by name."""
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor is not None and tap.state(port, name) is not None
    }


def _passes_over(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is known to skip what has no gradient: PyTorch's own do."""
    has_hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    # PyTorch's own optimizers skip parameters without a gradient; hooks on a step may do anything.
    return type(optimizer).__module__.startswith("torch.optim.") and not has_hooks


def _is_same(left: Tensor, right: Tensor) -> bool:
    # torch.equal is quick, and calls NaN unequal to itself.
    return torch.equal(left, right) or bool(((left == right) | left.isnan() & right.isnan()).all())
