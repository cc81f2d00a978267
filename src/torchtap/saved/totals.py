"""Adds up saved tensors by module, each storage once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from torch import Tensor

from torchtap.capture.saved_port import BUFFER, DUPLICATE, PARAMETER, Counted
from torchtap.core.storages import blocks_of, spans_of


class ModuleTotal:
    """The totals of the tensors that one module saves.

    Attributes:
        count: number of saved tensors.
        nbytes: operation and slot -> bytes of the storages that it is the first to save.
        labels: label -> number of saved tensors with it.
        dtypes: of the tensors counted in ``nbytes``, in the order in which they came.
    """

    __slots__ = ("count", "dtypes", "labels", "nbytes")

    def __init__(self) -> None:
        self.count = 0
        self.nbytes: Counter[str] = Counter()
        self.labels: Counter[str] = Counter()
        self.dtypes: dict[str, None] = {}

    @property
    def largest(self) -> str:
        """Return the operation and slot that hold most; empty if none holds anything."""
        return max(self.nbytes, key=lambda leaf: self.nbytes[leaf], default="")


class SavedTotals:
    """Adds up saved tensors.

    Args:
        saved: the tensors, in the order of saving.
        inputs: what the model was called with.
        depth: modules below this depth count for the one at this depth.

    Attributes:
        modules: path -> total.
        spans: label -> ranges of bytes of parameters and buffers, which exist whether saved or not.
        input_nbytes: bytes of the inputs among what is saved.
        num_unreached: tensors that no node which leads to the output keeps.
        unreached_nbytes: their bytes, without storages that other tensors keep as well.
    """

    def __init__(
        self, saved: Iterable[Counted], inputs: Iterable[Tensor], depth: int | None
    ) -> None:
        self.modules: defaultdict[str, ModuleTotal] = defaultdict(ModuleTotal)
        self.spans: dict[str, list[tuple[int, int, int]]] = {PARAMETER: [], BUFFER: []}
        self.input_nbytes = self.num_unreached = self.unreached_nbytes = 0
        self._inputs = {number for tensor in inputs for number, _ in blocks_of(tensor)}
        self._depth = depth
        self._known: set[int] = set()
        for one in saved:
            self._add(one)

    def _add(self, one: Counted) -> None:
        path = one.path if self._depth is None else ".".join(one.path.split(".")[: self._depth])
        total = self.modules[path]
        total.count += 1
        total.labels.update(one.labels)
        own = [label for label in one.labels if label in self.spans]
        if own:
            self.spans[own[0]].extend(spans_of(one.alias))
        nbytes = 0 if own else self._hold(total, one.leaf, one.alias)
        if not one.leaf:
            self.num_unreached += 1
            self.unreached_nbytes += nbytes

    def _hold(self, total: ModuleTotal, leaf: str, tensor: Tensor) -> int:
        """Count the storages of a tensor that no earlier one has; returns their bytes."""
        fresh = [block for block in blocks_of(tensor) if block[0] not in self._known]
        if not fresh:
            total.labels[DUPLICATE] += 1
            return 0
        self._known.update(number for number, _ in fresh if number)
        nbytes = sum(size for _, size in fresh)
        self.input_nbytes += sum(size for number, size in fresh if number in self._inputs)
        total.nbytes[leaf] += nbytes
        total.dtypes[str(tensor.dtype).removeprefix("torch.")] = None
        return nbytes
