"""The objects that autograd holds in place of a tensor that it saved."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import Tensor

from torchtap.hooks.saved_pairs import Pair, overwritten
from torchtap.saved.copy_streams import Ticket
from torchtap.saved.tensor_layout import TensorLayout, flat
from torchtap.saved.tiers import Tier

RESIDENT, EVICTING, EVICTED = "resident", "evicting", "evicted"
PREFETCHED = "prefetched"
"""Evicted, and fetched before backward has asked for it."""

Identity = tuple[int, int, int | torch.SymInt, tuple[Any, ...]]
"""Equal for two saved tensors exactly if they are the same numbers in the same memory: id of the
storage object, version, storage offset, and ``marks`` of the layout."""
Freed = tuple[str, TensorLayout, Identity, int, Tier | None, int]
"""Facts that a freed block leaves for the ledger: its state, layout, identity, number, tier, and
the bytes that it took there."""


class SavedBlock:
    """One stretch of memory that autograd saves. The graph owns it, through what ``pack`` returned.

    It has no methods, since another of ``saved.c`` takes its place where that is compiled.

    It holds an alias of the tensor, and with it the version counter, so that a tensor that was
    overwritten is never handed out. Once it is evicted, the alias has no memory, but still shares
    the version counter: an in-place operation that was running while the tensor was copied raises
    the version only when it ends.

    Attributes:
        alias: shares memory and version counter with the tensor, and has no graph.
        layout: dtype, shape and strides of the tensor.
        storage: weak reference to the storage that it was packed from. The address of a storage is
            reused once the storage is freed, so the reference must be compared and not the address.
        identity: key under which later tensors of the same memory find it.
        memory: number of the storage in which it was packed.
        number: position among the blocks that can be prefetched; -1 if it cannot be.
        state: ``RESIDENT``, ``EVICTING``, ``EVICTED`` or ``PREFETCHED``. Only the ledger sets it.
        ticket: of the copy that evicts it.
        tier: that holds its bytes, or is being given them.
        handle: under which the tier holds them.
        stored_nbytes: bytes that it takes there.
        prefetched: the result of ``fetch()``, or a future of it.
    """

    __slots__ = (
        "_freed",
        "alias",
        "handle",
        "identity",
        "layout",
        "memory",
        "number",
        "prefetched",
        "state",
        "storage",
        "stored_nbytes",
        "ticket",
        "tier",
    )

    def __init__(
        self,
        alias: Tensor,
        layout: TensorLayout,
        storage: weakref.ref[torch.UntypedStorage],
        identity: Identity,
        memory: int,
        freed: deque[Freed],
    ) -> None:
        self.alias = alias
        self.layout = layout
        self.storage = storage
        self.identity = identity
        self.memory = memory
        self.number = -1
        self.state = RESIDENT
        self.ticket: Ticket | None = None
        self.tier: Tier | None = None
        self.handle: Any = None
        self.stored_nbytes = 0
        self.prefetched: Any = None
        self._freed = freed

    def __del__(self) -> None:
        # The garbage collector may call this at any moment, also while the lock of the engine is
        # held by this very thread, so it only appends.
        tier = self.tier
        self._freed.append(
            (self.state, self.layout, self.identity, self.number, tier, self.stored_nbytes)
        )
        if tier is not None:
            tier.drop(self.handle)


class BlockRef:
    """The object that autograd holds for a block: the block lives as long. Others hold it weakly.

    It is not the block itself, because that has a finaliser: until the finaliser has run, a weak
    reference to the block would bring it back to life. A weak reference to this is dead before.
    """

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: SavedBlock) -> None:
        self.block = block


def new_block(*parts: Any) -> BlockRef:
    """Make a block from what :class:`SavedBlock` takes, and return what the graph is to hold."""
    return BlockRef(SavedBlock(*parts))


def is_overwritten(block: SavedBlock) -> bool:
    """Return whether an in-place operation has written to the tensor since it was saved."""
    return block.alias._version != block.identity[1]


def check(block: SavedBlock) -> None:
    """Check the version, as autograd does before it hands out a saved tensor.

    Raises:
        RuntimeError: it was overwritten, in autograd's own words.
    """
    if is_overwritten(block):
        raise overwritten(block.alias, block.layout.size, block.identity[1])


def put(block: SavedBlock, tier: Tier) -> Ticket | None:
    """Begin to copy the elements to a tier; returns what to wait for, if anything."""
    layout = block.layout
    elements = block.alias if layout.is_plain else flat(block.alias, layout)
    block.handle, block.stored_nbytes, ticket = tier.put(elements, layout)
    # Last: of a block whose put() raised the finaliser has nothing to drop.
    block.tier = tier
    return ticket


def fetch(block: SavedBlock) -> tuple[Tensor, Ticket | None]:
    """Read the elements of an evicted block from its tier."""
    assert block.tier is not None
    return block.tier.get(block.handle, block.layout)


def free_memory(block: SavedBlock) -> None:
    """Free the tensor's memory, and keep its version counter."""
    # Setting ``data`` keeps the version counter (pytorch/pytorch#20391), which is_overwritten asks.
    # An empty tensor of the same dtype and device, which ``data`` requires.
    block.alias.data = block.layout.nothing


class SharedView:
    """The object that autograd holds for a tensor that shares a block with others."""

    __slots__ = ("layout", "ref")

    def __init__(self, ref: BlockRef, layout: TensorLayout) -> None:
        self.ref = ref
        self.layout = layout


class Foreign:
    """The object that autograd holds for a tensor that the pair of hooks below ours has packed."""

    __slots__ = ("packed", "unpack")

    def __init__(self, pair: Pair, tensor: Tensor) -> None:
        pack, self.unpack = pair
        self.packed = pack(tensor)
