"""Packs what autograd saves, evicts it within a limit, and fetches it for backward.

A block is resident when it is packed, and leaves oldest first, since backward needs the oldest
last::

    pack -> RESIDENT -> EVICTING -> EVICTED <-> PREFETCHED
               |           |           |            |
             unpack      unpack   fetch, unpack   unpack

:mod:`~torchtap.saved.ledger` counts the bytes in each state, :mod:`~torchtap.saved.evictions`
copies blocks to the tiers, and :mod:`~torchtap.saved.prefetch` decides what is fetched before
backward asks for it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from torchtap.core.errors import OffloadError
from torchtap.core.torch_private import current_task, sequence_number
from torchtap.hooks.checkpoint_calls import note_copy
from torchtap.hooks.graph_edges import num_casts
from torchtap.hooks.marks import open_editors, open_engines
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.saved_hooks_scope import ThreadState
from torchtap.hooks.saved_pairs import checked, versioned_alias
from torchtap.saved.evictions import Evictions
from torchtap.saved.forks import forks
from torchtap.saved.ledger import Ledger
from torchtap.saved.native_saved import kernel
from torchtap.saved.offload_report import ModuleCounters, OffloadReport
from torchtap.saved.prefetch import Prefetch
from torchtap.saved.saved_block import (
    EVICTING,
    PREFETCHED,
    RESIDENT,
    BlockRef,
    Foreign,
    Freed,
    Identity,
    SavedBlock,
    SharedView,
    check,
    fetch,
    new_block,
)
from torchtap.saved.tensor_layout import TensorLayout, flat, layout_of, restored
from torchtap.saved.tier_chain import TierChain
from torchtap.saved.tiers import Tier
from torchtap.saved.workers import Workers

IN_FLIGHT = 256 << 20
"""Bytes that may be in memory at one time where ``max_bytes`` is not given."""
_MOST_WAITS = 256
"""Times of waiting that are kept until they are added up, or until a report is asked for."""


class _Operation(threading.local):
    """The operation that runs in a thread, as far as can be told.

    Attributes:
        node: number that autograd's next node had when the latest tensor was packed.
        unfinished: blocks packed since it has that number: the operation may not have ended.
    """

    def __init__(self) -> None:
        self.node = -1
        self.unfinished: list[weakref.ref[BlockRef]] = []


class OffloadEngine:
    """The state of one ``tt.offload``: its blocks, its limits and its notes.

    One lock guards all of it. Finalisers cannot take it, so they append to ``_freed``.

    Args:
        tiers: where blocks are evicted to, in order of preference.
        min_bytes: smaller tensors are not moved.
        max_bytes: most bytes in memory: resident, evicting and prefetched.
        keep_last: bytes of the latest tensors that stay resident until later ones are packed.
        on_full: ``wait``, ``keep`` or ``raise``.
        why_not: returns why a tensor is not to be moved, or ``None``; asked besides the checks of
            the layout.
        thread: what runs in the current thread, and the pair of hooks below ours.
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        *,
        min_bytes: int,
        max_bytes: int | None,
        keep_last: int,
        on_full: str,
        why_not: Callable[[Tensor], str | None] | None,
        thread: ThreadState,
    ) -> None:
        self.chain = TierChain(tiers)
        self.is_open = True
        self._min_bytes = min_bytes
        self._max_bytes = IN_FLIGHT if max_bytes is None else max_bytes
        self._keep_last = min(keep_last, self._max_bytes)
        self._on_full = on_full
        self._why_not = why_not
        native = kernel()
        self._layout_of = native.find_layout if native else layout_of
        self._new_block = native.SavedBlock if native else new_block
        self._held = native.SavedBlock if native else BlockRef
        self._thread = thread
        self._operation = _Operation()
        self._forks = forks.count
        self._lock = threading.RLock()
        self._ledger = Ledger((tier.name for tier in tiers), native)
        self._totals = self._ledger.totals
        self._modules = self._ledger.modules
        self._workers = Workers()
        self._evictions = Evictions(self.chain, self._ledger, self._workers, self._lock)
        self._prefetch = Prefetch(self._ledger, self._workers, self._max_bytes)
        self._known: dict[Identity, weakref.ref[BlockRef]] = {}
        self._queue: deque[weakref.ref[BlockRef]] = deque()
        self._freed: deque[Freed] = deque()
        self._totals.is_step_over = True
        self._hot = self._new_way() if native else None

    def _new_way(self) -> Any:
        """Make the native code's way through this engine, with the objects that both change."""
        ledger, evictions, prefetch = self._ledger, self._evictions, self._prefetch
        return kernel().HotWay(
            self._lock.acquire,
            self._lock.release,
            forks,
            self._thread,
            self._operation,
            ledger.modules,
            ledger.totals,
            ledger.moved,
            ledger.waits,
            self._known,
            self._queue,
            self._freed,
            evictions.copying,
            self.chain.plans,
            self._why_not,
            evictions.begin,
            evictions.fail,
            prefetch.add,
            prefetch.forget,
            prefetch.take_and_start,
            self._workers.count_freed,
            ledger.settle,
            self._min_bytes,
            self._max_bytes,
            self._keep_last,
        )

    # ------------------------------------------------------------------ hooks

    def pack(self, tensor: Tensor) -> Any:
        """Return what autograd is to hold in place of a tensor that it saves."""
        if self._hot is not None:
            packed = self._hot.pack(tensor)
            if packed is not NotImplemented:
                return packed
        # A DataLoader's worker inherits the engine with a lock that no thread of the child will
        # release.
        if self._forks != forks.count:
            self._after_fork()
        nbytes = tensor.numel() * tensor.itemsize
        layout = "small" if nbytes < self._min_bytes else self._layout_or_reason(tensor)
        thread = self._thread
        with self._lock:
            counters = self._modules[thread.path]
            counters.count += 1
            counters.seen += nbytes
            if not isinstance(layout, str):
                return self._take(tensor, layout, counters)
            counters.kept[layout] += nbytes
        # Any pair of hooks switches off autograd's check for tensors that are overwritten, so what
        # is kept is guarded here, unless a pair below ours takes it as it would without us.
        below = thread.below[-1] if thread.below else None
        return versioned_alias(tensor) if below is None else Foreign(below, tensor)

    def unpack(self, packed: Any) -> Tensor:
        """Return the tensor. Autograd may ask any number of times, in any thread."""
        if self._hot is not None:
            tensor: Tensor = self._hot.unpack(packed)
            if tensor is not NotImplemented:
                return tensor
        kind = type(packed)
        if kind is self._held:
            block = packed.block
            return self._tensor_of(block, block.layout)
        if kind is tuple:
            return checked(packed)
        if kind is SharedView:
            return self._tensor_of(packed.ref.block, packed.layout)
        # Of the pair below ours, in its own form: a library that offloads too gets back what it
        # packed.
        unpacked: Tensor = packed.unpack(packed.packed)
        return unpacked

    def _layout_or_reason(self, tensor: Tensor) -> TensorLayout | str:
        """Return the layout of a tensor that is to be moved, or why it is kept."""
        if not self.is_open:
            return "after closing"
        if current_task() != -1:
            return "inside a backward"
        layout: TensorLayout | str = self._layout_of(tensor)
        if isinstance(layout, str):
            return layout
        if self._why_not is not None and (reason := self._why_not(tensor)) is not None:
            return reason
        if num_casts(tensor) is not None:
            return "parameter"
        return self.chain.why_none(layout) or layout

    def _take(
        self, tensor: Tensor, layout: TensorLayout, counters: ModuleCounters
    ) -> BlockRef | SharedView:
        """Make a block of a tensor, or share the one that holds the same numbers."""
        if self._totals.is_step_over:
            self._begin_step()
        storage = tensor.untyped_storage()
        # Layers save one tensor several times (a linear layer its input, the ReLU before it its
        # output): with equal identity it is moved once.
        identity = (id(storage), tensor._version, tensor.storage_offset(), layout.marks)
        if self._freed or self._evictions.copying:
            self._settle()
        reference = self._known.get(identity)
        known = None if reference is None else reference()
        # The id of a storage object is reused once it is freed, so the object itself is compared.
        # Only a resident block is shared: not every write raises the version, so what was evicted
        # may be other numbers than the memory holds now.
        if known is not None and known.block.state == RESIDENT and known.block.storage() is storage:
            counters.shared += layout.nbytes
            return SharedView(known, layout)
        operation, ledger = self._operation, self._ledger
        if (node := sequence_number()) != operation.node:
            operation.node = node
            self._end_operation(self._keep_last - layout.nbytes)
        # Only while something is on its way: with nothing to wait for, the tensor is kept, since a
        # limit must not end a training.
        if self._totals.evicting and ledger.in_memory + layout.nbytes > self._max_bytes:
            self._when_full(layout.nbytes)
        memory, held = storage._cdata, weakref.ref(storage)
        # Detached: pack hooks get the live tensor, whose grad_fn may be the very node that holds
        # what we return, a cycle that the collector cannot see (pytorch/pytorch#189025, #7343).
        ref = self._new_block(tensor.detach(), layout, held, identity, memory, self._freed)
        self._known[identity] = reference = weakref.ref(ref)
        block = ref.block
        ledger.add(block)  # First: whatever ends the block takes its bytes off again.
        if not (layout.is_small and self.chain.of(layout)[0].is_slow):
            self._prefetch.add(block, reference)
        if self._hot is not None:
            self.chain.plan(layout)
        counters.packed += layout.nbytes
        operation.unfinished.append(reference)
        return ref

    # ------------------------------------------------------------------ evict

    def end_operation(self) -> None:
        """No operation runs in this thread, so the tensors that it saved may be evicted."""
        self._after_fork()
        with self._lock:
            self._end_operation(self._keep_last)

    def _end_operation(self, allowed: int) -> None:
        """Evict the oldest blocks, now that the last operation of this thread has ended.

        Autograd saves some tensors before the kernel fills them (the noise of ``rrelu``), so a
        block must not be copied before its operation has ended. PyTorch does not tell when that
        is; the first sign is that the thread makes another autograd node.

        Args:
            allowed: bytes that may stay resident.
        """
        unfinished, queue = self._operation.unfinished, self._queue
        queue.extend(unfinished)
        unfinished.clear()
        # Weak references: a block that backward has used and freed meanwhile is passed over.
        while self._totals.resident > allowed and queue:
            ref = queue.popleft()()
            if ref is not None and ref.block.state == RESIDENT:
                self._evictions.begin(ref.block)

    def _when_full(self, coming: int) -> None:
        """Evicting is behind, and a tensor of ``coming`` bytes does not fit the limit."""
        ledger = self._ledger
        if self._on_full == "raise":
            raise OffloadError(
                f"Offloading holds {ledger.in_memory:,} bytes, {coming:,} come, and "
                f"{self._max_bytes:,} are allowed: {self._totals.evicting:,} are still on their "
                f"way. Give more with max_bytes=, or wait with on_full='wait'."
            )
        if self._on_full == "keep":
            return
        start = time.perf_counter()
        while ledger.in_memory + coming > self._max_bytes and self._totals.evicting:
            self._evictions.wait()
            self._settle()
        ledger.blocked_seconds += time.perf_counter() - start

    def _settle(self) -> None:
        """Account for blocks that were freed and for copies that have ended."""
        while self._freed:
            state, layout, identity, number, tier, stored_nbytes = self._freed.popleft()
            if tier is not None:
                tier.used -= stored_nbytes
            self._ledger.remove(state, layout.nbytes)
            if state == PREFETCHED:
                self._prefetch.forget(number)
            reference = self._known.get(identity)
            if reference is not None and reference() is None:
                del self._known[identity]
        if len(self._ledger.waits) > _MOST_WAITS:
            self._ledger.settle()
        if self._evictions.copying:
            self._evictions.settle()

    # ------------------------------------------------------------------ fetch

    def _tensor_of(self, block: SavedBlock, layout: TensorLayout) -> Tensor:
        """Return the tensor of a block, in the layout of the tensor that was packed."""
        if self._forks != forks.count:
            self._after_fork()
        start = time.perf_counter()
        prefetch, can_prefetch = self._prefetch, block.number >= 0
        with self._lock:
            self._totals.is_step_over = True
            if self._freed or self._evictions.copying:
                self._settle()
            check(block)
            state = block.state
            is_in_memory = state is RESIDENT or state is EVICTING
            fetched = prefetch.take(block) if state is PREFETCHED else None
            if not is_in_memory:
                # Backward frees it when it has used it.
                self._workers.count_freed(block.layout.heap_nbytes)
                self._ledger.fetch(block, was_prefetched=fetched is not None)
            if can_prefetch:
                prefetch.note_request(block, was_prefetched=fetched is not None)
                if fetched is not None or is_in_memory:
                    prefetch.start()
            if is_in_memory:  # A new handle: evicting takes the memory away from the alias.
                return _seen_as(block.alias.detach(), block.layout, layout)
        if fetched is None:
            fetched = fetch(block)
            if can_prefetch:
                with self._lock:
                    prefetch.start()  # Only now, since backward waits for this block.
        elements, ticket = fetched.result() if isinstance(fetched, Future) else fetched
        # The stream that computes waits for the copy, and this thread does not.
        if ticket is not None:
            ticket.join()
        self._ledger.waits.append(time.perf_counter() - start)
        is_as_packed = layout is block.layout and layout.is_plain
        tensor = elements if is_as_packed else restored(elements, layout)
        if open_engines or open_editors:  # They know by its memory what a checkpoint begins with.
            note_copy(tensor, block.memory)
        return tensor

    # ------------------------------------------------------------------ steps, forks, the end

    def _begin_step(self) -> None:
        """The first pack after an unpack begins a step."""
        self._totals.is_step_over = False
        self._ledger.begin_step()
        self._prefetch.begin_step()
        # What a step has not evicted and its graph has freed would be walked over in each later
        # step.
        alive = [one for one in self._queue if one() is not None]
        self._queue.clear()
        self._queue.extend(alive)

    def _after_fork(self) -> None:
        """In a child process no thread ends what was begun, nor releases the lock."""
        if self._forks == forks.count:
            return
        self._forks = forks.count
        self._lock = threading.RLock()
        self._prefetch.drop_all()
        self._evictions.after_fork(self._lock)
        self.chain.plans.clear()
        if self._hot is not None:
            self._hot = self._new_way()

    def flush(self) -> None:
        """Wait until all blocks that are evicting are evicted."""
        self._after_fork()
        with self._lock:
            self._end_operation(self._keep_last)
            self._settle()
            while self._totals.evicting > 0:
                self._evictions.wait()
                self._settle()

    def holds_nothing(self) -> bool:
        """Return whether no block is in memory."""
        with self._lock:
            self._settle()
            return not self._ledger.in_memory

    def close(self) -> None:
        """Pack no more; packed tensors can still be unpacked."""
        self.is_open = False
        self._hot = None
        # Before the threads end: what they write now must be whole when it is unpacked.
        self.flush()
        with self._lock:
            self._workers.close()
            self._prefetch.drop_all()
            self._settle()
            self.chain.close()
            # Blocks that are alive keep the old one, to which their finalisers append: nobody reads
            # it any more, and it is freed with them.
            self._freed = deque()
            self._known.clear()
            # It refers to the model, which a closed offload must not keep alive.
            self._why_not = None

    def report(self) -> OffloadReport:
        """Return the report of everything that happened so far."""
        self._after_fork()
        with self._lock:
            self._settle()
            return self._ledger.report(tuple(self.chain.notes))


keep_dynamo_out(OffloadEngine.pack, OffloadEngine.unpack)


def _seen_as(tensor: Tensor, layout: TensorLayout, wanted: TensorLayout) -> Tensor:
    """Return a resident tensor, as another one that shares its memory."""
    if wanted is layout or not wanted.is_dense:
        return tensor
    return restored(flat(tensor, layout), wanted)
