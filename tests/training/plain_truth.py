"""The values that really flow in a training, found by plain hooks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from torchtap.core.module_paths import modules_of
from torchtap.core.tree import argument_leaves, leaves


class Place(NamedTuple):
    """Site and step at which something flowed."""

    path: str
    port: str
    leaf: str
    step: int
    phase: str = "forward"


class Flowed(NamedTuple):
    """One value, and the call it belongs to."""

    call: int
    value: Tensor


def own(tensor: Tensor) -> Tensor:
    """A copy of what this process holds of a tensor."""
    with torch.no_grad():
        tensor = tensor.detach()
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        if hasattr(tensor, "wait"):
            tensor = tensor.wait()
        return tensor.clone()


class PlainTruth:
    """Notes everything that flows through one model, by plain hooks.

    Attributes:
        values: what flowed at each place, in the order of arrival.
        step: the running step.
        phase: of the calls: the training says when it evaluates.
        infers_shapes: whether the very first call is no call of the training: a pipeline runs its
            stages once on uninitialised memory.
    """

    def __init__(self, model: nn.Module) -> None:
        self.values: dict[Place, list[Flowed]] = defaultdict(list)
        self.step = 0
        self.phase = "forward"
        self.infers_shapes = False
        self._modules, _ = modules_of(model)
        self._calls: Counter[tuple[str, str]] = Counter()
        self._replayed: Counter[str] = Counter()
        self._are_buffers_taken = False
        self._before: list[dict[int, Tensor]] = []
        self._heard: set[tuple[str, str, int]] = set()
        self._handles: list[Any] = [*self._put_on(), *self._listen_to_params()]
        self._begin_step()

    def _put_on(self) -> Iterator[Any]:
        for path, module in self._modules.items():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            yield module.register_forward_pre_hook(partial(self._enter, path), with_kwargs=True)
            yield module.register_forward_hook(partial(self._leave, path))
        yield register_optimizer_step_pre_hook(self._before_step)
        yield register_optimizer_step_post_hook(self._after_step)

    def _listen_to_params(self) -> Iterator[Any]:
        for path, name, param in self._params():
            key = path, name, id(param)
            if param.requires_grad and param.is_leaf and key not in self._heard:
                self._heard.add(key)
                take = partial(self._accumulated, path, name)
                yield param.register_post_accumulate_grad_hook(take)

    def next_step(self) -> None:
        """The step ends."""
        self.step += 1
        self._calls.clear()
        self._replayed.clear()
        self._begin_step()

    def look_again(self) -> None:
        """The parameters were replaced by others, as where they are distributed."""
        self._handles += self._listen_to_params()
        self._begin_step()

    def close(self) -> None:
        """Take the hooks off, and forget the state of a step that did not begin."""
        if not self._are_buffers_taken:
            for place in [place for place in self.values if place.step == self.step]:
                del self.values[place]
        for handle in self._handles:
            handle.remove()

    # ------------------------------------------------------------------ forward

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _is_in_transform() or _is_in_backward():
            return
        if not self._are_buffers_taken:  # DDP sends them around before the first call.
            self._are_buffers_taken = True
            self._take("buffer", "_buffers")
        call = self._calls[path, "input"]
        self._calls[path, "input"] += 1
        for leaf, tensor in argument_leaves(args, kwargs):
            self._note(path, "input", leaf, call, tensor)

    def _leave(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        if _is_in_transform():
            return
        if _is_in_backward():  # A checkpoint that computes again.
            call = self._replayed[path]
            self._replayed[path] += 1
        else:
            call = self._calls[path, "output"]
            self._calls[path, "output"] += 1
        for leaf, tensor in leaves(output):
            if not _is_in_backward():
                self._note(path, "output", leaf, call, tensor)
            if tensor.requires_grad:
                arrive = partial(self._arrive, path, leaf, call, self.phase)
                tensor.register_hook(arrive)

    def _arrive(self, path: str, leaf: str, call: int, phase: str, gradient: Tensor) -> None:
        if self.infers_shapes and (self.step, call) == (0, 0):
            return
        place = Place(path, "grad_output", leaf, self.step, phase)
        self.values[place].append(Flowed(call, own(gradient)))

    def _note(self, path: str, port: str, leaf: str, call: int, tensor: Tensor) -> None:
        if self.infers_shapes and (self.step, call) == (0, 0):
            return
        place = Place(path, port, leaf, self.step, self.phase)
        self.values[place].append(Flowed(call, own(tensor)))

    # ------------------------------------------------------------------ state

    def _params(self) -> Iterator[tuple[str, str, Tensor]]:
        for path, module in self._modules.items():
            for name, param in module._parameters.items():
                if param is not None:
                    yield path, name, param

    def _begin_step(self) -> None:
        """Parameters are looked at before the first call, in which FSDP may gather them."""
        self._are_buffers_taken = False
        self._take("param", "_parameters")

    def _take(self, port: str, table: str) -> None:
        for path, module in self._modules.items():
            for name, tensor in getattr(module, table).items():
                if tensor is not None:
                    self.values[Place(path, port, name, self.step)] = [Flowed(0, own(tensor))]

    def _accumulated(self, path: str, name: str, param: Tensor) -> None:
        if param.grad is not None:  # Else an optimizer used it up before this hook ran.
            self._put(path, "param_grad", name, param.grad)

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        around = {key for before in self._before for key in before}  # Steps inside of steps.
        params = [param for group in optimizer.param_groups for param in group["params"]]
        held = {id(param): param for param in params if id(param) not in around}
        self._before.append({key: own(param) for key, param in held.items()})
        if not _closure(args, kwargs):
            self._take_gradients(held)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        before = self._before.pop()
        if _closure(args, kwargs):
            self._take_gradients(before)
        for path, name, param in self._params():
            if id(param) in before:
                self._put(path, "update", name, own(param) - before[id(param)])

    def _take_gradients(self, held: Any) -> None:
        for path, name, param in self._params():
            if id(param) in held and param.grad is not None:
                self._put(path, "step_grad", name, param.grad)

    def _put(self, path: str, port: str, leaf: str, tensor: Tensor) -> None:
        place = Place(path, port, leaf, self.step)
        self.values[place].append(Flowed(len(self.values[place]), own(tensor)))


def edited_by_hooks(module: nn.Module, factor: float, most: float) -> Callable[[], None]:
    """Multiply what a module returns, and limit the gradient of it; returns what ends it."""

    def change(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        changed = output * factor
        if changed.requires_grad:
            changed.register_hook(lambda gradient: gradient.clamp(-most, most))
        return changed

    return module.register_forward_hook(change).remove


def _closure(args: Any, kwargs: Any) -> Any:
    return kwargs.get("closure") or next(iter(args[1:]), None)


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _is_in_transform() -> bool:
    """Tensors that stand for others."""
    is_in_transform = torch._C._functorch.peek_interpreter_stack() is not None
    return is_in_transform or torch.compiler.is_exporting()
