"""Packs what autograd saves, moves it within a budget, and unpacks it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from torchtap.errors import OffloadError
from torchtap.moving.form import (
    Form,
    flat,
    form_of,
    identity_of,
    is_of_parameter,
    restored,
    why_not_movable,
)
from torchtap.moving.parcel import AHEAD, AWAY, HERE, LEAVING, Packed, Parcel
from torchtap.moving.streams import Ticket
from torchtap.moving.tally import OffloadReport, OffloadRow, Tally
from torchtap.moving.tiers import Tier
from torchtap.packing import Guard, Pair

IN_FLIGHT = 256 << 20
"""Bytes that may be on their way at one time, where no budget says otherwise."""
NUM_AHEAD = 8
"""Tensors that are fetched before they are asked for."""
NUM_THREADS = 2
INLINE = 256 << 10
"""Up to so many bytes it takes longer to wake a thread than to hand them to the system."""

_current_task = torch._C._current_graph_task_id


class Handed:
    """A saved tensor that the pair of hooks below ours has packed."""

    __slots__ = ("packed", "unpack")

    def __init__(self, pair: Pair, tensor: Tensor) -> None:
        pack, self.unpack = pair
        self.packed = pack(tensor)


class Session:
    """All that one ``tt.offload`` knows.

    Args:
        tiers: where to, in this order.
        min_bytes: smaller tensors stay.
        max_bytes: most bytes in memory: kept, leaving, fetched ahead.
        keep_last: bytes of the latest tensors that stay as long as no later ones come.
        on_full: ``wait``, ``keep`` or ``raise``.
        wants: whether a tensor is to be moved at all, besides the rest.
        path: what runs now.
        below: the pair of hooks that ours stands on, if any.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        min_bytes: int,
        max_bytes: int | None,
        keep_last: int,
        on_full: str,
        wants: Callable[[Tensor], str | None],
        path: Callable[[], str],
        below: Callable[[], Pair | None],
    ) -> None:
        self.tiers = tiers
        self.is_open = True
        self.notes: dict[str, None] = {}
        self._min_bytes = min_bytes
        self._limit = IN_FLIGHT if max_bytes is None else max_bytes
        self._room = min(keep_last, self._limit)
        self._on_full = on_full
        self._wants = wants
        self._path = path
        self._below = below
        self._new_lock()
        self._known: weakref.WeakValueDictionary[Any, Parcel] = weakref.WeakValueDictionary()
        self._queue: deque[weakref.ref[Parcel]] = deque()
        self._leaving: list[Parcel] = []
        self._carried: weakref.WeakSet[Parcel] = weakref.WeakSet()
        self._freed: deque[tuple[str, int]] = deque()
        self._bytes: Counter[str] = Counter()
        self._ahead = _Ahead(self)
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._full: set[str] = set()
        self._tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self._moved: Counter[str] = Counter()
        self._small = self._fetched = self._peak = self._plain = self._plain_peak = 0
        self._num_waited = 0
        self._blocked = self._spent = 0.0
        self._began: float | None = None
        self._has_unpacked = False
        self._number = 0

    # ------------------------------------------------------------------ hooks

    def pack(self, tensor: Tensor) -> Any:
        """Autograd is about to save a tensor."""
        self._after_fork()
        nbytes = tensor.numel() * tensor.element_size()
        reason = self._why_kept(tensor, nbytes)
        with self._lock:
            tally = self._tallies[self._path()]
            tally.count += 1
            tally.seen += nbytes
            if reason is None:
                return self._take(tensor, tally)
            tally.kept[reason] += nbytes
        below = self._below()
        return Guard(tensor) if below is None else Handed(below, tensor)

    def unpack(self, packed: Any) -> Tensor:
        """Backward asks for a tensor. May happen any number of times, in any thread."""
        if type(packed) is Guard:
            return packed.get()
        if type(packed) is Handed:
            return packed.unpack(packed.packed)
        self._has_unpacked = True
        return self._tensor_of(packed.parcel, packed.form)

    def _why_kept(self, tensor: Tensor, nbytes: int) -> str | None:
        if nbytes < self._min_bytes:
            return "small"
        if not self.is_open:
            return "after closing"
        if _current_task() != -1:
            return "inside a backward"
        reason = why_not_movable(tensor) or self._wants(tensor)
        if reason is not None:
            return reason
        if is_of_parameter(tensor):
            return "parameter"
        form = form_of(tensor)
        takers = [tier for tier in self.tiers if tier.accepts(form)]
        if takers and all(tier.name in self._full for tier in takers):
            return f"{takers[0].name} full"
        return None if takers else "no tier takes it"

    def _take(self, tensor: Tensor, tally: Tally) -> Packed:
        form = form_of(tensor)
        identity, storage = identity_of(tensor, form)
        self._begin_step()
        known = self._known.get(identity)
        # An address is used again once its memory is gone.
        if known is not None and not known.storage.expired():  # type: ignore[no-untyped-call]
            tally.shared += form.nbytes
            return Packed(known, form)
        parcel = Parcel(tensor, form, storage, self._number, self._freed)
        self._number += 1
        self._known[identity] = parcel
        self._queue.append(weakref.ref(parcel))
        self._ahead.packed(parcel)
        self._bytes[HERE] += form.nbytes
        self._plain += form.nbytes
        tally.packed += form.nbytes
        self._make_room()
        return Packed(parcel, form)

    # ------------------------------------------------------------------ out

    def _make_room(self) -> None:
        """Send the oldest away until the budget holds; they are needed last."""
        self._settle()
        self._note_peak()
        while self._bytes[HERE] > self._room and self._queue:
            parcel = self._queue.popleft()()
            if parcel is not None and parcel.state == HERE:
                self._send(parcel)
        if self._in_memory() > self._limit and self._bytes[LEAVING]:
            self._when_full()

    def _when_full(self) -> None:
        if self._on_full == "raise":
            raise OffloadError(
                f"Offloading holds {self._in_memory():,} bytes, and {self._limit:,} are allowed: "
                f"{self._bytes[LEAVING]:,} are still on their way. Give more with max_bytes=, or "
                f"wait with on_full='wait'."
            )
        if self._on_full == "keep":
            return
        start = time.perf_counter()
        while self._in_memory() > self._limit and self._bytes[LEAVING]:
            self._await_one()
        self._blocked += time.perf_counter() - start

    def _await_one(self) -> None:
        tickets = [parcel.ticket for parcel in self._leaving if parcel.ticket is not None]
        if tickets:
            tickets[0].wait()
        else:
            self._arrived.wait(timeout=1.0)
        self._settle()

    def _send(self, parcel: Parcel) -> None:
        tier = self._tier_for(parcel.form)
        if tier is None:
            return  # No room anywhere: it stays.
        self._bytes[HERE] -= parcel.nbytes
        self._bytes[LEAVING] += parcel.nbytes
        parcel.state = LEAVING
        if tier.is_slow and parcel.form.device.type == "cpu" and parcel.nbytes <= INLINE:
            start = time.perf_counter()
            self._carry(parcel, tier, None)
            self._blocked += time.perf_counter() - start
            return
        if tier.is_slow:
            ready = _event_after(parcel.form.device)
            self._carried.add(parcel)
            self._pool().submit(self._carry, parcel, tier, ready)
            return
        start = time.perf_counter()
        try:
            ticket = self._put(parcel, tier)
        except BaseException:
            self._stay(parcel, tier)
            raise
        self._blocked += time.perf_counter() - start
        if ticket is None:
            self._gone(parcel)
        else:
            parcel.ticket = ticket
            self._leaving.append(parcel)

    def _put(self, parcel: Parcel, tier: Tier) -> Ticket | None:
        handle, small, ticket = tier.put(flat(parcel.alias, parcel.form))
        parcel.handle, parcel.small, parcel.tier = handle, small, tier
        return ticket

    def _carry(self, parcel: Parcel, tier: Tier, ready: Any) -> None:
        """In a thread of its own: write to a slow tier."""
        try:
            if ready is not None:
                ready.synchronize()
            self._put(parcel, tier)
        except OSError as error:
            with self._lock:
                self._full.add(tier.name)
                self.notes[f"{tier.name} is full ({error.strerror}): kept in memory"] = None
                self._stay(parcel, tier)
        except BaseException as error:
            with self._lock:
                self.notes[f"moving to {tier.name} failed: {error!r}; kept in memory"] = None
                self._stay(parcel, tier)
            raise
        else:
            with self._lock:
                self._gone(parcel)

    def _gone(self, parcel: Parcel) -> None:
        """The copy has ended: let go of the memory, unless it was overwritten meanwhile."""
        self._bytes[LEAVING] -= parcel.nbytes
        self._carried.discard(parcel)
        if parcel.is_overwritten:
            parcel.state = HERE  # It raises when it is asked for.
            self._bytes[HERE] += parcel.nbytes
        else:
            assert parcel.tier is not None
            self._moved[parcel.tier.name] += parcel.nbytes
            self._small += parcel.small
            parcel.let_go()
        parcel.ticket = None
        self._arrived.notify_all()

    def _stay(self, parcel: Parcel, tier: Tier) -> None:
        tier.give_up(parcel.form)
        self._bytes[LEAVING] -= parcel.nbytes
        self._bytes[HERE] += parcel.nbytes
        parcel.state = HERE
        self._arrived.notify_all()

    def _settle(self) -> None:
        """Take note of what the collector freed, and of copies that have ended."""
        while self._freed:
            state, nbytes = self._freed.popleft()
            if state != AWAY:
                self._bytes[state] -= nbytes
            if state != AHEAD:
                self._plain -= nbytes
        done = [one for one in self._leaving if one.ticket is None or one.ticket.is_done()]
        for parcel in done:
            self._leaving.remove(parcel)
            self._gone(parcel)

    def _tier_for(self, form: Form) -> Tier | None:
        for tier in self.tiers:
            if tier.name not in self._full and tier.accepts(form) and tier.claim(form):
                return tier
        return None

    # ------------------------------------------------------------------ back

    def _tensor_of(self, parcel: Parcel, form: Form) -> Tensor:
        self._after_fork()
        start = time.perf_counter()
        with self._lock:
            self._settle()
            parcel.check()
            self._ahead.asked(parcel)
            if parcel.state != AWAY:
                self._ahead.fetch_more()
                if form is parcel.form or not form.is_dense:
                    return parcel.alias
                return restored(flat(parcel.alias, parcel.form), form)
            fetched = self._ahead.take(parcel)
        if fetched is None:
            self._num_waited += 1
            fetched = self.get(parcel)
        elements, ticket = fetched.result() if isinstance(fetched, Future) else fetched
        if ticket is not None:
            ticket.join()
        with self._lock:
            self._fetched += parcel.nbytes
            self._ahead.fetch_more()
            self._blocked += time.perf_counter() - start
        return restored(elements, form)

    def get(self, parcel: Parcel) -> tuple[Tensor, Ticket | None]:
        """The elements of a parcel that is away."""
        assert parcel.tier is not None
        return parcel.tier.get(parcel.handle, parcel.form)

    def get_soon(self, parcel: Parcel) -> Any:
        """The same, beside what runs now."""
        assert parcel.tier is not None
        return self._pool().submit(self.get, parcel) if parcel.tier.is_slow else self.get(parcel)

    @property
    def room_ahead(self) -> int:
        """Bytes that may be fetched before they are asked for."""
        return max(0, self._limit - self._in_memory()) // 2

    def count_ahead(self, nbytes: int) -> None:
        """Bytes that were fetched ahead, or taken from there."""
        self._bytes[AHEAD] += nbytes
        self._note_peak()

    # ------------------------------------------------------------------ small things

    def _in_memory(self) -> int:
        return self._bytes[HERE] + self._bytes[LEAVING] + self._bytes[AHEAD]

    def _note_peak(self) -> None:
        self._peak = max(self._peak, self._in_memory())
        self._plain_peak = max(self._plain_peak, self._plain)

    def _begin_step(self) -> None:
        """The first pack after an unpack begins a step."""
        now = time.perf_counter()
        if self._began is None:
            self._began = now
        elif self._has_unpacked:
            self._spent += now - self._began
            self._began = now
            self._number = 0
            self._ahead.restart()
        self._has_unpacked = False

    def _pool(self) -> ThreadPoolExecutor:
        # Threads do not survive a fork.
        if self._threads is None or self._threads[0] != os.getpid():
            pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="torchtap-offload")
            self._threads = os.getpid(), pool
        return self._threads[1]

    def _new_lock(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)

    def _after_fork(self) -> None:
        """In a child no thread goes on with what is under way, nor lets go of the lock."""
        if self._pid == os.getpid():
            return
        self._new_lock()
        self._ahead.forget_all()
        for parcel in [one for one in self._carried if one.state == LEAVING]:
            parcel.state = HERE
            self._bytes[LEAVING] -= parcel.nbytes
            self._bytes[HERE] += parcel.nbytes

    def flush(self) -> None:
        """Wait until all that is leaving has left."""
        self._after_fork()
        with self._lock:
            while self._bytes[LEAVING] > 0:
                self._await_one()

    def close(self) -> None:
        """Pack no more; what is packed can still be unpacked."""
        self.is_open = False
        self.flush()
        with self._lock:
            self._ahead.restart()

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
                moved_nbytes=dict(self._moved),
                small_nbytes=self._small,
                fetched_nbytes=self._fetched,
                peak_nbytes=self._peak,
                plain_peak_nbytes=self._plain_peak,
                num_ahead=self._ahead.num_taken,
                num_waited=self._num_waited,
                blocked_seconds=self._blocked,
                step_seconds=self._spent or running,
                notes=tuple(self.notes),
            )


class _Ahead:
    """Fetches what backward will ask for next: as in the step before, or else the latest first.

    Only a hint: what is not there is fetched when it is asked for.
    """

    def __init__(self, session: Session) -> None:
        self.num_taken = 0
        self._session = weakref.ref(session)
        self._parcels: dict[int, weakref.ref[Parcel]] = {}
        self._order: deque[int] = deque(maxlen=1 << 16)
        self._last_order: list[int] = []
        self._places: dict[int, int] = {}
        self._ready: list[weakref.ref[Parcel]] = []

    def restart(self) -> None:
        """A step begins; what the last one asked for is what this one will ask for."""
        self._last_order = list(self._order)
        self._order.clear()
        self._places = {number: place for place, number in enumerate(self._last_order)}
        self._parcels.clear()
        self.forget_all()

    def forget_all(self) -> None:
        """Let go of what was fetched."""
        for parcel in self._fetched():
            self._forget(parcel)

    def packed(self, parcel: Parcel) -> None:
        """A parcel was made."""
        self._parcels[parcel.number] = weakref.ref(parcel)

    def asked(self, parcel: Parcel) -> None:
        """A parcel is asked for."""
        self._order.append(parcel.number)

    def take(self, parcel: Parcel) -> Any:
        """What was fetched of it, or ``None``."""
        fetched = parcel.ahead
        if fetched is not None:
            self.num_taken += 1
            self._forget(parcel)
        return fetched

    def fetch_more(self) -> None:
        """Begin to fetch what comes next, as far as there is room."""
        session = self._session()
        if session is None or not session.is_open:
            return
        free = NUM_AHEAD - len(self._fetched())
        for number in self._next():
            if free <= 0:
                return
            reference = self._parcels.get(number)
            parcel = None if reference is None else reference()
            if parcel is None or parcel.state != AWAY or parcel.ahead is not None:
                continue
            if parcel.nbytes > session.room_ahead:
                return
            parcel.ahead = session.get_soon(parcel)
            free -= 1
            self._ready.append(weakref.ref(parcel))
            session.count_ahead(parcel.nbytes)

    def _next(self) -> Sequence[int]:
        last = self._order[-1] if self._order else -1
        place = self._places.get(last)
        if place is not None:
            return self._last_order[place + 1 : place + 1 + NUM_AHEAD]
        return range(last - 1, max(-1, last - 1 - NUM_AHEAD), -1)

    def _fetched(self) -> list[Parcel]:
        """Parcels hold what was fetched of them, so that it goes when the graph goes."""
        found = [(reference, reference()) for reference in self._ready]
        alive = [(ref, one) for ref, one in found if one is not None and one.ahead is not None]
        self._ready = [reference for reference, _ in alive]
        return [parcel for _, parcel in alive]

    def _forget(self, parcel: Parcel) -> None:
        parcel.ahead = None
        session = self._session()
        if session is not None:
            session.count_ahead(-parcel.nbytes)


def _event_after(device: torch.device) -> Any:
    """What to wait for before reading a tensor in another thread."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
