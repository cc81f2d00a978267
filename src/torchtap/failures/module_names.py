"""Modules and parameters by name: of the model that was given, or of those that frames hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from torchtap.core.module_paths import every_module, modules_of, unwrapped
from torchtap.core.text import elide
from torchtap.failures.traceback_frame import TracebackFrame

_MOST_MODELS = 32
_MOST_CHARACTERS = 70


class NamedState(NamedTuple):
    """A parameter or buffer.

    Attributes:
        name: with the path of its module.
        module: that it belongs to.
        tensor: itself, held so that its identity stays its own.
    """

    name: str
    module: nn.Module
    tensor: Tensor


class Names:
    """The names of modules, parameters and buffers.

    With several models, a path begins with the name of the variable that holds the model.

    Args:
        frames: of the exception, outermost first.
        model: the only one to look at; by default all that the frames hold.
    """

    def __init__(self, frames: Sequence[TracebackFrame], model: nn.Module | None) -> None:
        self.models = [("", unwrapped(model))] if model is not None else _models(frames)
        self._paths: dict[int, tuple[str, nn.Module]] = {}
        self._variables: dict[int, tuple[str, str]] = {}
        self._states: dict[int, NamedState] = {}
        num_trained = sum(
            any(
                parameter is not None
                for inner in every_module(root)
                for parameter in inner._parameters.values()
            )
            for _, root in self.models
        )
        for label, root in self.models:
            head = f"{label}." if label and num_trained > 1 else ""
            for path, module in modules_of(root)[0].items():
                name = f"{head}{path}" if path else head.rstrip(".")
                # setdefault: a module that two models share has the name of the first.
                self._paths.setdefault(id(module), (name, module))
                self._variables.setdefault(id(module), (label or "model", path))
                for leaf, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None:
                        full = f"{name}.{leaf}" if name else leaf
                        self._states.setdefault(id(tensor), NamedState(full, module, tensor))

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._paths

    def path(self, module: nn.Module) -> str | None:
        """Path of a module; ``None`` if no model has it."""
        return self._paths[id(module)][0] if module in self else None

    def module(self, module: nn.Module | None) -> str:
        """Return a module in a sentence: ``blocks.0.fc (Linear)``; empty of none."""
        if module is None:
            return ""
        kind = type(module).__name__
        if id(module) not in self._paths:
            return f"a {kind} that is no submodule of the model"
        path = self._paths[id(module)][0]
        if path:
            return f"{elide(path, _MOST_CHARACTERS)} ({kind})"
        variable = self.variable(module)
        return f"the {kind} itself" if variable == "model" else f"{variable} ({kind})"

    def variable(self, module: nn.Module | None) -> str:
        """Return a module as the program would write it: ``net.blocks[0].fc``."""
        variable, path = self._variables.get(id(module), ("module", ""))
        parts = (f"[{part}]" if part.isdigit() else f".{part}" for part in path.split(".") if part)
        return variable + "".join(parts)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield all modules with their paths."""
        yield from self._paths.values()

    def state(self, tensor: object) -> NamedState | None:
        """The parameter or buffer that a value is, or is a view of; ``None`` if it is neither."""
        named = self._states.get(id(tensor))
        if named is None and isinstance(tensor, Tensor) and not tensor.is_inference():
            # weight.t() is a view that a layer makes for one operation.
            named = self._states.get(id(tensor._base)) if tensor._is_view() else None
        return named

    def holder(self, tensor: object) -> str:
        """The module that a parameter or buffer belongs to, in a sentence; empty of others."""
        named = self.state(tensor)
        return "" if named is None else self.module(named.module)


def _models(frames: Sequence[TracebackFrame]) -> list[tuple[str, nn.Module]]:
    """Return the modules that frames hold, without those that stand in another of them."""
    models: dict[int, tuple[str, nn.Module]] = {}
    for frame in frames:
        for name, value in [("", frame.module)] if frame.is_torch else _held(frame):
            is_made = isinstance(value, nn.Module) and "_modules" in vars(value)
            if is_made and len(models) < _MOST_MODELS:
                module = unwrapped(value)  # type: ignore[arg-type]
                models.setdefault(id(module), (name, module))
    inner: set[int] = set()
    # A module that torchtap made of a model comes last: the program has a name for the model.
    ours = {key: type(one).__module__.startswith("torchtap.") for key, (_, one) in models.items()}
    for key in sorted(models, key=lambda key: ours[key]):
        module = models[key][1]
        inside = {id(one) for one in every_module(module) if one is not module}
        if ours[key] and not inside.isdisjoint(models.keys() - inner):
            inner.add(key)
        elif key not in inner:  # What stands in it stands in what holds it, too.
            inner |= inside
    return [one for key, one in models.items() if key not in inner]


def _held(frame: TracebackFrame) -> Iterator[tuple[str, object]]:
    """The values of a frame by name: its variables, the attributes of ``self``, items of lists."""
    named = list(frame.own_names.items())
    owner = frame.owner
    if not isinstance(owner, nn.Module | Tensor | None) and hasattr(owner, "__dict__"):
        named += [(f"self.{name}", value) for name, value in vars(owner).items()]
    for name, value in named:
        if not frame.is_user:  # A variable of a library says nothing to the program.
            name = name.rpartition(".")[2]
        yield "" if name == "self" else name, value
        if type(value) in (list, tuple):
            yield from ((f"{name}[{at}]", one) for at, one in enumerate(value[:8]))
