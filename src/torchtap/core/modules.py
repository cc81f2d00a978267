"""The modules of a model by their paths, wrappers looked through."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

from torchtap.core.errors import InputError
from torchtap.core.site import Pattern, Site

OneWhere = str | Pattern | nn.Module | type[nn.Module] | Callable[[Site, nn.Module], bool]


Where = OneWhere | Sequence[OneWhere]


_INNER_OF_WRAPPER = {
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def modules_of(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Modules by path, and the further paths of shared ones.

    As ``named_modules()``, but wrappers (torch.compile, DDP, FSDP, checkpoint wrappers) are looked
    through: the wrapped module stands at the wrapper's path.

    Returns:
        (path -> module, each module once; further path -> first path).
    """
    found: dict[str, nn.Module] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    for path, module in walk(model, "", ()):
        if id(module) in first:
            aliases[path] = first[id(module)]
        else:
            first[id(module)] = path
            found[path] = module
    return found, aliases


def num_parameters(model: nn.Module) -> dict[str, int]:
    """Path -> elements of the parameters that the module itself has; of those that have any.

    Of a sharded parameter the whole counts; a lazy one, which has no shape yet, does not.
    """
    found = {
        path: sum(one.numel() for one in module._parameters.values() if _has_shape(one))
        for path, module in modules_of(model)[0].items()
    }
    return {path: number for path, number in found.items() if number}


def _has_shape(parameter: nn.Parameter | None) -> TypeGuard[nn.Parameter]:
    return parameter is not None and not is_lazy(parameter)


_Link = tuple[Callable[[], nn.Module | None], str, Callable[[], nn.Module | None]]
"""A module, the name of a child, and the child."""


class Places:
    """Where modules stand in a model, to notice later which were replaced or taken out.

    Args:
        model: the outermost module.
        modules: path -> module.
    """

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
        above: dict[int, tuple[nn.Module, _Link]] = {}
        for parent in model.modules():
            for name, child in parent._modules.items():
                if child is not None:
                    link = weakref.ref(parent), name, weakref.ref(child)
                    above.setdefault(id(child), (parent, link))
        self._model = weakref.ref(model)
        self._modules = {path: weakref.ref(module) for path, module in modules.items()}
        self._chains = {path: _chain(module, model, above) for path, module in modules.items()}
        links = {id(link): link for chain in self._chains.values() for link in chain}
        self._links = list(links.values())

    def are_kept(self) -> bool:
        """Whether all modules stand where they stood. Quick; a wrapper that is new is a change."""
        return all(map(_holds, self._links))

    def now(self, path: str) -> str | None:
        """Where the module of a path stands now; ``None`` if the model has it no more."""
        model, module = self._model(), self._modules[path]()
        if model is None or all(map(_holds, self._chains.get(path, ()))):
            return path  # Or there is no model any more that it could be taken out of.
        return next((at for at, one in modules_of(model)[0].items() if one is module), None)


def _chain(
    module: nn.Module, model: nn.Module, above: Mapping[int, tuple[nn.Module, _Link]]
) -> list[_Link]:
    """The links from a module up to the model; a module may contain itself."""
    chain: list[_Link] = []
    passed: set[int] = set()
    while module is not model and id(module) in above and id(module) not in passed:
        passed.add(id(module))
        module, link = above[id(module)]
        chain.append(link)
    return chain


def _holds(link: _Link) -> bool:
    parent, name, child = link
    module = parent()
    return module is not None and module._modules.get(name) is child()


def several(where: Where) -> list[Any]:
    """A request as the list of its parts.

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
    """All paths below a module and what stands there, shared modules once for each path.

    ``above`` are the modules in which it stands: one that contains itself is not entered again.
    """
    module = unwrapped(module)
    if any(module is one for one in above):
        return
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from walk(child, f"{path}.{name}" if path else name, (*above, module))


def unwrapped(module: nn.Module) -> nn.Module:
    """What stands in all wrappers (torch.compile, DDP, FSDP, checkpoint wrappers) of a module."""
    while (inner := _inner_of(module)) is not None:
        module = inner
    return module


def _inner_of(module: nn.Module) -> nn.Module | None:
    """What a wrapper wraps, or ``None`` for a module that is none."""
    if not module._modules:  # Most modules: the rest need not be asked.
        return None
    if isinstance(module, DistributedDataParallel | DataParallel):
        return module._modules["module"]
    for name in type_names(module):  # FSDP2 makes a subclass of the wrapper's class.
        if name in _INNER_OF_WRAPPER:
            return module._modules.get(_INNER_OF_WRAPPER[name])
    return None


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
    of_params = dict.fromkeys(("param", "param_grad", "step_grad", "update"), params)
    return {**of_params, "buffer": buffers}
