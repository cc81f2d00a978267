"""What autograd keeps for backward, module by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from torchtap.hooks.saved import CAST, DUPLICATE, PARAMETER
from torchtap.plan import modules_of
from torchtap.record import Absence, Record
from torchtap.untouched import untouched
from torchtap.watching import watch


@dataclass(frozen=True, slots=True)
class SavedRow:
    """What one module keeps by itself, without the modules in it.

    Attributes:
        path: of the module; ``""`` for the root.
        type: class name.
        count: saved tensors, of any kind.
        nbytes: bytes of memory that is held only because of them, each memory once.
        num_params: how many are parameters (or views of them), which cost nothing more.
        num_casts: how many are parameters in another dtype, as autocast makes them.
        num_duplicates: how many share memory that was counted before.
        largest: operation and slot that hold most, ``AddmmBackward0.mat1``.
        dtypes: of what costs memory.
    """

    path: str
    type: str
    count: int
    nbytes: int
    num_params: int
    num_casts: int
    num_duplicates: int
    largest: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SavedReport:
    """What :func:`saved_report` found. Printing it shows it.

    Attributes:
        model: class name.
        rows: modules that keep anything, in the order of ``named_modules()``.
        nbytes: held in all when the forward ends, which is the peak of what is saved: backward
            only lets go of it.
        count: saved tensors in all.
        param_nbytes: bytes of parameters among them, which are there anyway.
        absent: what could not be seen, with reasons.

    Example:
        >>> import torch, torchtap as tt
        >>> report = tt.saved_report(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> report.nbytes, report.rows[0].largest
        (48, 'AddmmBackward0.mat1')
    """

    model: str
    rows: tuple[SavedRow, ...]
    nbytes: int
    count: int
    param_nbytes: int
    absent: tuple[Absence, ...] = ()

    @property
    def peak(self) -> int:
        """The most bytes that saved tensors hold, at the end of the forward."""
        return self.nbytes

    def sorted(self) -> SavedReport:
        """The same rows, those that hold most first."""
        rows = tuple(sorted(self.rows, key=lambda row: -row.nbytes))
        return SavedReport(
            self.model, rows, self.nbytes, self.count, self.param_nbytes, self.absent
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        from torchtap.view.saved import show_saved

        return show_saved(self)


def saved_report(
    model: nn.Module, *args: Any, loss: Callable[[Any], Any] | None = None, **kwargs: Any
) -> SavedReport:
    """Run one forward and say what autograd keeps for backward, and which module keeps it.

    The forward runs in the mode the model is in; buffers and random numbers are put back.

    Args:
        model: any module.
        *args: what it is called with.
        loss: a function of the output; what it saves counts under the root.
        **kwargs: what it is called with.

    Returns:
        a table. Bytes count memory that exists only because it is saved, each memory once;
        parameters, which are there anyway, are counted apart. What activation checkpointing
        computes again is not kept, and is listed in ``absent``.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> [(row.path, row.nbytes) for row in tt.saved_report(model, torch.ones(3, 4)).rows]
        [('0', 48), ('1', 96)]
    """
    modules, _ = modules_of(model)
    wrapper = model if loss is None else _WithLoss(model, loss)
    prefix = "" if loss is None else "model."
    ledger = _Ledger(prefix)
    with ExitStack() as stack:
        stack.enter_context(untouched(modules))
        stack.enter_context(torch.enable_grad())
        seen = stack.enter_context(watch(wrapper, "*:saved", to=ledger.take, copy="never"))
        kept = wrapper(*args, **kwargs)  # The graph must live until all is read.
        absent = [entry for entry in seen.absent if entry.site.leaf]
        del kept
    rows = tuple(
        ledger.row(path, type(module).__name__)
        for path, module in modules.items()
        if ledger.counts[path]
    )
    return SavedReport(
        model=type(modules[""]).__name__,
        rows=rows,
        nbytes=sum(row.nbytes for row in rows),
        count=sum(row.count for row in rows),
        param_nbytes=sum(ledger.params.values()),
        absent=tuple(absent),
    )


class _WithLoss(nn.Module):
    """A model and its loss as one module."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # In a tuple, since a loss that is a module would become a part.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._loss[0](self.model(*args, **kwargs))


class _Ledger:
    """Adds up what is saved, without keeping any of it.

    Attributes:
        counts: path -> number of saved tensors.
        params: memory of a parameter -> its bytes.
    """

    def __init__(self, prefix: str) -> None:
        self.counts: Counter[str] = Counter()
        self.params: dict[int, int] = {}
        self._prefix = prefix
        self._labels: Counter[tuple[str, str]] = Counter()
        self._nbytes: dict[str, Counter[str]] = {}
        self._dtypes: dict[str, dict[str, None]] = {}

    def take(self, record: Record) -> None:
        path = record.site.path.removeprefix(self._prefix.rstrip(".")).lstrip(".")
        tensor = record.kept
        self.counts[path] += 1
        for label in record.labels:
            self._labels[path, label] += 1
        if PARAMETER in record.labels:
            self.params[tensor.untyped_storage()._cdata] = tensor.nbytes
        elif DUPLICATE not in record.labels:
            self._nbytes.setdefault(path, Counter())[record.site.leaf] += _held(record)
            dtype = str(tensor.dtype).removeprefix("torch.")
            self._dtypes.setdefault(path, {})[dtype] = None

    def row(self, path: str, type_name: str) -> SavedRow:
        held = self._nbytes.get(path, Counter())
        return SavedRow(
            path=path,
            type=type_name,
            count=self.counts[path],
            nbytes=sum(held.values()),
            num_params=self._labels[path, PARAMETER],
            num_casts=self._labels[path, CAST],
            num_duplicates=self._labels[path, DUPLICATE],
            largest=max(held, key=lambda leaf: held[leaf], default=""),
            dtypes=tuple(self._dtypes.get(path, ())),
        )


def _held(record: Record) -> int:
    """Bytes that a saved tensor keeps alive: of a view, all of its storage."""
    try:
        return int(record.kept.untyped_storage().nbytes())
    except (NotImplementedError, RuntimeError):  # Sparse and wrapped tensors have no storage.
        return record.nbytes
