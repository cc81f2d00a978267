"""Turns what was asked for into a frozen description of what will be tapped."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError, SiteError
from torchtap.core.model_layout import Look, look_at
from torchtap.core.module_paths import (
    Where,
    is_container,
    several,
    state_names,
    walk,
)
from torchtap.core.ports import FLOW_PORTS, MARK_PORTS, PORTS, STATE_PORTS
from torchtap.core.printed import Printed
from torchtap.core.site import WILDCARDS, Pattern, Site, leaf_matches

if TYPE_CHECKING:
    from torchtap.core.planned_size import PlannedSize
    from torchtap.core.printed_page import Page


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter of one port's leaves: a leaf must fit some ``include`` and no ``exclude``."""

    include: tuple[str, ...] = ("",)
    exclude: tuple[str, ...] = ()

    def accepts(self, leaf: str) -> bool:
        """Return whether a leaf is wanted."""
        if "" in self.include and not self.exclude:  # Nearly always.
            return True
        wanted = any(leaf_matches(pattern, leaf) for pattern in self.include)
        return wanted and not any(leaf_matches(pattern, leaf) for pattern in self.exclude)

    @property
    def is_open(self) -> bool:
        """Return whether every leaf is wanted."""
        return "" in self.include and not self.exclude


@dataclass(frozen=True, slots=True)
class PlannedTap:
    """The ports and leaves that are wanted of one module.

    Attributes:
        is_container: whether it cannot be called at all. Kept, since reasons are given later too,
            when there is no model any more.
        bare: sites of an output that is one bare tensor, and of its gradient; ``None`` for one
            that is not wanted.
    """

    path: str
    type: str
    filters: Mapping[str, Filter]
    module: Callable[[], nn.Module | None] = field(repr=False)
    is_container: bool = False
    bare: tuple[Site | None, Site | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        wanted = [
            Site(self.path, port)
            if port in self.filters and self.filters[port].accepts("")
            else None
            for port in ("output", "grad_output")
        ]
        object.__setattr__(self, "bare", tuple(wanted))

    @property
    def ports(self) -> tuple[str, ...]:
        """Return the ports that are wanted."""
        return tuple(self.filters)


@dataclass(frozen=True, slots=True, repr=False)
class Plan(Printed):
    """The plan of a ``watch``, made before it touches the model. Printing it shows it.

    Attributes:
        model: class name of the model.
        where: the request as text.
        taps: one entry per module, in the order of ``named_modules()``.
        absent: what fits the request and cannot be tapped, with reasons.
        patterns: all text patterns; they also select marks.
        unmatched: text patterns that fit no module and so must be those of marks.
        types: path -> class names in MRO order, of all modules.
        aliases: further path of a shared module -> its first.
        measure: asks the sinks that write how large it will be, see :attr:`sizes`.
        ports: that are wanted of any module.
        bare_sites: those of all taps, see :class:`PlannedTap`.
    """

    model: str
    where: tuple[str, ...]
    taps: tuple[PlannedTap, ...]
    absent: tuple[Absence, ...]
    patterns: tuple[Pattern, ...]
    unmatched: tuple[Pattern, ...]
    types: Mapping[str, tuple[str, ...]]
    aliases: Mapping[str, str]
    measure: Callable[[], tuple[PlannedSize, ...]] = field(default=tuple, repr=False, compare=False)
    ports: frozenset[str] = field(init=False, repr=False, compare=False)
    bare_sites: tuple[Site, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bare = (site for tap in self.taps for site in tap.bare if site is not None)
        object.__setattr__(self, "bare_sites", tuple(bare))
        object.__setattr__(self, "ports", frozenset().union(*(tap.filters for tap in self.taps)))

    @property
    def sizes(self) -> tuple[PlannedSize, ...]:
        """Return the planned size of each sink's output, of the sinks that say one."""
        return self.measure()

    def mark_filters(self, name: str) -> dict[str, Filter]:
        """Return the filters of a mark by port; empty if nothing of it is wanted."""
        fitting = [pattern for pattern in self.patterns if pattern.matches_module(name)]
        ports = _ports_of(fitting, assume_all=_only_takes_away(self.patterns))
        return {port: ports[port] for port in MARK_PORTS if port in ports}

    def hint(self, pattern: Pattern, marks: Iterable[str]) -> str:
        """Suggest what may have been meant by a pattern that no module and no mark fits."""
        from torchtap.core.pattern_suggestions import near

        known = [*marks, *(path for path in (*self.types, *self.aliases) if path)]
        return near(pattern, known, self.types)

    def _page(self) -> Page:
        return show_plan(self)


def make_plan(model: nn.Module, where: Where) -> Plan:
    """Resolve a request on a model.

    Raises:
        InputError: ``model`` is no module, or ``where`` is of a kind that cannot select.
        SiteError: a pattern fits nothing, or a module is not in the model.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"The model must be an nn.Module, not {type(model).__name__}.")
    return plan_of(look_at(model), where)


def plan_of(look: Look, where: Where) -> Plan:
    """Resolve a request on a model that was looked at, as :func:`make_plan` does."""
    items = several(where)
    if not all(type(item) in (str, Pattern) for item in items):
        return _resolve(look, where)[0]  # A function may answer otherwise next time.
    plan: Plan | None = look.layout.kept(("plan", *items))
    if plan is None:
        plan, missing = _resolve(look, where)
        if not missing:  # Whether they may be marks depends on code too.
            look.layout.keep(("plan", *items), plan)
    return plan


def _resolve(look: Look, where: Where) -> tuple[Plan, Sequence[Pattern]]:
    """Return the plan, and the patterns that fit no module."""
    model, modules, items = look.every[0], look.modules, several(where)
    aliases, types = look.layout.aliases, look.layout.types
    patterns = tuple(_as_pattern(item) for item in items if isinstance(item, str | Pattern))
    others = [item for item in items if not isinstance(item, str | Pattern)]
    fitting = _Fitting(patterns).of(modules, aliases, types)
    missing = _missing(model, patterns, fitting, (modules, aliases), types)
    unmatched = tuple(pattern for pattern in missing if not pattern.negate)
    choosers = [_chooser(item, modules) for item in others]
    assume_all = not others and _only_takes_away(patterns)
    taps = []
    for path in modules if choosers or assume_all else fitting:
        module = modules[path]
        filters = _ports_of(fitting.get(path, ()), assume_all=assume_all)
        for chooser in choosers:
            _choose(chooser, path, module, filters)
        filters = _without_empty(filters, module)
        if filters:
            kind, reference = type(module).__name__, weakref.ref(module)
            taps.append(PlannedTap(path, kind, filters, reference, is_container(module)))
    if not taps and not unmatched:
        from torchtap.core.pattern_suggestions import nothing_fits

        raise SiteError(nothing_fits(model, where, patterns, others))
    plan = Plan(
        model=type(modules[""]).__name__,
        where=tuple(_as_text(item, modules) for item in items),
        taps=tuple(taps),
        absent=tuple(_cannot(taps, modules)),
        patterns=patterns,
        unmatched=unmatched,
        types=types,
        aliases=aliases,
    )
    return plan, missing


# ---------------------------------------------------------------------- the request


def _as_pattern(item: str | Pattern) -> Pattern:
    return item if isinstance(item, Pattern) else Pattern.parse(item)


Chooser = Callable[[str, nn.Module, str, str], bool]


def _chooser(item: Any, modules: Mapping[str, nn.Module]) -> Chooser:
    """Return a function (path, module, port, leaf) -> bool."""
    if isinstance(item, nn.Module):
        wanted = next((one for _, one in walk(item, "", ())), item)
        if not any(module is wanted for module in modules.values()):
            raise SiteError(
                f"The given {type(item).__name__} is not a module of this "
                f"{type(modules['']).__name__}. Take it from the model itself, e.g. "
                f"model.get_submodule({next((p for p in modules if p), '')!r})."
            )
        return lambda path, module, port, leaf: port == "output" and module is wanted
    if isinstance(item, type):
        if not issubclass(item, nn.Module):
            raise InputError(f"{item.__name__} is not a module class.")
        return lambda path, module, port, leaf: port == "output" and isinstance(module, item)
    if callable(item):
        if not can_take(item, 2):
            name = getattr(item, "__name__", type(item).__name__)
            raise InputError(
                f"where is the function {name}{_signature(item)}; expected one of two arguments, "
                f"as in lambda site, module: isinstance(module, torch.nn.Linear)."
            )
        return lambda path, module, port, leaf: bool(item(Site(path, port, leaf), module))
    raise InputError(f"where holds {item!r}, which is no pattern, module, class or function.")


def can_take(function: Callable[..., Any], num: int) -> bool:
    """Return whether a function can be called with so many arguments, as far as can be told."""
    try:
        inspect.signature(function).bind(*[None] * num)
    except TypeError:
        return False
    except ValueError:  # Of compiled code.
        return True
    return True


def _signature(function: Callable[..., Any]) -> str:
    try:
        names = ", ".join(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # It says something else of itself than a signature.
        return ""
    return f"({names})"


def _choose(chooser: Chooser, path: str, module: nn.Module, filters: dict[str, Filter]) -> None:
    for port in FLOW_PORTS:
        if chooser(path, module, port, ""):
            filters[port] = Filter()
    for port, names in state_names(module).items():
        chosen = tuple(name for name in names if chooser(path, module, port, name))
        if chosen:
            before = filters[port].include if port in filters else ()
            filters[port] = Filter((*before, *chosen))


class _Fitting:
    """Finds which of many patterns fit a module; those without a wildcard by their very path."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._exact: dict[str, list[int]] = {}
        self._open: list[int] = []
        for place, pattern in enumerate(patterns):
            if pattern.type or pattern.path == "." or WILDCARDS & set(pattern.path):
                self._open.append(place)
            else:
                self._exact.setdefault(pattern.path, []).append(place)

    def of(
        self,
        modules: Mapping[str, nn.Module],
        aliases: Mapping[str, str],
        types: Mapping[str, tuple[str, ...]],
    ) -> dict[str, list[Pattern]]:
        """Path -> the patterns that fit the module, in their order; of modules that any fits."""
        places: dict[str, set[int]] = {}
        for name, exact in self._exact.items():
            path = name if name in modules else aliases.get(name)
            if path is not None:
                places.setdefault(path, set()).update(exact)
        for path, names in _names_of(modules, aliases).items() if self._open else ():
            for place in self._open:
                if any(self._patterns[place].matches_module(name, types[path]) for name in names):
                    places.setdefault(path, set()).add(place)
        ordered = places if len(places) < 2 else [path for path in modules if path in places]
        return {path: [self._patterns[at] for at in sorted(places[path])] for path in ordered}


def _names_of(modules: Mapping[str, nn.Module], aliases: Mapping[str, str]) -> dict[str, list[str]]:
    """Path -> that path, and the further ones of the same module."""
    names = {path: [path] for path in modules}
    for alias, first in aliases.items():
        names[first].append(alias)
    return names


def _only_takes_away(patterns: Sequence[Pattern]) -> bool:
    """Return whether there are patterns and all are negated: then everything else is wanted."""
    return bool(patterns) and all(pattern.negate for pattern in patterns)


def _ports_of(fitting: Sequence[Pattern], *, assume_all: bool) -> dict[str, Filter]:
    """Return a module's filters by port: the union of its patterns, less what ``!`` removes."""
    adding = [pattern for pattern in fitting if not pattern.negate]
    if assume_all:
        adding = [Pattern("*")]
    include: dict[str, list[str]] = {}
    exclude: dict[str, list[str]] = {}
    for pattern in adding:
        for port in pattern.effective_ports:
            include.setdefault(port, []).append(pattern.leaf)
    for pattern in fitting:
        for port in pattern.effective_ports if pattern.negate else ():
            exclude.setdefault(port, []).append(pattern.leaf)
    filters = {}
    for port in PORTS:
        taken = exclude.get(port, [])
        if port in include and "" not in taken:
            filters[port] = Filter(tuple(dict.fromkeys(include[port])), tuple(taken))
    return filters


def _missing(
    model: nn.Module,
    patterns: Iterable[Pattern],
    fitting: Mapping[str, list[Pattern]],
    found: tuple[Mapping[str, nn.Module], Mapping[str, str]],
    types: Mapping[str, tuple[str, ...]],
) -> Sequence[Pattern]:
    """Patterns that fit no module: those of marks, if the model makes any, else an error."""
    matched = {id(pattern) for fits in fitting.values() for pattern in fits}
    missing = [pattern for pattern in patterns if id(pattern) not in matched]
    if not missing:
        return missing
    from torchtap.core.mark_search import may_mark
    from torchtap.core.pattern_suggestions import could_be_mark, near, no_module, patterns_in_one

    known = [name for names in _names_of(*found).values() for name in names if name]
    is_marking = may_mark(model)
    for pattern in missing:
        head = f"{type(model).__name__} has no module {pattern.path!r}"
        parts = patterns_in_one(pattern, known)
        if parts:
            raise SiteError(f"{head}. Several patterns are a list: write {parts}.")
        if not is_marking or pattern.type:  # A mark has no class.
            raise SiteError(no_module(head, model, pattern, known, types))
        if not pattern.negate and not could_be_mark(pattern):
            raise SiteError(
                f"{head}{near(pattern, known, types)} If it is a tt.mark: that is one tensor, "
                f"with the ports {' and '.join(MARK_PORTS)} and no leaves; write "
                f"{f'{pattern.path}:output'!r} or {f'{pattern.path}:grad_output'!r}."
            )
    return missing


def _as_text(item: Any, modules: Mapping[str, nn.Module]) -> str:
    if isinstance(item, nn.Module):
        return next((path or "." for path, one in modules.items() if one is item), "?")
    if isinstance(item, type):
        return f"*@{item.__name__}"
    return str(item) if isinstance(item, str | Pattern) else getattr(item, "__name__", repr(item))


# ---------------------------------------------------------------------- the model


def _without_empty(filters: dict[str, Filter], module: nn.Module) -> dict[str, Filter]:
    """Drop the state ports of a module that owns nothing of the kind."""
    names = state_names(module)
    return {
        port: chosen
        for port, chosen in filters.items()
        if port not in STATE_PORTS or any(chosen.accepts(name) for name in names[port])
    }


def _cannot(taps: Iterable[PlannedTap], modules: Mapping[str, nn.Module]) -> Iterator[Absence]:
    import torch

    for tap in taps:
        if isinstance(modules[tap.path], torch.jit.ScriptModule):
            for port in tap.ports:
                yield Absence(Site(tap.path, port), "a ScriptModule takes no hooks")


_MOST_LINES = 40


def show_plan(plan: Plan) -> Page:
    """Return one line per tapped module, then what cannot be tapped."""
    from torchtap.core.printed_page import Listed, Page

    taps = [
        (f"{tap.path or '.'} ({tap.type})", ", ".join(map(_port, tap.filters.items())))
        for tap in plan.taps
    ]
    others = [("", f"{pattern} (a tt.mark, if one is reached)") for pattern in plan.unmatched]
    others += [(f"not {entry.site}", entry.reason) for entry in plan.absent]
    others += [(f"to {size.target}", str(size)) for size in plan.sizes]
    head = f"Plan for {plan.model}: {', '.join(plan.where)}, {len(plan.taps)} modules"
    return Page(Listed(taps, title=head, limit=_MOST_LINES, noun="module"), Listed(others))


def _port(item: tuple[str, object]) -> str:
    port, chosen = item
    include = getattr(chosen, "include", ("",))
    exclude = getattr(chosen, "exclude", ())
    text = port if "" in include else f"{port}[{', '.join(include)}]"
    return f"{text} without [{', '.join(exclude)}]" if exclude else text
