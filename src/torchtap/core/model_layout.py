"""The modules of a model, kept from one look to the next for as long as none of it has changed.

Finding the modules of a model with their paths takes longer than seeing that they are what they
were. So the last look is kept beside the model, and with it whatever follows from it alone, such as
a plan. The next look compares all that it depends on, and begins anew where anything differs: the
modules themselves, their classes, what each holds under which names, names of parameters and
buffers, and which modules have a ``forward`` of their own.

Nothing is put on the model, so copies and pickles have nothing of it, and no module is kept alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from itertools import chain
from operator import is_
from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn

from torchtap.core.module_paths import every_module, types_of, walked

_MOST_KEPT = 16
"""Results that are kept of one layout; the oldest is dropped."""


class Look(NamedTuple):
    """The modules of a model, as a look found them. It keeps them alive.

    Attributes:
        layout: of the model.
        modules: path -> module, wrappers looked through.
        every: all modules with the wrappers, the model itself first.
    """

    layout: Layout
    modules: dict[str, nn.Module]
    every: list[nn.Module]


class Layout:
    """The modules of a model with their paths, as they stand.

    Args:
        every: module of a model, the model itself first.

    Attributes:
        aliases: further path of a shared module -> its first.
        types: path -> class names in MRO order.
        refs: path -> weak reference to the module.
        entries: what stood on a table of hooks while some were ours, by the address of the table,
            which it refers to weakly.
        is_comparable: whether a later look can tell that nothing has changed. Of a ``ScriptModule``
            it cannot.
        compare: looks natively: gives all modules, ``False`` where anything is not as it was, or
            ``None`` where it cannot tell.
    """

    compare: ClassVar[Callable[[Layout], Any] | None] = None

    def __init__(self, every: list[nn.Module]) -> None:
        model = every[0]
        numbers = {id(module): number for number, module in enumerate(every)}
        modules, self.aliases = walked(model)
        self.types = types_of(modules)
        self._paths = [(path, numbers[id(module)]) for path, module in modules.items()]
        self._refs = [weakref.ref(module) for module in every]
        self.refs = {path: self._refs[number] for path, number in self._paths}
        self._end = weakref.ref(model, partial(_layouts.pop, id(model)))  # Dropped with the model.
        self._kept: dict[Hashable, Any] = {}
        self.entries: dict[int, Any] = {}
        self.is_comparable = all(map(_is_comparable, every))
        if self.is_comparable:
            self._kinds = list(map(type, every))
            self._classes = list(dict.fromkeys(base for one in self._kinds for base in one.__mro__))
            self._looks = _looks_of(every), _looks_of_classes(self._classes)
            children = chain.from_iterable(module._modules.values() for module in every)
            # Where there is no child, the number of the ``None`` that stands behind all modules.
            self._children = [-1 if one is None else numbers[id(one)] for one in children]
            self._rows = tuple(self._refs), _rows_of(every, numbers), tuple(self._looks[1])

    def look(self, model: nn.Module) -> Look | None:
        """Return the modules of a model, or ``None`` where anything of it is not as it was."""
        found = None if Layout.compare is None or not self.is_comparable else Layout.compare(self)
        if found is None:
            return self._look(model)
        return self.first_look(found) if found and found[0] is model else None

    def rows(self) -> tuple[Any, ...]:
        """Return what :attr:`compare` reads: references, a row of each module and of each class."""
        return self._rows

    def _look(self, model: nn.Module) -> Look | None:
        every: list[Any] = [ref() for ref in self._refs]
        # The classes first: a module that is gone has another.
        if not self.is_comparable or every[0] is not model or list(map(type, every)) != self._kinds:
            return None
        if (_looks_of(every), _looks_of_classes(self._classes)) != self._looks:
            return None
        modules = [*every, None]
        children = chain.from_iterable([module._modules.values() for module in every])
        if not all(map(is_, children, [modules[number] for number in self._children])):
            return None
        return self.first_look(every)

    def first_look(self, every: list[nn.Module]) -> Look:
        """Return the look from which the layout was made; ``every`` of its modules is alive."""
        return Look(self, {path: every[number] for path, number in self._paths}, every)

    def kept(self, name: Hashable) -> Any:
        """Return what was kept under a name, or ``None``."""
        return self._kept.get(name)

    def keep(self, name: Hashable, value: Any) -> None:
        """Keep under a name what follows from the layout alone.

        It is given to several callers, in any thread, and may refer to modules only weakly.
        """
        for oldest in list(self._kept)[: 1 - _MOST_KEPT]:
            self._kept.pop(oldest, None)  # Another thread may have dropped it.
        self._kept[name] = value


def look_at(model: nn.Module) -> Look:
    """Look at a model; its layout is that of the last look where nothing has changed."""
    layout = _layouts.get(id(model))
    look = None if layout is None else layout.look(model)
    if look is None:
        every = every_module(model)
        layout = Layout(every)
        look = layout.first_look(every)
        if layout.is_comparable:
            _layouts[id(model)] = layout
    return look


_layouts: dict[int, Layout] = {}
"""The last layout of each model, by the id of the model, until it is gone."""


def _is_comparable(module: nn.Module) -> bool:
    tables = (module._modules, module._parameters, module._buffers)
    return not isinstance(module, torch.jit.ScriptModule) and all(
        isinstance(table, dict) for table in tables
    )


def _looks_of(modules: list[nn.Module]) -> tuple[list[Any], ...]:
    """Return what a layout depends on of its modules, but for the children themselves."""
    held = [table for one in modules for table in (one._parameters, one._buffers)]
    tables: list[dict[str, Any]] = [*held, *(one._modules for one in modules)]
    return (
        [*map(len, tables)],
        [*chain.from_iterable(tables)],
        [one is None for table in held for one in table.values()],
        ["forward" in module.__dict__ for module in modules],
    )


def _rows_of(modules: list[nn.Module], numbers: dict[int, int]) -> tuple[Any, ...]:
    """Return the same for each module, with the numbers of its children."""
    rows = []
    for one in modules:
        row: list[Any] = [type(one)]
        for table in (one._parameters, one._buffers):
            row += tuple(table), tuple(None if held is None else True for held in table.values())
        children = [None if held is None else numbers[id(held)] for held in one._modules.values()]
        row += tuple(one._modules), tuple(children), "forward" in one.__dict__
        rows.append(tuple(row))
    return tuple(rows)


def _looks_of_classes(classes: list[type]) -> list[tuple[Any, ...]]:
    """Return what a layout depends on of the classes of its modules."""
    return [(one, one.__name__, one.__mro__, getattr(one, "forward", None)) for one in classes]
