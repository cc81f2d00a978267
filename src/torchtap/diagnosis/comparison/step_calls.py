"""The calls of the modules in one step of a run, in the order in which they ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchtap.core.errors import SiteError
from torchtap.core.ports import BY_NAME, OPTIMIZER_PORTS
from torchtap.core.record import EVAL, FORWARD, Record
from torchtap.diagnosis.comparison.distance import Value, Values, numel_of
from torchtap.diagnosis.comparison.traits import Traits, num_terms, traits_of
from torchtap.runs.run import Run
from torchtap.stats.statistics import Statistics


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a module.

    Attributes:
        path: of the module, empty for the model.
        number: within the step.
        phase: ``forward`` or ``eval``.
        place: in the order in which calls end.
        start: in the order in which calls begin, on the same scale; ``None`` if not known.
        is_leaf: no call of a module below it was seen.
        num_inside: calls of leaves inside of it, 1 for a leaf.
        traits: of the module.
        values: port -> leaf -> value.
    """

    path: str
    number: int
    phase: str
    place: float
    start: float | None
    is_leaf: bool
    num_inside: int
    traits: Traits
    values: Mapping[str, Values]

    @property
    def name(self) -> str:
        """Return the path as text."""
        return self.path or "."

    def port(self, name: str) -> Values:
        """Leaf -> value of one port; empty where nothing is known."""
        return self.values.get(name, {})

    @property
    def sizes(self) -> list[int]:
        """Elements of each tensor that it returned."""
        return numel_of(self.port("output"))

    def holds(self, other: Call) -> bool:
        """Return whether another call ran inside this one."""
        if self.path == other.path or not is_below(other.path, self.path):
            return False
        if other.place > self.place:
            return False
        return self.start is None or self.start <= (
            other.place if other.start is None else other.start
        )


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Values of one module that are of no call: its parameters, their gradients and updates.

    Attributes:
        path: of the module, empty for the model.
        port: which.
        number: which accumulation, of ``param_grad``.
        values: name of the parameter or buffer -> value.
    """

    path: str
    port: str
    number: int
    values: Values

    @property
    def phase(self) -> str:
        """When the value came about."""
        if self.port in OPTIMIZER_PORTS:
            return "optimizer"
        return "backward" if BY_NAME[self.port].is_gradient else "parameter"


@dataclass(frozen=True, slots=True, eq=False)
class StepCalls:
    """All that one side of a comparison has of one step.

    Attributes:
        step: its number.
        calls: in the order in which they ended.
        states: parameters and the like, in the order of the modules.
        is_ordered: whether that order is known. Statistics do not tell it, and stand in the order
            of the modules.
        num_lost: values that were overwritten before they could be read.
    """

    step: int
    calls: Sequence[Call]
    states: Sequence[State]
    is_ordered: bool = True
    num_lost: int = 0


@dataclass(slots=True)
class _Growing:
    """A call while its records are gathered."""

    place: float = -1.0
    start: float | None = None
    values: dict[str, dict[str, Value]] = field(default_factory=lambda: defaultdict(dict))


def is_below(path: str, above: str) -> bool:
    """Return whether a path is below another one."""
    return path != above and (not above or path.startswith(f"{above}."))


def step_calls(
    run: Run, step: int, known: Mapping[str, Traits] | None = None, *, by_statistics: bool = False
) -> StepCalls:
    """The calls of one step of a run; of sites that were measured alone, with their statistics.

    Args:
        run: which.
        step: which.
        known: path -> traits of the modules, where these are at hand.
        by_statistics: whether statistics stand for all values, as the other side has no others;
            those of all calls of a site together.
    """
    kept, states, num_lost = _kept(run, step if not by_statistics else None)
    is_ordered = bool(kept)
    _add_measured(run, step, kept, states)
    paths = {path for path, _, _ in kept}
    traits = _traits(run, states, paths) if known is None else known
    num_calls = Counter(path for path, _, _ in kept)
    num_leaves: Counter[str] = Counter()
    inner = {above for path in paths for above in _above(path)}
    for path in paths - inner:
        for above in _above(path):
            num_leaves[above] += num_calls[path]
    calls = []
    for (path, number, phase), one in kept.items():
        inside = max(1, num_leaves[path] // num_calls[path])
        own = traits.get(path, Traits())
        args = (path, number, phase, one.place, one.start, path not in inner, inside, own)
        calls.append(Call(*args, one.values))
    calls.sort(key=lambda call: call.place)
    all_states = [State(*key, values) for key, values in states.items()]
    return StepCalls(step, calls, all_states, is_ordered, num_lost)


_Kept = dict[tuple[str, int, str], _Growing]
_States = dict[tuple[str, str, int], dict[str, Value]]


def _kept(run: Run, step: int | None) -> tuple[_Kept, _States, int]:
    calls: _Kept = defaultdict(_Growing)
    states: _States = defaultdict(dict)
    num_lost = 0
    for place, record in enumerate(_records(run, step) if step is not None else ()):
        if record.overwritten:
            num_lost += 1
        elif BY_NAME[record.site.port].holder:
            states[record.site.path, record.site.port, record.call][record.site.leaf] = record
        else:
            call = calls[record.site.path, record.call, record.phase]
            call.values[record.site.port][_leaf(record)] = record
            if record.site.port == "input" and call.start is None:
                call.start = place
            if record.site.port == "output" or call.place < 0:
                call.place = place
    return calls, states, num_lost


def _records(run: Run, step: int) -> Iterator[Record]:
    for record in run.records(None, steps=step, phase=None):
        if record.phase in (FORWARD, EVAL) and record.site.port != "saved":
            yield record


def _leaf(record: Record) -> str:
    again = f"~backward {record.backward}" if record.backward > 0 else ""
    return f"{record.site.leaf}{again}"


def _add_measured(run: Run, step: int, calls: _Kept, states: _States) -> None:
    """Add statistics of the sites of which no value was kept in the step."""
    there = {(path, port) for (path, _, _), one in calls.items() for port in one.values}
    there |= {(path, port) for path, port, _ in states}
    ends = _ends(run.meta.order or run.meta.modules)
    for site in run.sites:
        if (site.path, site.port) in there or site.port == "saved":
            continue
        try:
            measured = run.stats(site, step=step)
        except SiteError:  # Not in this step.
            continue
        if BY_NAME[site.port].holder:
            states[site.path, site.port, 0][site.leaf] = measured
            continue
        call = calls[site.path, 0, FORWARD]
        call.values[site.port][site.leaf] = measured
        if call.place < 0:
            call.place = ends.get(site.path, 0.0)


def _ends(paths: Iterable[str]) -> dict[str, float]:
    """Places of modules in the order in which their calls would end: parts before the whole."""
    ends: dict[str, float] = {}
    for place, path in enumerate(paths):
        for one in (path, *_above(path)):
            depth = one.count(".") + 1 if one else 0
            ends[one] = place - depth * 1e-6
    return ends


def _traits(run: Run, states: _States, paths: set[str]) -> dict[str, Traits]:
    """Traits of the modules: from their parameters where these were recorded."""
    meta = run.meta
    own: dict[str, list[Value]] = defaultdict(list)
    for (path, port, _), named in states.items():
        if port == "param":
            own[path] += named.values()
    by_path = {}
    for path in paths:
        held = [each for at, each in own.items() if at == path or is_below(at, path)]
        values = [value for each in held for value in each]
        by_path[path] = _traits_of(meta.type_name(path), values, _counted(run, path))
    return by_path


def _traits_of(type_name: str, values: Sequence[Value], counted: int) -> Traits:
    records = [value.value for value in values if isinstance(value, Record)]
    if records and len(records) == len(values):
        return traits_of(type_name, records)
    measured = [value for value in values if isinstance(value, Statistics)]
    if measured:
        shapes = [tuple(one.shape or ()) for one in measured]
        sizes = tuple(sorted(one.numel for one in measured))
        terms = max(map(num_terms, shapes), default=0)
        dtypes = tuple(dict.fromkeys(one.dtype for one in measured))
        return Traits(type_name, sizes, None, terms, dtypes)
    return Traits(type_name, (counted,) if counted else ())


def _counted(run: Run, path: str) -> int:
    numbers = run.meta.num_parameters
    return sum(count for at, count in numbers.items() if at == path or is_below(at, path))


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition(".")[0]
        yield path
