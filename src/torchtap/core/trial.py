"""Runs one model on one batch again and again from the same state, without any hook."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtap.core.distributed import is_distributed, local, num_ranks, sharded_parameters
from torchtap.core.equality import same
from torchtap.core.errors import InputError
from torchtap.core.module_paths import mode_of, modules_of
from torchtap.core.preserved import RandomState, same_states
from torchtap.core.tree import argument_leaves, leaves

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that one run of a model has made."""

    outputs: dict[str, Tensor]
    loss: Tensor | None
    gradients: dict[str, Tensor | None]
    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: list[Any]
    modes: dict[str, bool | None]

    def differences(self, other: Outcome) -> list[str]:
        """Return the names of what is not the same, to the bit, in another run."""
        differing = []
        for what in ("outputs", "gradients", "parameters", "buffers"):
            one, two = getattr(self, what), getattr(other, what)
            names = [name for name in {**one, **two} if not same(one.get(name), two.get(name))]
            differing += [f"{what}[{name}]" for name in names]
        if not same(self.loss, other.loss):
            differing.append("loss")
        if not same_states(self.random, other.random):
            differing.append("random state")
        if self.modes != other.modes:
            differing.append("modes")
        return differing


class Trial:
    """One model with one batch, run several times from the same state.

    Attributes:
        modules: path -> module.
        params: name -> value of each parameter at the start, under every name that it has.
        buffers: likewise.
        is_in_step: whether other ranks may run the same, and wait for this one where the model
            communicates: then it must run as often here as there, whatever is found.
    """

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss | None
    ) -> None:
        self.model = model
        self.modules, _ = modules_of(model)
        self.args = args
        self.kwargs = kwargs
        self.loss = loss
        self.arguments = argument_leaves(args, kwargs)
        self.params = {name: copy_of(one) for name, one in self.parameters()}
        self.buffers = {name: copy_of(one) for name, one in self._own("_buffers")}
        self.is_in_step = num_ranks() > 1
        self._found_buffers = [(module, dict(module._buffers)) for module in self.modules.values()]
        self._values = [copy_of(tensor) for _, tensor in self.arguments]
        self._grads = [(holder, holder.grad) for holder in self._holders().values()]
        self._random = RandomState(self.modules.values(), args, kwargs)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Return each parameter with its name, and the shard in place of what FSDP2 gathered."""
        return self._own("_parameters")

    def _own(self, table: str) -> Iterator[tuple[str, Tensor]]:
        """Parameters or buffers with their names, also where a module contains itself.

        Parameters that FSDP2 has gathered are seen by their shards, which stay the same.
        """
        shards = sharded_parameters()
        for path, module in self.modules.items():
            for name, tensor in getattr(module, table).items():
                if tensor is not None:
                    yield (f"{path}.{name}" if path else name), shards.get(id(tensor), tensor)

    def run(self) -> Outcome:
        """Run forward and backward from the first state."""
        output, loss = self.forward()
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(
            outputs={leaf: copy_of(tensor) for leaf, tensor in leaves(output)},
            loss=None if loss is None else copy_of(loss),
            gradients={
                name: None if holder.grad is None else copy_of(holder.grad)
                for name, holder in self._holders().items()
            },
            parameters={
                name: copy_of(param)
                for name, param in self.parameters()
                if not same(local(param)[0], self.params.get(name))
            },
            buffers={name: copy_of(buffer) for name, buffer in self._own("_buffers")},
            random=self._random.read(),
            modes={path: mode_of(one) for path, one in self.modules.items()},
        )

    def forward(self) -> tuple[Any, Tensor | None]:
        """Return the output and the loss (``None`` where nothing requires grad)."""
        self.rewind()
        output = self.model(*self.args, **self.kwargs)
        loss = self.loss(output) if self.loss is not None else default_loss(output)
        is_scalar = isinstance(loss, Tensor) and loss.numel() == 1
        if not is_scalar and (loss is not None or self.loss is not None):
            raise InputError(
                f"loss must return a scalar tensor, not {type(loss).__name__}"
                f"{list(loss.shape) if isinstance(loss, Tensor) else ''}."
            )
        return output, loss if loss is not None and loss.requires_grad else None

    def rewind(self) -> None:
        """Back to the state in which the model was found, with no gradients."""
        for module, buffers in self._found_buffers:
            if isinstance(module, torch.jit.ScriptModule):
                continue  # It lets none be replaced; their values are written below.
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for name, param in self.parameters():
                _write(param, self.params.get(name))
            for name, buffer in self._own("_buffers"):
                _write(buffer, self.buffers[name])
            for (_, tensor), value in zip(self.arguments, self._values, strict=True):
                _write(tensor, value)
        for holder in self._holders().values():
            holder.grad = None
        self._random.put_back()

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Leave everything as it was, whatever happens inside."""
        try:
            yield
        finally:
            self.rewind()
            for holder, gradient in self._grads:
                holder.grad = gradient

    def _holders(self) -> dict[str, Tensor]:
        """Whatever may receive a ``.grad``: parameters, and arguments that are leaves."""
        holders = dict(self.parameters())
        for leaf, tensor in self.arguments:
            if tensor.is_leaf and tensor.requires_grad:
                holders[f"argument {leaf or '0'}"] = tensor
        return holders


def copy_of(tensor: Tensor) -> Tensor:
    """The part that this rank holds, as records have it: a copy of the whole may communicate."""
    return local(tensor.detach())[0].clone()


def _write(target: Tensor, value: Tensor | None) -> None:
    target, _ = local(target)
    # Nothing is written where nothing changed: a version that grows would be seen by autograd.
    if value is not None and not same(target, value):
        target.copy_(value)


def default_loss(output: Any) -> Tensor | None:
    """Return every floating element weighted by cosines, for a gradient that is nowhere constant.

    (A plain mean would be blind behind a normalisation, where its gradient vanishes.)
    """
    parts = []
    for _, tensor in leaves(output):
        for part in _dense(tensor) if tensor.requires_grad else ():
            wide = (part.abs() if part.is_complex() else part).double()
            places = torch.arange(wide.numel(), dtype=wide.dtype, device=wide.device)
            parts.append((wide * places.cos().reshape(wide.shape)).sum() / max(wide.numel(), 1))
    return torch.stack(parts).sum() if parts else None


def _dense(tensor: Tensor) -> list[Tensor]:
    if is_distributed(tensor):
        return [tensor.full_tensor()]  # type: ignore[attr-defined]
    if tensor.is_nested:
        return list(tensor.unbind())
    return [tensor if tensor.layout is torch.strided else tensor.to_dense()]
