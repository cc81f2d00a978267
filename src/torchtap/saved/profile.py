"""Runs one step and notes what it saves, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from torchtap.core.errors import InputError
from torchtap.core.module_paths import modules_of
from torchtap.core.plan import make_plan
from torchtap.core.preserved import gradients_set_aside, preserved
from torchtap.core.tensors import storage_id
from torchtap.hooks.graph_edges import num_casts
from torchtap.hooks.saved_hooks_scope import SavedHooksScope
from torchtap.hooks.saved_pairs import VersionedAlias, checked, versioned_alias
from torchtap.saved.buffer_storages import Buffers
from torchtap.saved.tensor_layout import layout_of


class SavedMemory:
    """One storage that is held because it is saved: numbers only.

    Attributes:
        paths: modules that save it. It is freed only when all of them have freed it.
        is_movable: whether ``tt.offload`` can move every tensor that is saved of it.
    """

    __slots__ = ("is_movable", "nbytes", "paths", "saved_at", "used_at")

    def __init__(self, nbytes: int, saved_at: float) -> None:
        self.paths: dict[str, None] = {}
        self.nbytes = nbytes
        self.saved_at = saved_at
        self.used_at = float("inf")
        self.is_movable = True

    @property
    def path(self) -> str:
        """Return the module that saved it first."""
        return next(iter(self.paths))

    @property
    def gap(self) -> float:
        """Seconds between saving and first use."""
        return self.used_at - self.saved_at

    def leaves(self, moved: set[str]) -> bool:
        """Return whether the memory is moved if these modules are offloaded."""
        return self.is_movable and moved.issuperset(self.paths)


_Packed = tuple[VersionedAlias, str, SavedMemory | None]


class Profile:
    """One step: which storages autograd saved, when, and when backward used them."""

    def __init__(self, model: nn.Module, min_bytes: int, scope: SavedHooksScope) -> None:
        self.saved: list[SavedMemory] = []
        self.saves: list[tuple[float, str]] = []
        self.uses: list[tuple[float, str]] = []
        self.begin = self.end = 0.0
        self._min_bytes = min_bytes
        self._scope = scope
        self._params = {storage_id(param) for param in model.parameters()} - {0}
        self._buffers = Buffers(modules_of(model)[0].items())
        self._known: dict[int, tuple[SavedMemory, StorageWeakRef]] = {}

    def pack(self, tensor: Tensor) -> _Packed:
        path = self._scope.path()
        alias_at_save = versioned_alias(tensor)
        now = _now(tensor)
        self.saves.append((now, path))
        storage = storage_id(tensor)
        if storage in self._params or storage in self._buffers:
            return alias_at_save, path, None
        # By storage and not by tensor: memory is freed as a whole, when the last view of it is.
        saved = self._memory_of(tensor, now)
        saved.paths[path] = None
        is_small = tensor.numel() * tensor.element_size() < self._min_bytes
        if is_small or isinstance(layout_of(tensor), str) or num_casts(tensor) is not None:
            saved.is_movable = False
        return alias_at_save, path, saved

    def unpack(self, packed: _Packed) -> Tensor:
        alias_at_save, path, saved = packed
        tensor = checked(alias_at_save)
        now = _now(tensor)
        self.uses.append((now, path))
        if saved is not None:
            saved.used_at = min(saved.used_at, now)
        return tensor

    def seconds(self) -> dict[str, float]:
        """Path -> time from its saves to the next ones, and from its uses to the next ones."""
        seconds: dict[str, float] = {}
        begin = self.uses[0] if self.uses else (self.end, "")
        # Between two events the module of the first one computes, as far as can be told without
        # hooks on each operation.
        for events in ([*self.saves, begin], [*self.uses, (self.end, "")]):
            for (moment, path), (following, _) in pairwise(events):
                seconds[path] = seconds.get(path, 0.0) + max(0.0, following - moment)
        return seconds

    def _memory_of(self, tensor: Tensor, now: float) -> SavedMemory:
        key = storage_id(tensor)
        memory, held = self._known.get(key, (None, None))
        # The address of a storage is reused once the storage is freed.
        if key and memory is not None and held is not None and not held.expired():  # type: ignore[no-untyped-call]
            return memory
        nbytes = tensor.untyped_storage().nbytes() if key else tensor.nbytes
        memory = SavedMemory(nbytes, now)
        self.saved.append(memory)
        if key:
            self._known[key] = memory, StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return memory


def profile_step(
    model: nn.Module,
    modules: dict[str, nn.Module],
    step_fn: Callable[[], object],
    min_bytes: int,
) -> Profile:
    """Run one step, and note when tensors are saved and used.

    Raises:
        InputError: the step saved or used nothing.
    """
    scope = SavedHooksScope()
    # The wrapper itself, since the modules in a compiled graph do not run one by one.
    scope.attach(make_plan(model, "*"), {**modules, "": model}, around=True)
    try:
        with preserved(modules), gradients_set_aside(model.parameters()):
            profile = Profile(model, min_bytes, scope)
            scope.pair = (profile.pack, profile.unpack)
            profile.begin = time.perf_counter()
            step_fn()
            profile.end = time.perf_counter()
    finally:
        scope.detach()
    if not profile.uses:
        raise InputError(
            f"step_fn ran no backward through {type(modules['']).__name__}: "
            f"{len(profile.saves)} tensors were saved, none was used. It must run the forward of "
            f"this very model and the backward of its loss."
        )
    for one in profile.saved:
        one.used_at = min(one.used_at, profile.end)
    return profile


def _now(tensor: Tensor) -> float:
    if tensor.is_cuda:  # The host runs ahead of the device.
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()
