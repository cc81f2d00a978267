"""Packs what autograd saves, moves it within a budget, and unpacks it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torchtap.core.errors import OffloadError
from torchtap.core.torch_private import current_task, sequence_number
from torchtap.hooks.graph import num_casts
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.saved_pairs import Pair, checked, guarded
from torchtap.hooks.scope import ThreadState
from torchtap.saved import heap
from torchtap.saved.block import (
    EVICTED,
    EVICTING,
    PREFETCHED,
    RESIDENT,
    BlockRef,
    Freed,
    Identity,
    SavedBlock,
    SharedView,
)
from torchtap.saved.forks import forks
from torchtap.saved.layout import TensorLayout, flat, form_of, restored
from torchtap.saved.offload_report import IN_HOST, ModuleCounters, OffloadReport, OffloadRow
from torchtap.saved.spill_file import FULL
from torchtap.saved.streams import Ticket
from torchtap.saved.tiers import Tier

IN_FLIGHT = 256 << 20
"""Bytes that may be on their way at one time, where no budget says otherwise."""
NUM_AHEAD = 8
"""Tensors that are fetched before they are asked for."""
NUM_THREADS = 2


class Foreign:
    """A saved tensor that the pair of hooks below ours has packed."""

    __slots__ = ("packed", "unpack")

    def __init__(self, pair: Pair, tensor: Tensor) -> None:
        pack, self.unpack = pair
        self.packed = pack(tensor)


class OffloadEngine:
    """All that one ``tt.offload`` knows.

    Args:
        tiers: where to, in this order.
        min_bytes: smaller tensors stay.
        max_bytes: most bytes in memory: kept, leaving, fetched ahead.
        keep_last: bytes of the latest tensors that stay as long as no later ones come.
        on_full: ``wait``, ``keep`` or ``raise``.
        wants: why a tensor is not to be moved at all, besides the rest, or ``None``.
        places: what runs now, and the pair of hooks that ours stands on.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        min_bytes: int,
        max_bytes: int | None,
        keep_last: int,
        on_full: str,
        wants: Callable[[Tensor], str | None] | None,
        places: ThreadState,
    ) -> None:
        self.tiers = tiers
        self.is_open = True
        self.notes: dict[str, None] = {}
        self._min_bytes = min_bytes
        self._limit = IN_FLIGHT if max_bytes is None else max_bytes
        self._room = min(keep_last, self._limit)
        self._on_full = on_full
        self._wants = wants
        self._places = places
        self._new_lock()
        self._takers: dict[tuple[torch.dtype, torch.device], tuple[Tier, ...]] = {}
        self._known: dict[Identity, weakref.ref[BlockRef]] = {}
        self._queue: deque[weakref.ref[BlockRef]] = deque()
        self._leaving: deque[SavedBlock] = deque()
        self._carried: set[SavedBlock] = set()
        self._freed: deque[Freed] = deque()
        self._waits: deque[float] = deque()
        self._bytes = {RESIDENT: 0, EVICTING: 0, PREFETCHED: 0}
        self._ahead = _Prefetch()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._full: set[str] = set()
        self._tallies: defaultdict[str, ModuleCounters] = defaultdict(ModuleCounters)
        self._moved = {tier.name: 0 for tier in tiers}
        self._small = self._fetched = self._peak = self._plain = self._plain_peak = 0
        self._num_ahead = self._num_waited = self._freed_nbytes = 0
        self._blocked = self._spent = 0.0
        self._began: float | None = None
        self._has_unpacked = False

    # ------------------------------------------------------------------ hooks

    def pack(self, tensor: Tensor) -> Any:
        """Autograd is about to save a tensor."""
        if self._forks != forks.count:
            self._after_fork()
        nbytes = tensor.numel() * tensor.itemsize
        form = "small" if nbytes < self._min_bytes else self._form_or_reason(tensor)
        places = self._places
        with self._lock:
            tally = self._tallies[places.paths[-1]]
            tally.count += 1
            tally.seen += nbytes
            if not isinstance(form, str):
                return self._take(tensor, form, tally)
            tally.kept[form] += nbytes
        below = places.below[-1] if places.below else None
        return guarded(tensor) if below is None else Foreign(below, tensor)

    def unpack(self, packed: Any) -> Tensor:
        """Backward asks for a tensor. May happen any number of times, in any thread."""
        kind = type(packed)
        if kind is BlockRef:
            return self._tensor_of(packed.parcel, packed.parcel.form)
        if kind is tuple:
            return checked(packed)
        if kind is SharedView:
            return self._tensor_of(packed.owner.parcel, packed.form)
        tensor: Tensor = packed.unpack(packed.packed)
        return tensor

    def _form_or_reason(self, tensor: Tensor) -> TensorLayout | str:
        """How a tensor lies that is to be moved, or why it is kept."""
        if not self.is_open:
            return "after closing"
        if current_task() != -1:
            return "inside a backward"
        form = form_of(tensor)
        if isinstance(form, str):
            return form
        if self._wants is not None and (reason := self._wants(tensor)) is not None:
            return reason
        if num_casts(tensor) is not None:
            return "parameter"
        takers = self._takers.get(form.kind)
        if takers is None:
            takers = tuple(tier for tier in self.tiers if tier.accepts(*form.kind))
            self._takers[form.kind] = takers
        if self._full and takers and all(tier.name in self._full for tier in takers):
            return f"{takers[0].name} full"
        if takers:
            return form
        is_there = form.device.type == "cpu" and any(tier.name == "cpu" for tier in self.tiers)
        return IN_HOST if is_there else "no tier takes it"

    def _take(
        self, tensor: Tensor, form: TensorLayout, tally: ModuleCounters
    ) -> BlockRef | SharedView:
        if self._has_unpacked or self._began is None:
            self._begin_step()
        storage = tensor.untyped_storage()
        identity = (id(storage), tensor._version, int(tensor.storage_offset()), form.marks)
        self._settle()
        reference = self._known.get(identity)
        known = None if reference is None else reference()
        # The number of an object is used again once it is gone. What has begun to leave may be
        # other numbers than are in its memory now: not every write raises the version.
        if (
            known is not None
            and known.parcel.state == RESIDENT
            and known.parcel.storage() is storage
        ):
            tally.shared += form.nbytes
            return SharedView(known, form)
        places = self._places
        if (node := sequence_number()) != places.node:
            places.node = node
            self._release(self._room - form.nbytes)
        if self._bytes[EVICTING] and self._in_memory() + form.nbytes > self._limit:
            self._when_full(form.nbytes)
        parcel = SavedBlock(tensor.detach(), form, weakref.ref(storage), identity, self._freed)
        owner = BlockRef(parcel)
        self._known[identity] = reference = weakref.ref(owner)
        if not (form.is_small and self._takers[form.kind][0].is_slow):
            self._ahead.packed(parcel, reference)
        self._bytes[RESIDENT] += form.nbytes
        self._plain += form.nbytes
        tally.packed += form.nbytes
        places.unfinished.append(reference)
        self._note_peak()
        return owner

    # ------------------------------------------------------------------ out

    def release(self) -> None:
        """No operation of this thread is running: what it saved may leave."""
        self._after_fork()
        with self._lock:
            self._release(self._room)

    def _release(self, room: int) -> None:
        """The last operation of this thread is over: let the oldest leave, which are needed last.

        ``room`` bytes may stay.

        Autograd saves some tensors before the kernel fills them (the noise of ``rrelu``). Nothing
        tells when it has but that the thread goes on, and makes another node.
        """
        unfinished, queue = self._places.unfinished, self._queue
        queue.extend(unfinished)
        unfinished.clear()
        while self._bytes[RESIDENT] > room and queue:
            owner = queue.popleft()()
            if owner is not None and owner.parcel.state == RESIDENT:
                self._send(owner.parcel)

    def _when_full(self, coming: int) -> None:
        if self._on_full == "raise":
            raise OffloadError(
                f"Offloading holds {self._in_memory():,} bytes, {coming:,} come, and "
                f"{self._limit:,} are allowed: {self._bytes[EVICTING]:,} are still on their way. "
                f"Give more with max_bytes=, or wait with on_full='wait'."
            )
        if self._on_full == "keep":
            return
        start = time.perf_counter()
        while self._in_memory() + coming > self._limit and self._bytes[EVICTING]:
            self._await_one()
        self._blocked += time.perf_counter() - start

    def _await_one(self) -> None:
        if self._leaving:
            ticket = self._leaving[0].ticket
            assert ticket is not None
            ticket.wait()
        else:
            self._arrived.wait(timeout=1.0)
        self._settle()

    def _send(self, parcel: SavedBlock) -> None:
        form = parcel.form
        tier = self._tier_for(form)
        if tier is None:
            return  # No room anywhere: it stays.
        if tier.is_slow and not form.is_small:
            self._leaves(parcel)
            self._carried.add(parcel)
            self._pool().submit(self._carry, parcel, tier, _event_after(form.device))
            return
        start = time.perf_counter()
        try:
            ticket = self._put(parcel, tier)
        except BaseException as error:
            self._stay(parcel, tier, error)
            if not (tier.is_slow and isinstance(error, OSError)):
                raise
        else:
            if ticket is None:
                self._gone(parcel)
            else:
                parcel.ticket = ticket
                self._leaves(parcel)
                self._leaving.append(parcel)
        self._blocked += time.perf_counter() - start

    def _leaves(self, parcel: SavedBlock) -> None:
        parcel.state = EVICTING
        self._bytes[RESIDENT] -= parcel.form.nbytes
        self._bytes[EVICTING] += parcel.form.nbytes

    def _put(self, parcel: SavedBlock, tier: Tier) -> Ticket | None:
        form = parcel.form
        parcel.handle, parcel.small, ticket = tier.put(flat(parcel.alias, form), form)
        parcel.tier = tier
        return ticket

    def _carry(self, parcel: SavedBlock, tier: Tier, ready: Any) -> None:
        """In a thread of its own: write to a slow tier."""
        try:
            if ready is not None:
                ready.synchronize()
            self._put(parcel, tier)
        except BaseException as error:
            with self._lock:
                self._stay(parcel, tier, error)
                self._carried.discard(parcel)
                self._arrived.notify_all()
            if not isinstance(error, OSError):
                raise
        else:
            with self._lock:
                self._gone(parcel)
                self._carried.discard(parcel)
                self._arrived.notify_all()

    def _gone(self, parcel: SavedBlock) -> None:
        """The copy has ended: let go of the memory, unless it was overwritten meanwhile."""
        nbytes = parcel.form.nbytes
        self._bytes[parcel.state] -= nbytes
        parcel.ticket = None
        if parcel.alias._version != parcel.identity[1]:
            parcel.state = RESIDENT  # It raises when it is asked for.
            self._bytes[RESIDENT] += nbytes
            return
        assert parcel.tier is not None
        self._moved[parcel.tier.name] += nbytes
        self._small += parcel.small
        parcel.let_go()
        self._frees(parcel.form)

    def _stay(self, parcel: SavedBlock, tier: Tier, error: BaseException) -> None:
        """It could not be moved."""
        if tier.is_slow and isinstance(error, OSError):
            self._full.add(tier.name)
            what = "is full" if error.errno in FULL else "cannot be written"
            self.notes[f"{tier.name} {what} ({error.strerror}): kept in memory"] = None
        elif tier.is_slow:
            self.notes[f"moving to {tier.name} failed: {error!r}; kept in memory"] = None
        tier.used -= tier.room(parcel.form)
        self._bytes[parcel.state] -= parcel.form.nbytes
        self._bytes[RESIDENT] += parcel.form.nbytes
        parcel.state = RESIDENT

    def _settle(self) -> None:
        """Take note of what the collector freed, and of copies that have ended."""
        while self._freed:
            state, nbytes, name, tier, small = self._freed.popleft()
            if tier is not None:
                tier.used -= small
            if state != EVICTED:
                self._bytes[state] -= nbytes
            if state == PREFETCHED:
                self._ahead.ready.pop(name, None)
                continue
            self._plain -= nbytes
            reference = self._known.get(name)
            if reference is not None and reference() is None:
                del self._known[name]
        while self._waits:
            self._blocked += self._waits.popleft()
        # Copies end in the order in which they began.
        while self._leaving and self._leaving[0].ticket.is_done():  # type: ignore[union-attr]
            self._gone(self._leaving.popleft())

    def _tier_for(self, form: TensorLayout) -> Tier | None:
        for tier in self._takers.get(form.kind, ()):
            used = tier.used + tier.room(form)
            if tier.name not in self._full and (tier.capacity is None or used <= tier.capacity):
                tier.used = used
                return tier
        return None

    # ------------------------------------------------------------------ back

    def _tensor_of(self, parcel: SavedBlock, form: TensorLayout) -> Tensor:
        if self._forks != forks.count:
            self._after_fork()
        start = time.perf_counter()
        with self._lock:
            self._has_unpacked = True
            self._settle()
            parcel.check()
            fetched = parcel.ahead
            is_away = parcel.state == EVICTED
            if is_away:
                self._frees(parcel.form)  # Once the backward has used it.
                self._fetched += parcel.form.nbytes
                self._num_waited += fetched is None
            if fetched is not None:
                self._take_ahead(parcel)
                self._num_ahead += 1
            if parcel.number >= 0:
                self._ahead.asked(parcel, was_ready=fetched is not None)
                if fetched is not None or not is_away:
                    self._fetch_more()
            if not is_away:  # A handle of its own: what the alias shows is gone once it has left.
                return _seen_as(parcel.alias.detach(), parcel.form, form)
        if fetched is None:
            fetched = self._get(parcel)
            if parcel.number >= 0:
                with self._lock:
                    self._fetch_more()  # Only now, since this one is needed first.
        elements, ticket = fetched.result() if isinstance(fetched, Future) else fetched
        if ticket is not None:
            ticket.join()
        self._waits.append(time.perf_counter() - start)
        return elements if form is parcel.form and form.is_plain else restored(elements, form)

    def _get(self, parcel: SavedBlock) -> tuple[Tensor, Ticket | None]:
        """The elements of a parcel that is away."""
        assert parcel.tier is not None
        return parcel.tier.get(parcel.handle, parcel.form)

    def _fetch_more(self) -> None:
        """Begin to fetch what comes next, as far as there is room."""
        if not self.is_open:
            return
        for owner in self._ahead.coming():
            parcel = owner.parcel
            room = (self._limit - self._in_memory()) // 2
            if parcel.form.nbytes > room:
                return
            assert parcel.tier is not None
            soon = self._pool().submit if parcel.tier.is_slow else _now
            parcel.ahead = soon(self._get, parcel)
            self._ahead.ready[parcel.number] = weakref.ref(owner)
            self._bytes[PREFETCHED] += parcel.form.nbytes
            self._note_peak()

    def _take_ahead(self, parcel: SavedBlock) -> None:
        """What was fetched of it is in use, or is not wanted any more."""
        parcel.ahead = None
        del self._ahead.ready[parcel.number]
        self._bytes[PREFETCHED] -= parcel.form.nbytes

    def _forget_ahead(self) -> None:
        """Let go of all that was fetched ahead."""
        for reference in list(self._ahead.ready.values()):
            owner = reference()
            if owner is not None:
                self._take_ahead(owner.parcel)

    # ------------------------------------------------------------------ small things

    def _in_memory(self) -> int:
        return self._bytes[RESIDENT] + self._bytes[EVICTING] + self._bytes[PREFETCHED]

    def _note_peak(self) -> None:
        held = self._bytes
        in_memory = held[RESIDENT] + held[EVICTING] + held[PREFETCHED]
        if in_memory > self._peak:
            self._peak = in_memory
        if self._plain > self._plain_peak:
            self._plain_peak = self._plain

    def _begin_step(self) -> None:
        """The first pack after an unpack begins a step."""
        now = time.perf_counter()
        if self._began is not None:
            self._spent += now - self._began
            self._forget_ahead()
            self._ahead.restart()
            self._queue = deque(one for one in self._queue if one() is not None)
        self._began = now
        self._has_unpacked = False

    def _frees(self, form: TensorLayout) -> None:
        """A tensor's memory is free, or soon will be; let the system have it, now and then."""
        if form.device.type != "cpu" or not heap.can_give_back:
            return
        self._freed_nbytes += form.nbytes
        if self._freed_nbytes > heap.EVERY and self.is_open:
            self._freed_nbytes = 0
            self._pool().submit(heap.give_back)

    def _pool(self) -> ThreadPoolExecutor:
        # Threads do not survive a fork.
        if self._threads is None or self._threads[0] != os.getpid():
            pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="torchtap-offload")
            self._threads = os.getpid(), pool
        return self._threads[1]

    def _new_lock(self) -> None:
        self._forks = forks.count
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)

    def _after_fork(self) -> None:
        """In a child no thread goes on with what is under way, nor lets go of the lock."""
        if self._forks == forks.count:
            return
        self._new_lock()
        self._forget_ahead()
        for parcel in [one for one in self._carried if one.state == EVICTING]:
            parcel.state = RESIDENT
            self._bytes[EVICTING] -= parcel.form.nbytes
            self._bytes[RESIDENT] += parcel.form.nbytes
        self._carried.clear()

    def flush(self) -> None:
        """Wait until all that is leaving has left."""
        self._after_fork()
        with self._lock:
            self._release(self._room)
            self._settle()
            while self._bytes[EVICTING] > 0:
                self._await_one()

    def holds_nothing(self) -> bool:
        """Whether nothing that was packed is in memory any more."""
        with self._lock:
            self._settle()
            return not self._in_memory()

    def close(self) -> None:
        """Pack no more; what is packed can still be unpacked."""
        self.is_open = False
        self.flush()
        with self._lock:
            self._forget_ahead()
            self._settle()
            if self._threads is not None and self._threads[0] == os.getpid():
                self._threads[1].shutdown(wait=False)
            self._threads = None
            # What is away holds its tier: a file or pinned memory goes when the last of it does.
            self.tiers = ()
            self._takers.clear()
            self._freed = deque()
            self._known.clear()
            self._wants = None

    def report(self) -> OffloadReport:
        """What happened so far."""
        self._after_fork()
        with self._lock:
            self._settle()
            rows = [
                OffloadRow(path or ".", t.count, t.seen, dict(t.kept), t.packed, t.shared)
                for path, t in self._tallies.items()
            ]
            kept: Counter[str] = Counter()
            for row in rows:
                kept.update(row.kept)
            running = 0.0 if self._began is None else time.perf_counter() - self._began
            return OffloadReport(
                rows=tuple(rows),
                seen_nbytes=sum(row.seen for row in rows),
                kept_nbytes=dict(kept),
                packed_nbytes=sum(row.packed for row in rows),
                shared_nbytes=sum(row.shared for row in rows),
                moved_nbytes={name: nbytes for name, nbytes in self._moved.items() if nbytes},
                small_nbytes=self._small,
                fetched_nbytes=self._fetched,
                peak_nbytes=self._peak,
                plain_peak_nbytes=self._plain_peak,
                num_ahead=self._num_ahead,
                num_waited=self._num_waited,
                blocked_seconds=self._blocked,
                step_seconds=self._spent or running,
                notes=tuple(self.notes),
            )


keep_dynamo_out(OffloadEngine.pack, OffloadEngine.unpack)


class _Prefetch:
    """What backward will ask for next: as in the step before, or else the latest first.

    Only a hint: what was not fetched ahead is fetched when it is asked for.

    Attributes:
        ready: number -> what was fetched ahead. Parcels hold what was fetched of them, so that it
            goes when the graph goes.
    """

    def __init__(self) -> None:
        self.ready: dict[int, weakref.ref[BlockRef]] = {}
        self._first = 0
        self._owners: list[weakref.ref[BlockRef]] = []
        self._order: deque[int] = deque(maxlen=1 << 16)
        self._after: dict[int, int] = {}
        self._place = -1

    def restart(self) -> None:
        """A step begins; what the last one asked for is what this one will ask for."""
        self._after = dict(pairwise(self._order))
        self._order.clear()
        self._first += len(self._owners)
        self._owners.clear()
        self._place = -1

    def packed(self, parcel: SavedBlock, reference: weakref.ref[BlockRef]) -> None:
        """A parcel was made."""
        parcel.number = self._first + len(self._owners)
        self._owners.append(reference)

    def asked(self, parcel: SavedBlock, *, was_ready: bool) -> None:
        """A parcel is asked for."""
        place = parcel.number - self._first
        if place >= 0:
            self._order.append(place)
            if not was_ready:  # Else we are further already.
                self._place = place

    def coming(self) -> Iterator[BlockRef]:
        """What is away and will be asked for soon, from where it was fetched up to."""
        for _ in range(NUM_AHEAD):
            place = self._after.get(self._place, self._place - 1)
            if len(self.ready) >= NUM_AHEAD or not 0 <= place < len(self._owners):
                return
            owner = self._owners[place]()
            if owner is not None and owner.parcel.state == EVICTED and owner.parcel.ahead is None:
                yield owner
            self._place = place


def _seen_as(tensor: Tensor, form: TensorLayout, wanted: TensorLayout) -> Tensor:
    """A tensor that is here, as another one that shares its memory."""
    return tensor if wanted is form or not wanted.is_dense else restored(flat(tensor, form), wanted)


def _now(call: Callable[..., Any], *args: Any) -> Any:
    return call(*args)


def _event_after(device: torch.device) -> Any:
    """What to wait for before reading a tensor in another thread."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
