"""The modules of a model by their paths, wrappers looked through."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, TypeGuard

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from torchtap.core.errors import InputError
from torchtap.core.ports import BY_NAME, STATE_PORTS
from torchtap.core.site import Pattern, Site

OneWhere = str | Pattern | nn.Module | type[nn.Module] | Callable[[Site, nn.Module], bool]


Where = OneWhere | Sequence[OneWhere]


Modules = tuple[dict[str, nn.Module], dict[str, str]]
"""Path -> module, and further path -> first path."""

_WALKS: ContextVar[dict[int, tuple[nn.Module, Modules | None]] | None]
_WALKS = ContextVar("walks", default=None)
"""Models inside of :func:`walked_once`: identity -> model, and what its first walk found."""

_INNER_OF_WRAPPER = {
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def modules_of(model: nn.Module) -> Modules:
    """Modules by path, and the further paths of shared ones.

    Paths are those of ``named_modules()``, but wrappers (torch.compile, DDP, FSDP, checkpoint
    wrappers) are looked through: the wrapped module stands at the wrapper's path.

    Returns:
        (path -> module, each module once; further path -> first path).
    """
    walks = _WALKS.get() or {}
    if id(model) not in walks:
        return walked(model)
    _, known = walks[id(model)]
    if known is None:
        known = walked(model)
        walks[id(model)] = model, known
    modules, aliases = known
    return dict(modules), dict(aliases)


@contextmanager
def walked_once(model: nn.Module) -> Iterator[None]:
    """Inside, :func:`modules_of` gives the modules that the model had when it was first asked.

    For work that asks again and again of a model whose modules stay: each walk takes a millisecond
    for a thousand modules.

    Args:
        model: any module.
    """
    before = _WALKS.get() or {}
    if id(model) in before:
        yield
        return
    token = _WALKS.set({**before, id(model): (model, None)})
    try:
        yield
    finally:
        _WALKS.reset(token)


def walked(model: nn.Module) -> Modules:
    """Return :func:`modules_of` a model as it is now, also inside of :func:`walked_once`."""
    paths: dict[str, nn.Module] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for path, module in walk(model, "", ()):
        if id(module) in first:
            aliases[path] = first[id(module)]
        else:
            first[id(module)] = path
            paths[path] = module
    return paths, aliases


def every_module(model: nn.Module) -> list[nn.Module]:
    """Return what ``model.modules()`` yields, wrappers too; without the names it is quicker."""
    modules: dict[int, nn.Module] = {}
    waiting: list[nn.Module | None] = [model]
    while waiting:
        module = waiting.pop()
        if module is not None and id(module) not in modules:
            modules[id(module)] = module
            waiting.extend(reversed(module._modules.values()))
    return list(modules.values())


def is_container(module: nn.Module) -> bool:
    """Return whether the module cannot be called at all, such as ``nn.ModuleList``."""
    if isinstance(module, torch.jit.ScriptModule):  # Its class tells nothing: all share one.
        return not hasattr(module, "forward")
    return type(module).forward is nn.Module.forward and "forward" not in vars(module)


def mode_of(module: nn.Module) -> bool | None:
    """Return whether a module is in training mode; ``None`` if it has none, as PyTorch allows."""
    if isinstance(module, torch.jit.ScriptModule):
        return getattr(module, "training", None)  # torch.jit.freeze takes it away.
    mode: bool | None = vars(module).get("training")  # A module's own __getattr__ may raise.
    return mode


def num_parameters(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """Path -> elements of the parameters that the module itself has; of those that have any.

    A sharded parameter counts as a whole; a lazy one, which has no shape yet, does not count.

    Args:
        modules: path -> module.
    """
    numbers = {
        path: sum([one.numel() for one in module._parameters.values() if _has_shape(one)])
        for path, module in modules.items()
        if module._parameters
    }
    return {path: number for path, number in numbers.items() if number}


def _has_shape(parameter: nn.Parameter | None) -> TypeGuard[nn.Parameter]:
    return type(parameter) is nn.Parameter or (parameter is not None and not is_lazy(parameter))


_Link = tuple[Callable[[], nn.Module | None], str, Callable[[], nn.Module | None]]
"""A module, the name of a child, and the child."""


class Places:
    """The places of modules in a model, to notice later which were replaced or taken out.

    Args:
        model: the outermost module.
        modules: path -> module.

    Attributes:
        compare: looks natively whether all links hold, which it is given.
    """

    compare: ClassVar[Callable[[list[_Link]], bool] | None] = None

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
        above: dict[int, tuple[nn.Module, str]] = {}
        for parent in every_module(model):
            for name, child in parent._modules.items():
                if child is not None:
                    above.setdefault(id(child), (parent, name))
        self._model = weakref.ref(model)
        self._modules = {path: weakref.ref(module) for path, module in modules.items()}
        self._chains = {path: _chain(module, model, above) for path, module in modules.items()}
        # Weak references to one module are one and the same object.
        every = (link for chain in self._chains.values() for link in chain)
        self._links = list({(id(link[0]), link[1]): link for link in every}.values())

    def are_kept(self) -> bool:
        """Return whether all modules are where they were. Quick; a new wrapper is a change."""
        compare = Places.compare
        return all(map(holds, self._links)) if compare is None else compare(self._links)

    def now(self, path: str) -> str | None:
        """Return the path that a module has now; ``None`` if the model has it no more."""
        model, module = self._model(), self._modules[path]()
        if model is None or all(map(holds, self._chains.get(path, ()))):
            return path  # Or there is no model any more that it could be taken out of.
        return next((at for at, one in modules_of(model)[0].items() if one is module), None)


def _chain(
    module: nn.Module, model: nn.Module, above: Mapping[int, tuple[nn.Module, str]]
) -> list[_Link]:
    """Return the links from a module up to the model; a module may contain itself."""
    chain: list[_Link] = []
    passed: set[int] = set()
    while module is not model and id(module) in above and id(module) not in passed:
        passed.add(id(module))
        parent, name = above[id(module)]
        chain.append((weakref.ref(parent), name, weakref.ref(module)))
        module = parent
    return chain


def holds(link: _Link) -> bool:
    """Return whether a module holds a child under a name."""
    parent, name, child = link
    module = parent()
    return module is not None and name in module._modules and module._modules[name] is child()


def several(where: Where) -> list[Any]:
    """Return a request as the list of its parts.

    Raises:
        InputError: it is of a kind that cannot select, or empty.
    """
    single = isinstance(where, str | Pattern | nn.Module | type) or callable(where)
    if single:
        return [where]
    try:
        items = list(where)  # type: ignore[arg-type]
    except TypeError:
        items = []
    if not items:
        raise InputError(
            f"where is {where!r}; expected a pattern, a module, a module class, a function of "
            f"(site, module), or a list of them."
        )
    return items


def walk(
    module: nn.Module, path: str, above: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and those below with their paths, in the order of ``named_modules()``.

    Shared modules come once for each path. ``above`` are the modules in which it stands: one that
    contains itself is not entered again.
    """
    waiting = [(path, module, above)]
    while waiting:
        path, module, above = waiting.pop()
        if not module._modules:  # Most modules: no wrapper, and nothing in them.
            yield path, module
            continue
        module = unwrapped(module)
        if id(module) in map(id, above):  # A module may contain itself.
            continue
        yield path, module
        prefix, inside = f"{path}." if path else "", (*above, module)
        for name, child in reversed(module._modules.items()):
            if child is not None:
                waiting.append((f"{prefix}{name}", child, inside))


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside all wrappers (torch.compile, DDP, FSDP, checkpoint wrappers)."""
    while (inner := _inner_of(module)) is not None:
        module = inner
    return module


def _inner_of(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps, or ``None`` for a module that is no wrapper."""
    if not module._modules:  # Most modules: the rest need not be asked.
        return None
    if isinstance(module, DistributedDataParallel | DataParallel):
        return module._modules["module"]
    for name in type_names(module):  # FSDP2 makes a subclass of the wrapper's class.
        if name in _INNER_OF_WRAPPER:
            return module._modules.get(_INNER_OF_WRAPPER[name])
    return None


def types_of(modules: Mapping[str, nn.Module]) -> dict[str, tuple[str, ...]]:
    """Path -> names of the module's class and of its bases below ``nn.Module``."""
    known: dict[type, tuple[str, ...]] = {}
    for module in modules.values():
        if type(module) not in known:
            known[type(module)] = tuple(type_names(module))
    return {path: known[type(module)] for path, module in modules.items()}


def type_names(module: nn.Module) -> Iterator[str]:
    """Names of its class and of the classes that it inherits from, up to ``nn.Module``."""
    for base in type(module).__mro__:
        if base is nn.Module:
            return
        yield base.__name__


def state_names(module: nn.Module) -> dict[str, list[str]]:
    """Port -> names of the parameters or buffers that the module itself has."""
    params = [name for name, param in module._parameters.items() if param is not None]
    buffers = [name for name, buffer in module._buffers.items() if buffer is not None]
    held = {"param": params, "buffer": buffers}
    return {port: held[BY_NAME[port].holder] for port in STATE_PORTS}
