"""Taps and site states: the state of an engine for one module or mark, and for one site of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from torchtap.core.absence import Absence
from torchtap.core.ports import FLOW_PORTS
from torchtap.core.site import Site
from torchtap.core.tree import Unseen
from torchtap.hooks.call_numbers import StepCounter

if TYPE_CHECKING:
    from torch import Tensor

    from torchtap.core.plan import Filter


TAKEN, RETURNED = "taken", "returned"
Meter = Callable[["Tensor", int], bool]
first_calls = itertools.count()
"""Numbers of first calls, by which taps are sorted; native hooks draw from the same ones."""
_OUTPUT, _GRAD_OUTPUT = ("output", ""), ("grad_output", "")


@lru_cache(maxsize=4096)
def _bare_site(path: str, port: str) -> Site:
    """Return the site of one bare tensor; a watch is opened for each step by some programs."""
    return Site(path, port)


def no_meter(tensor: Tensor, step: int) -> bool:
    """Takes nothing: every value becomes a record."""
    return False


class SiteState:
    """The tally of one site.

    Attributes:
        seen: whether any value was delivered.
        expected: number of gradients waited for.
        received: of these, the ones that came.
        reason: why the last value was not available.
        copies: whether values must be copied because the program overwrites them; ``None`` until
            that is known.
        meter: measures a value of a step at once, and returns whether it could; if not, a
            record is made.
    """

    __slots__ = ("copies", "expected", "meter", "reason", "received", "seen", "site")

    def __init__(self, site: Site, copies: bool | None = None, meter: Meter = no_meter) -> None:
        self.site = site
        self.meter = meter
        self.seen = False
        self.expected = self.received = 0
        self.reason: str | None = None
        self.copies = copies


class GradHook(partial):  # type: ignore[type-arg]
    """A hook on a tensor, bound to its call. Tells ``torch.save`` of the tensor not to mind it."""

    __slots__ = ()
    # torch.utils.hooks.warn_if_has_hooks warns of every hook on a saved tensor that has no such
    # attribute.
    __torch_unserializable__ = True


class EditGradHook(GradHook):
    """A hook that changes the gradient of a tensor."""

    __slots__ = ()


class _Rare:
    """The notes of a tap that few modules need."""

    __slots__ = ("call_numbers_in_backward", "raised", "unidentified", "unseen")

    def __init__(self, steps: StepCounter) -> None:
        self.call_numbers_in_backward = steps.new_numbers()
        self.unidentified: dict[str, int] = defaultdict(int)
        self.raised: dict[str, int] = defaultdict(int)
        self.unseen: dict[str, Unseen] = {TAKEN: {}, RETURNED: {}}


class Tap:
    """The state of an engine for one module or mark: which leaves are wanted, what was seen.

    Attributes:
        filters: port -> which of its leaves are wanted.
        plain_output: the state of an output that is one bare tensor, if wanted.
        plain_gradient: the same of its gradient.
        call_numbers: numbers the calls of each step.
        has_run: whether any call was seen, in any step.
        has_trained: whether any of them ran with gradients enabled.
        is_in_graph: whether it ran inside a compiled graph, in any step.
        order: sorts taps by their first call; -1 before it.
        reason: why no call can be recorded.
        take_plain: takes an output and the number of its call natively, and says whether it could;
            of calls that Python follows.

    Args:
        copies: what its states start with.
        meter: makes their meters.
        make_state: makes a state of its site, of what it starts with, and of its meter.
        steps: of the engine.
    """

    __slots__ = (
        "_copies",
        "_make_state",
        "_meter",
        "_rare",
        "_states",
        "_steps",
        "call_numbers",
        "filters",
        "has_run",
        "has_trained",
        "is_in_graph",
        "order",
        "path",
        "plain_gradient",
        "plain_output",
        "reason",
        "take_plain",
    )

    def __init__(
        self,
        path: str,
        filters: Mapping[str, Filter],
        copies: bool | None = None,
        meter: Callable[[Site], Meter] | None = None,
        *,
        make_state: Callable[[Site, bool | None, Meter], SiteState] = SiteState,
        steps: StepCounter | None = None,
    ) -> None:
        self._copies = copies
        self._meter = meter
        self._make_state = make_state
        self.path = path
        self.filters = filters
        self._states: dict[tuple[str, str], SiteState | None] | None = None
        self._steps = StepCounter() if steps is None else steps
        self._rare: _Rare | None = None
        self.call_numbers = self._steps.new_numbers()
        self.has_run = self.has_trained = self.is_in_graph = False
        self.order = -1
        self.reason: str | None = None
        self.take_plain: Callable[[object, int], bool] | None = None
        # Made ahead of the first call: most modules return one bare tensor, and hooks in C read
        # these as attributes.
        self.plain_output = self._wanted_state("output", "")
        self.plain_gradient = self._wanted_state("grad_output", "")

    @property
    def states(self) -> dict[tuple[str, str], SiteState | None]:
        """Return (port, leaf) -> its tally, or ``None`` if it is not wanted."""
        if self._states is None:
            plain = {_OUTPUT: self.plain_output, _GRAD_OUTPUT: self.plain_gradient}
            made = {key: state for key, state in plain.items() if key[0] in self.filters}
            if self._states is None:  # Another thread may have been faster.
                self._states = made
        return self._states

    # Made when they are first asked for: a watch of one forward makes a tap for each module.
    def _notes(self) -> _Rare:
        if self._rare is None:
            self._rare = _Rare(self._steps)
        return self._rare

    @property
    def call_numbers_in_backward(self) -> Iterator[int]:
        """Return the numbers of calls inside a backward that are no recomputation."""
        return self._notes().call_numbers_in_backward

    @property
    def unidentified(self) -> dict[str, int]:
        """Reason -> number of calls that are not among those of the forward."""
        return self._notes().unidentified

    @property
    def raised(self) -> dict[str, int]:
        """Name of an exception -> number of calls that were left by one."""
        return self._notes().raised

    @property
    def unseen(self) -> dict[str, Unseen]:
        """Return what holds tensors and was not looked into, of what it takes and returns."""
        return self._notes().unseen

    def note_first_call(self) -> None:
        """The module is called for the first time."""
        self.has_run = True
        self.order = next(first_calls)

    def state(self, port: str, leaf: str) -> SiteState | None:
        """Return the state of one site, or ``None`` if it is not wanted."""
        # After the first call of a module the site is always there, and a ``try`` that raises
        # nothing costs nothing.
        try:
            return self.states[port, leaf]
        except KeyError:
            return self._new_state(port, leaf)

    def _wanted_state(self, port: str, leaf: str) -> SiteState | None:
        chosen = self.filters.get(port)
        wanted = chosen is not None and chosen.accepts(leaf)
        return self._make(port, leaf) if wanted else None

    def _new_state(self, port: str, leaf: str) -> SiteState | None:
        state = self._wanted_state(port, leaf)
        # Noted also where it is not wanted, so that the filters are asked once for each leaf.
        # The first of several threads that come here at once makes it.
        return self.states.setdefault((port, leaf), state)

    def instead(self, port: str) -> str:
        """Return the end of a reason: what to select where no leaf of a port fitted."""
        filters = self.filters.get(port)
        if filters is None or filters.is_open:
            return ""
        leaves = [leaf for one, leaf in list(self.states) if one == port and leaf]
        sites = [repr(str(Site(self.path, port, leaf))) for leaf in leaves or [""]]
        return f"; there is {', '.join(sites[:3])}"

    def why_unseen(self, port: str) -> Iterator[Absence]:
        """Yield an absence for each wanted place of a port where no look was taken."""
        side, verb = (TAKEN, "took") if port.endswith("input") else (RETURNED, "returned")
        for leaf, what in self.unseen[side].copy().items() if port in FLOW_PORTS else ():
            if self.filters[port].accepts(leaf):
                reason = f"it {verb} {what}: use a tuple, list, dict or dataclass instead"
                yield Absence(Site(self.path, port, leaf), reason)

    def why_raised(self) -> Iterator[str]:
        """Yield a reason for each kind of exception by which calls were left."""
        for name, number in self.raised.copy().items():
            yield f"a call raised {name}" if number == 1 else f"{number:,} calls raised {name}"

    def _make(self, port: str, leaf: str) -> SiteState:
        site = Site(self.path, port, leaf) if leaf else _bare_site(self.path, port)
        meter = no_meter if self._meter is None else self._meter(site)
        return self._make_state(site, self._copies, meter)
