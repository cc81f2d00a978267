"""Modules and parameters by name: of the model that was given, or of those that frames hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from torchtap.core.modules import every_module, modules_of, unwrapped
from torchtap.core.text import elide
from torchtap.failures.frame import Frame, values_of

_MOST_MODELS = 32
_MOST_CHARACTERS = 70


class Names:
    """The names of modules, parameters and buffers.

    With several models, a path begins with the name of the variable that holds the model.

    Args:
        frames: of the exception, outermost first.
        model: the only one to look at; by default all that the frames hold.
    """

    def __init__(self, frames: Sequence[Frame], model: nn.Module | None) -> None:
        self.models = [("", unwrapped(model))] if model is not None else list(_models(frames))
        self._paths: dict[int, tuple[str, nn.Module]] = {}
        self._variables: dict[int, tuple[str, str]] = {}
        self._tensors: dict[int, tuple[str, Tensor, nn.Module]] = {}
        num_trained = sum(_has_parameters(one) for _, one in self.models)
        for label, root in self.models:
            head = f"{label}." if label and num_trained > 1 else ""
            for path, module in modules_of(root)[0].items():
                name = f"{head}{path}" if path else head.rstrip(".")
                self._paths.setdefault(id(module), (name, module))
                self._variables.setdefault(id(module), (label or "model", path))
                for leaf, tensor in _state(module):
                    full = f"{name}.{leaf}" if name else leaf
                    self._tensors.setdefault(id(tensor), (full, tensor, module))

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._paths

    def path(self, module: nn.Module) -> str | None:
        """Path of a module; ``None`` if no model has it."""
        found = self._paths.get(id(module))
        return None if found is None else found[0]

    def module(self, module: nn.Module) -> str:
        """A module in a sentence: ``blocks.0.fc (Linear)``."""
        kind = type(module).__name__
        path = self.path(module)
        if path is None:
            return f"a {kind} that is no submodule of the model"
        if path:
            return f"{elide(path, _MOST_CHARACTERS)} ({kind})"
        variable = self.variable(module)
        return f"the {kind} itself" if variable == "model" else f"{variable} ({kind})"

    def variable(self, module: nn.Module) -> str:
        """A module as the program would write it: ``net.blocks[0].fc``."""
        found = self._variables.get(id(module))
        return "module" if found is None else _indexed(*found)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """All modules with their paths."""
        yield from self._paths.values()

    def tensor(self, tensor: Tensor) -> str | None:
        """Name of a parameter or buffer, or of that which it is a view of."""
        found = self._held(tensor)
        return None if found is None else found[0]

    def holder(self, tensor: Tensor) -> nn.Module | None:
        """The module that a parameter or buffer belongs to."""
        found = self._held(tensor)
        return None if found is None else found[2]

    def _held(self, tensor: Tensor) -> tuple[str, Tensor, nn.Module] | None:
        found = self._tensors.get(id(tensor))
        if found is None and not tensor.is_inference() and tensor._is_view():
            found = self._tensors.get(id(tensor._base))
        return found


def _has_parameters(module: nn.Module) -> bool:
    return any(
        one is not None for inner in every_module(module) for one in inner._parameters.values()
    )


def _indexed(variable: str, path: str) -> str:
    parts = (f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)
    return variable + "".join(parts)


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for table in (module._parameters, module._buffers):
        yield from ((name, one) for name, one in table.items() if one is not None)


def _models(frames: Sequence[Frame]) -> Iterator[tuple[str, nn.Module]]:
    """The modules that frames hold, without those that stand in another of them."""
    found: dict[int, tuple[str, nn.Module]] = {}

    def take(name: str, value: Any) -> None:
        is_made = isinstance(value, nn.Module) and "_modules" in vars(value)
        if is_made and len(found) < _MOST_MODELS:
            module = unwrapped(value)
            found.setdefault(id(module), (name, module))

    for frame in frames:
        if frame.is_torch:
            take("", frame.module)
            continue
        for name, value in values_of(frame):
            if not frame.is_user:  # A variable of a library says nothing to the program.
                name = name.rpartition(".")[2]
            take("" if name == "self" else name, value)
            for at, one in enumerate(value[:8] if type(value) in (list, tuple) else ()):
                take(f"{name}[{at}]", one)
    inner: set[int] = set()
    # What torchtap made of a model comes last: the program has a name for the model itself.
    ordered = sorted(found.items(), key=lambda item: _is_ours(item[1][1]))
    for key, (_, module) in ordered:
        inside = {id(one) for one in every_module(module) if one is not module}
        if _is_ours(module) and not inside.isdisjoint(found.keys() - inner):
            inner.add(key)
        elif key not in inner:  # What stands in it stands in what holds it, too.
            inner |= inside
    for key, (name, module) in found.items():
        if key not in inner:
            yield name, module


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torchtap.")
