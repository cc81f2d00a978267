"""Modules and parameters by name: of the model that was given, or of those that frames hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from torchtap.core.module_paths import every_module, modules_of, unwrapped
from torchtap.core.text import elide
from torchtap.failures.traceback_frame import TracebackFrame

MODEL = "<model>"
"""Stands for the name of a model that no variable of the program holds."""
_MOST_MODELS = 32
_MOST_ITEMS = 8
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


class _Held(NamedTuple):
    """Something that a frame holds, a module perhaps.

    Attributes:
        label: the variable that holds it, as it stands in front of paths; empty of ``self``.
        variable: the expression that stands for it.
        module: itself, with its wrappers.
    """

    label: str
    variable: str
    module: Any


_NOTHING = _Held("", "", None)


class Names:
    """The names of modules, parameters and buffers.

    With several models, a path begins with the name of the variable that holds the model.

    Args:
        frames: of the exception, outermost first.
        model: the only one to look at; by default all that the frames hold.
    """

    def __init__(self, frames: Sequence[TracebackFrame], model: nn.Module | None) -> None:
        found = _models(frames) if model is None else [_given(model, frames)]
        self.models = [(one.label, unwrapped(one.module)) for one in found]
        self._paths: dict[int, tuple[str, nn.Module]] = {}
        self._places: dict[int, tuple[_Held, str]] = {}
        self._states: dict[int, NamedState] = {}
        num_trained = sum(
            any(
                parameter is not None
                for inner in every_module(root)
                for parameter in inner._parameters.values()
            )
            for _, root in self.models
        )
        for held, (label, root) in zip(found, self.models, strict=True):
            head = f"{label}." if label and num_trained > 1 else ""
            for path, module in modules_of(root)[0].items():
                name = f"{head}{path}" if path else head.rstrip(".")
                # setdefault: a module that two models share has the name of the first.
                self._paths.setdefault(id(module), (name, module))
                self._places.setdefault(id(module), (held, path))
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
        if module not in self:  # The compiler's module around another runs as itself.
            module = unwrapped(module)
        kind = type(module).__name__
        if module not in self:
            return f"a {kind} that is no submodule of the model"
        path = self._paths[id(module)][0]
        if path:
            return f"{elide(path, _MOST_CHARACTERS)} ({kind})"
        label = self._places[id(module)][0].label
        return f"{label} ({kind})" if label else f"the {kind} itself"

    def variable(self, module: nn.Module | None) -> str:
        """Return a module as the program would write it: ``net.blocks[0].fc``."""
        if id(module) not in self._places:
            return "module"
        held, path = self._places[id(module)]
        text, here = held.variable, held.module
        for part in filter(None, path.split(".")):
            text, here = _unwrapped_as_written(text, here)
            text, here = text + _member(here, part), here._modules[part]
        return _unwrapped_as_written(text, here)[0]

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


def _given(model: nn.Module, frames: Sequence[TracebackFrame]) -> _Held:
    """Return the only model that is to be looked at; no variable stands in front of its paths."""
    held = (one for frame in frames for one in _held(frame) if one.module is model and one.label)
    return _Held("", next(held, _Held("", MODEL, model)).variable, model)


def _unwrapped_as_written(text: str, module: nn.Module) -> tuple[str, nn.Module]:
    """Return the module inside of wrappers, and its text where ``text`` stands for the outermost.

    Other wrappers, such as that of ``torch.compile``, hand on attributes of the inner one.
    """
    # A wrapper that refuses what it is to wrap has not kept it yet.
    wrappers = (DataParallel, DistributedDataParallel)
    while isinstance(module, wrappers) and "module" in module._modules:
        text, module = f"{text}.module", module.module
    return text, unwrapped(module)


def _member(module: nn.Module, name: str) -> str:
    """Return what follows a module in the expression for a member of it."""
    if isinstance(module, nn.ModuleDict):
        return f"[{name!r}]"
    return f"[{name}]" if name.isdigit() else f".{name}"


def _models(frames: Sequence[TracebackFrame]) -> list[_Held]:
    """Return the modules that frames hold, without those that stand in another of them."""
    models: dict[int, _Held] = {}
    for frame in frames:
        for held in _held(frame):
            is_made = isinstance(held.module, nn.Module) and "_modules" in vars(held.module)
            if is_made and len(models) < _MOST_MODELS:
                key = id(unwrapped(held.module))
                if not models.get(key, _NOTHING).label:  # Any name says more than none.
                    models[key] = held
    inner: set[int] = set()
    # A module that torchtap made of a model comes last: the program has a name for the model.
    ours = {key: type(one.module).__module__.startswith("torchtap.") for key, one in models.items()}
    for key in sorted(models, key=lambda key: ours[key]):
        module = unwrapped(models[key].module)
        inside = {id(one) for one in every_module(module) if one is not module}
        if ours[key] and not inside.isdisjoint(models.keys() - inner):
            inner.add(key)
        elif key not in inner:  # What stands in it stands in what holds it, too.
            inner |= inside
    return [one for key, one in models.items() if key not in inner]


def _held(frame: TracebackFrame) -> Iterator[_Held]:
    """Yield what a frame holds: variables, attributes of ``self``, items of lists and dicts."""
    if frame.is_torch:
        yield _Held("", MODEL, frame.module)
        return
    if frame.is_standard:  # Its names, as those of copy.deepcopy, are none of the program's.
        yield from (_Held("", MODEL, value) for value in frame.own_names.values())
        return
    named = list(frame.own_names.items())
    owner = frame.owner
    if not isinstance(owner, nn.Module | Tensor | None) and hasattr(owner, "__dict__"):
        named += [(f"self.{name}", value) for name, value in vars(owner).items()]
    for name, value in named:
        if name == "self":
            yield _Held("", "self" if frame.is_user else MODEL, value)
            continue
        if not frame.is_user:  # A variable of a library says nothing to the program.
            name = name.rpartition(".")[2]
        yield _Held(name, name, value)
        if type(value) in (list, tuple):
            items = [(f"{name}[{at}]", one) for at, one in enumerate(value[:_MOST_ITEMS])]
        elif type(value) is dict:
            first = islice(value.items(), _MOST_ITEMS)
            items = [(f"{name}[{key!r}]", one) for key, one in first if type(key) in (str, int)]
        else:
            continue
        yield from (_Held(text, text, one) for text, one in items)
