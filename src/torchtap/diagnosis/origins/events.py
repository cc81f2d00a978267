"""Operations that handed on, or made, values that are not finite; and the way back through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from torchtap.core.distributed import local
from torchtap.core.tensors import storage_id
from torchtap.diagnosis.origins.origin import Origin, Passage
from torchtap.diagnosis.origins.values import badness

_VIEWS = frozenset(
    {"alias", "as_strided", "detach", "expand", "permute", "reshape", "select", "slice", "split"}
    | {"squeeze", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"}
)
"""Operations that show the same values: a way leaves them out."""


@dataclass(eq=False, slots=True)
class Event:
    """An operation that returned something that is not finite.

    Attributes:
        number: how many came before it.
        origin: where it was made, as far as one operation tells.
        parents: of the values that it took and that were not finite.
        is_meant: whether the program asked for this very value, as for a mask of -Inf.
        is_new: whether it made what it was not given: of finite values, or a NaN of an Inf.
        batch: number of the call of the model that ran, where several are replayed.
    """

    number: int
    origin: Origin
    parents: Sequence[Event] = ()
    is_meant: bool = False
    is_new: bool = True
    batch: int | None = None

    def above(self) -> Iterator[Event]:
        """Yield this event and all that it follows from, each once."""
        seen, waiting = {self.number}, [self]
        while waiting:
            event = waiting.pop()
            yield event
            fresh = [parent for parent in event.parents if parent.number not in seen]
            seen.update(one.number for one in fresh)
            waiting += fresh

    def root(self) -> Event:
        """Return the first event that this one follows from and that was not meant.

        Where all that it follows from was meant, it is the first that made a NaN of that.
        """
        above = list(self.above())
        made = [one for one in above if not one.parents and not one.is_meant]
        turned = [one for one in above if one.is_new and not one.is_meant]
        return min(made or turned or above, key=lambda one: one.number)

    def way_from(self, root: Event) -> tuple[Passage, ...]:
        """Return the operations from a root to this event, by the shortest way."""
        ways: dict[int, Event | None] = {self.number: None}
        waiting = [self]
        # Breadth first, while it grows: the shortest way from the root is told.
        for event in waiting:
            if event is root:
                break
            for parent in event.parents:
                if parent.number not in ways:
                    ways[parent.number] = event
                    waiting.append(parent)
        way, at = list[Passage](), root if root.number in ways else None
        while at is not None:
            if at is root or at.origin.operation not in _VIEWS:
                way.append(at.origin.passage)
            at = ways[at.number]
        return tuple(way)


@dataclass(slots=True)
class _Held:
    """An event, and the tensor through which it wrote into a storage."""

    event: Event
    tensor: Tensor


@dataclass(slots=True)
class Events:
    """The events of one traced step, by the memory that holds what is not finite.

    Tensors in which anything is not finite are kept alive: no address is used twice.

    Attributes:
        made: in their order.
        batch: number of the call of the model that runs, for the events that are added.
    """

    made: list[Event] = field(default_factory=list)
    batch: int | None = None
    _held: dict[int, list[_Held]] = field(default_factory=dict)

    def add(
        self,
        origin: Origin,
        parents: Sequence[Event] = (),
        *,
        is_meant: bool = False,
        is_new: bool = True,
    ) -> Event:
        """Note an operation."""
        event = Event(len(self.made), origin, parents, is_meant, is_new, self.batch)
        self.made.append(event)
        return event

    def hold(self, tensor: Tensor, event: Event) -> None:
        """Note that what is not finite in a tensor is by an event."""
        key, own = _key(tensor), _Held(event, tensor)
        # One event for each part of the memory: the last operation that wrote it counts.
        held = [one for one in self._held.get(key, ()) if not _same_part(one.tensor, tensor)]
        self._held[key] = [*held, own]

    def forget(self, tensor: Tensor) -> None:
        """All of a tensor is finite."""
        key = _key(tensor)
        if key in self._held:
            left = [one for one in self._held[key] if not _same_part(one.tensor, tensor)]
            self._held[key] = left

    def of(self, tensor: Tensor) -> Event | None:
        """Return the event by which a tensor is not finite; ``None`` if no operation is known."""
        held = self._held.get(_key(tensor))
        if not held:
            return None
        exact = [one.event for one in held if _same_part(one.tensor, tensor)]
        near = [one.event for one in held if _overlap(one.tensor, tensor)]
        # A view of another shape overlaps what was held under its base's shape.
        candidates = exact or near or [one.event for one in held]
        return (
            candidates[-1] if exact else min(candidates, key=lambda one: (one.is_meant, one.number))
        )

    def root_of(self, tensors: Iterable[Tensor]) -> Origin | None:
        """Return the first origin of whatever is not finite in some tensors, with its way.

        What was meant counts in a loss alone: in a tensor of one element.
        """
        pairs = []
        for tensor in tensors:
            end = self.of(tensor) if badness(tensor) else None
            root = None if end is None else end.root()
            if end is not None and root is not None and not (root.is_meant and tensor.numel() > 1):
                pairs.append((root, end))
        if not pairs:
            return None
        root, end = min(pairs, key=lambda pair: (pair[0].is_meant, pair[0].number))
        return replace(root.origin, way=end.way_from(root), micro_batch=root.batch)


def _key(tensor: Tensor) -> int:
    """Return the memory of a tensor; of a ``DTensor`` that of the part that this rank holds."""
    tensor = local(tensor)[0]
    # What has no storage of its own (sparse, wrapped) is told apart as an object, which is held.
    return storage_id(tensor) or id(tensor)


def _same_part(one: Tensor, two: Tensor) -> bool:
    one, two = local(one)[0], local(two)[0]
    if one.layout is not two.layout or one.numel() != two.numel():
        return False
    if not storage_id(one):
        return True
    return one.storage_offset() == two.storage_offset() and one.stride() == two.stride()


def _overlap(one: Tensor, two: Tensor) -> bool:
    """Return whether the ranges of memory of two tensors of one storage overlap."""
    one, two = local(one)[0], local(two)[0]
    if not storage_id(one) or not storage_id(two):
        return True
    (start, end), (other_start, other_end) = _range(one), _range(two)
    return start < other_end and other_start < end


def _range(tensor: Tensor) -> tuple[int, int]:
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (int(last) + 1) * tensor.element_size()
