"""Counts what autograd saves while a model runs, also where parts of it are compiled."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchtap.capture.saved_port import BUFFER, CAST, DUPLICATE, PARAMETER, Counted
from torchtap.core.plan import make_plan
from torchtap.core.record import Record
from torchtap.core.site import Pattern
from torchtap.core.storages import blocks_of
from torchtap.core.torch_private import is_compiled_module
from torchtap.hooks.graph_edges import num_casts
from torchtap.hooks.saved_hooks_scope import SavedHooksScope
from torchtap.hooks.saved_pairs import checked, is_for_checkpoint, make_pair, versioned_alias
from torchtap.saved.buffer_storages import Buffers


class ModelWithLoss(nn.Module):
    """A model and its loss as one module, around which nothing is compiled."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any] | None) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # In a tuple, since a loss that is a module would become a part.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, loss = self.model(*args, **kwargs), self._loss[0]
        return output if loss is None else loss(output)


def path_in_model(path: str) -> str:
    """Return the path in the model, of one in :class:`ModelWithLoss`."""
    return path.removeprefix("model").lstrip(".")


@dataclass(frozen=True, slots=True)
class EagerModules:
    """The modules that run one by one: all except those inside a compiled module.

    Attributes:
        followed: path -> the module that is called there; for a compiled module its wrapper.
        eager: paths of modules that run as they are.
        compiled: paths of compiled modules.
    """

    followed: Mapping[str, nn.Module]
    eager: Sequence[str]
    compiled: Sequence[str]

    @staticmethod
    def of(model: nn.Module, modules: Mapping[str, nn.Module]) -> EagerModules:
        inside: set[int] = set()
        wrappers: dict[int, nn.Module] = {}
        heads: set[int] = set()
        for module in model.modules():
            inner = module
            if type(module).__name__ == "OptimizedModule":
                # torch.compile(model) wraps; model.compile() sets an attribute and leaves the
                # module.
                inner = module._orig_mod  # type: ignore[assignment]
                wrappers[id(inner)] = module
            elif not is_compiled_module(module):
                continue
            heads.add(id(inner))
            inside.update(id(one) for one in inner.modules())
        called = {path: wrappers.get(id(one), one) for path, one in modules.items()}
        return EagerModules(
            {path: one for path, one in called.items() if id(one) not in inside},
            [path for path, one in modules.items() if id(one) not in inside],
            [path for path, one in modules.items() if id(one) in heads],
        )

    def patterns(self) -> list[str | Pattern]:
        """Return the patterns for a watch of :class:`ModelWithLoss`."""
        if not self.compiled:
            return ["*:saved"]
        paths = [f"model.{path}" if path else "model" for path in self.eager]
        return [".:saved", *(Pattern(path, ("saved",)) for path in paths)]

    def notes(self) -> Iterator[str]:
        if self.compiled:
            names = ", ".join(path or "." for path in self.compiled[:3])
            more = f" and {len(self.compiled) - 3} more" if len(self.compiled) > 3 else ""
            yield (
                f"{names}{more} is compiled: what it keeps counts there, since the modules in it "
                f"do not run one by one"
            )


class SavedMeter:
    """Hears of every tensor that autograd saves, and knows at the end which are still saved.

    The graph owns what was packed, so tensors that were freed meanwhile are not counted.

    Args:
        modules: path -> module, each once.
        hooks: count by a pair of saved-tensor hooks. If not, only what a watch finds at the nodes
            is counted.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, hooks: bool) -> None:
        self._hooks = hooks
        self._scope = SavedHooksScope()
        self._scope.pair = make_pair(self._pack, lambda one: checked(one.alias_at_save))
        self._saved: list[weakref.ref[Counted]] = []
        self._of_nodes: list[Counted] = []
        self._buffers = Buffers(modules.items())
        # Not by recursion: a module that is registered twice would count its parameters twice.
        params = (param for module in modules.values() for param in module.parameters(False))
        made = (param for param in params if not is_lazy(param))
        self._params = {number for param in made for number, _ in blocks_of(param)} - {0}

    @contextmanager
    def counting(self, model: nn.Module, followed: Mapping[str, nn.Module]) -> Iterator[None]:
        """Count what is saved while the block runs, and by which module."""
        if not self._hooks:
            yield
            return
        plan = make_plan(model, "*")
        taps = tuple(tap for tap in plan.taps if tap.path in followed)
        self._scope.attach(replace(plan, taps=taps), followed, around=False)
        self._scope.begin()
        try:
            yield
        finally:
            self._scope.end()
            self._scope.detach()

    def take(self, record: Record) -> None:
        """Sink of the watch: a node keeps a tensor."""
        if not self._hooks:
            path = path_in_model(record.site.path)
            labels = tuple(label for label in record.labels if label != DUPLICATE)
            one = Counted(versioned_alias(record.kept), path, labels)
            one.leaf = record.site.leaf.partition("~")[0]
            self._of_nodes.append(one)

    def saved(self) -> list[Counted]:
        """Return the tensors that are still saved, in the order of saving."""
        alive = [reference() for reference in self._saved]
        return [*self._of_nodes, *(one for one in alive if one is not None)]

    def _pack(self, tensor: Tensor) -> Counted:
        one = Counted(versioned_alias(tensor), self._scope.path(), self._labels(tensor))
        if is_for_checkpoint():
            one.leaf = "checkpoint.input"  # A closure of Python holds it, which no node shows.
        self._saved.append(weakref.ref(one))
        return one

    def _labels(self, tensor: Tensor) -> tuple[str, ...]:
        base = tensor._base if tensor._is_view() else tensor
        numbers = [number for number, _ in blocks_of(tensor)]
        if isinstance(base, nn.Parameter) or not self._params.isdisjoint(numbers):
            return (PARAMETER,)
        if num_casts(tensor):
            return (CAST,)
        return (BUFFER,) if any(number in self._buffers for number in numbers) else ()
