"""``tt.record``: what a model computes of a whole data set, recorded into a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from torchtap.capture.watch import watch
from torchtap.core.distributed import local, own_rank, together
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import Where, modules_of
from torchtap.core.plan import make_plan
from torchtap.core.planned_size import PlannedSize
from torchtap.core.progress import Progress
from torchtap.core.record import Sink
from torchtap.core.tensors import obstacle
from torchtap.core.text import plural
from torchtap.core.tree import leaves
from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.disk import DATA_SET, Disk
from torchtap.runs.store.gaps import unmeasured
from torchtap.runs.store.history import is_current, valid_until_of
from torchtap.runs.store.layout import attempts_in, rank_folder
from torchtap.runs.store.measured_rows import look_through
from torchtap.studies.fingerprint import NoFingerprintError, fingerprint

Call = Callable[[nn.Module, Any], object]
_DEFAULT_BATCH = 32


def record(
    model: nn.Module,
    data: Any,
    where: Where = "*",
    *,
    to: str | Path | Disk,
    batch_size: int | None = None,
    workers: int = 0,
    call: Call | None = None,
    stats: Sink | None = None,
    resume: bool = False,
    progress: bool | None = None,
) -> Run:
    """Run a model over a data set, and record what flows into a folder.

    The model runs as it is (``model.eval()`` is yours to call), without gradients. A step is a
    batch, in the order of the data set, and the ids of its samples are their places in it:
    ``run.ids(step)``. After any stop, ``resume=True`` goes on with the first batch that is not
    there whole, with its statistics if ``stats`` is given, so that no sample is there twice or
    missing. Compared with the run are the class
    of the model, its parameters, its buffers (of modules in eval mode), ``where``, the number of
    samples, the batch size and the number of ranks; that the data are the same is yours to see to.

    Where ``torch.distributed`` is initialised, each rank takes its part of every batch and writes a
    folder of its own; the run is the same as that of one process. All ranks must call it: each
    returns once all have written their parts, or raised. Ranks whose part of the last batch is
    empty have none of it.

    Args:
        model: any module. Batches are moved to the device of its first parameter.
        data: a data set with a length, or a ``DataLoader`` of one that does not shuffle, whose
            batch size, workers and collation are used.
        where: what is recorded, as in :func:`tt.watch <torchtap.watch>`.
        to: the folder of the run, or a ``tt.Disk`` of your own settings.
        batch_size: samples of a step, over all ranks; that of the loader, or 32.
        workers: processes that load samples; those of the loader by default.
        call: ``call(model, batch)``, how the model is called. By default with the batch, if that is
            a tensor; with its first item, if it is a tuple or list (the others are labels); by
            keywords, if it is a dict.
        stats: a sink that measures beside: ``tt.Stats()``.
        resume: go on with a run that is there.
        progress: show it, and from the first batch how large the run will be; by default if stderr
            is a terminal and the work takes longer.

    Returns:
        the run, opened from the folder.

    Raises:
        InputError: the data shuffle or have no length; ``where``, the weights, the number of
            samples, the batch size or the number of ranks is not that of the run that is resumed.
        RunError: there is a run already and ``resume`` is false.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> data = torch.utils.data.TensorDataset(torch.arange(20.0).reshape(10, 2))
        >>> path = tempfile.mkdtemp() + "/run"
        >>> run = tt.record(torch.nn.ReLU(), data, to=path, batch_size=4)
        >>> run.steps, run.ids(2), run.cat(".:output").shape
        ([0, 1, 2], [8, 9], torch.Size([10, 2]))
    """
    require("tt.record", model)
    how = _How(where, call, stats, progress)
    return _recorded(model, _planned(data, batch_size, workers), how, to, resume=resume)


def record_telling(
    tell: Callable[[PlannedSize], None],
    model: nn.Module,
    data: Any,
    where: Where,
    *,
    to: str | Path,
    batch_size: int,
    workers: int,
    stats: Sink | None,
    resume: bool,
) -> Run:
    """Record as :func:`record` does, and tell ``tell`` the run's size after the first batch."""
    how = _How(where, None, stats, None, tell)
    return _recorded(model, _planned(data, batch_size, workers), how, to, resume=resume)


@dataclass(frozen=True, slots=True)
class _How:
    """The settings by which a data set is recorded, see :func:`record`."""

    where: Where
    call: Call | None
    stats: Sink | None
    progress: bool | None
    tell: Callable[[PlannedSize], None] | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The samples of each step, and the share of them that is this rank's."""

    data: Any
    num_samples: int
    batch_size: int
    rank: int
    world_size: int
    loading: Mapping[str, Any]

    @property
    def num_steps(self) -> int:
        return -(-self.num_samples // self.batch_size)

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels that a run that is resumed must have in common with this one."""
        return {
            "kind": DATA_SET,
            "num_samples": str(self.num_samples),
            "batch_size": str(self.batch_size),
            "num_ranks": str(self.world_size),
            "num_steps": str(len(self.shares(0))),
        }

    def share(self, step: int) -> range:
        """Return the samples of a step that this rank takes."""
        start = step * self.batch_size
        size = min(self.batch_size, self.num_samples - start)
        first, last = (size * one // self.world_size for one in (self.rank, self.rank + 1))
        return range(start + first, start + last)

    def shares(self, first: int) -> list[tuple[int, range]]:
        """Step and samples, from a step on; without those of which this rank has none."""
        every = ((step, self.share(step)) for step in range(first, self.num_steps))
        return [(step, own) for step, own in every if own]


def _planned(data: Any, batch_size: int | None, workers: int) -> _Plan:
    loading: dict[str, Any] = {"num_workers": workers}
    if isinstance(data, DataLoader):
        loader = data
        if not isinstance(loader.sampler, SequentialSampler) or loader.batch_size is None:
            raise InputError(
                "The loader shuffles, or has a sampler of its own; a recording that stopped could "
                "not go on with it. Give the data set, or a loader with shuffle=False."
            )
        data, batch_size = loader.dataset, batch_size or loader.batch_size
        loading |= {
            "num_workers": workers or loader.num_workers,
            "collate_fn": loader.collate_fn,
            "pin_memory": loader.pin_memory,
            "worker_init_fn": loader.worker_init_fn,
        }
    if isinstance(data, IterableDataset) or not isinstance(data, Sized):
        raise InputError(
            f"The data are a {type(data).__name__}, which has no length or no items by number; a "
            f"recording that stopped could not go on with it. Watch it yourself: tt.watch(model, "
            f"to=tt.Disk(path))."
        )
    size = _DEFAULT_BATCH if batch_size is None else batch_size
    if size < 1:
        raise InputError(f"batch_size is {size}; expected a number of samples from 1.")
    return _Plan(data, len(data), size, *own_rank(), loading)


def _weights(model: nn.Module) -> dict[str, str]:
    """Return a label with a fingerprint of the model's state: what one run holds is of one model.

    Without the buffers of modules in training mode, which a forward may change.
    """
    state = {
        f"{path}.{name}": local(tensor)[0]
        for path, module in modules_of(model)[0].items()
        for table in (module._parameters, {} if module.training else module._buffers)
        for name, tensor in table.items()
        if tensor is not None and obstacle(tensor) is None
    }
    try:
        return {"weights": fingerprint(state)}
    except NoFingerprintError:
        return {}


def _first_missing(
    path: Path,
    plan: _Plan,
    labels: Mapping[str, str],
    where: Sequence[str],
    *,
    measures: bool,
) -> int:
    """The first step that this rank has not whole, with its statistics if they are measured."""
    home = rank_folder(path, plan.rank)
    folders = attempts_in(home) if home.is_dir() else {}
    attempts = {number: AttemptReader(one) for number, one in folders.items()}
    done = -1
    for one in attempts.values():
        meta = one.facts.get("meta", {})
        _refuse_other_sites(path, meta.get("where", where), where)
        known = meta.get("labels", labels)
        for name, value in labels.items():
            if known.get(name, value) != value:
                raise InputError(
                    f"{path} was recorded with {name.replace('_', ' ')} {known.get(name)}, and "
                    f"this is to go on with {value}. Give the same, or another folder."
                )
        done = max([done, *(commit.step for commit in one.commits if commit.is_closed)])
    first: int = min([done + 1, *(_unmeasured(attempts) if measures else ())])
    return first


def _unmeasured(attempts: Mapping[int, AttemptReader]) -> Iterator[int]:
    """Steps from which on statistics of an attempt are missing."""
    valid_until = valid_until_of(attempts)
    spans = {number: look_through(one.folder)[0] for number, one in attempts.items()}
    yield from (gap.first for gap in unmeasured(attempts, valid_until, spans))
    for number, one in attempts.items():
        first = one.first_step
        if (
            not one.facts.get("measures")
            and first is not None
            and is_current(first, valid_until[number])
        ):
            yield first


def _refuse_other_sites(path: Path, before: Sequence[str], now: Sequence[str]) -> None:
    """A site that is not in all batches would miss samples."""
    known, wanted = ({one for one in some if " at 0x" not in one} for some in (before, now))
    if known != wanted:  # An address in the name of a callable object is another each time.
        raise InputError(
            f"{path} was recorded with where {', '.join(before)}, and this is to go on with "
            f"{', '.join(now)}. Give the same, or another folder."
        )


def _recorded(
    model: nn.Module, plan: _Plan, how: _How, to: str | Path | Disk, *, resume: bool
) -> Run:
    with together():
        disk = to if isinstance(to, Disk) else Disk(to, resume=resume)
        wanted = make_plan(model, how.where).where
        labels = plan.labels | _weights(model)
        first = 0
        if resume or disk.resumes:
            measures = hasattr(how.stats, "measured")
            first = _first_missing(disk.path, plan, labels, wanted, measures=measures)
        shares = plan.shares(first)
        disk.describe(labels, num_steps=len(shares) or None)
        if first < plan.num_steps:
            _run(model, plan, how, disk, shares)
    return open_run(disk.path)


def _run(
    model: nn.Module, plan: _Plan, how: _How, disk: Disk, shares: Sequence[tuple[int, range]]
) -> None:
    sinks: list[Sink] = [disk, *([] if how.stats is None else [how.stats])]
    call = how.call or _call
    doing = f"recording {plural(plan.num_samples, 'sample')}"
    is_told = False
    with (
        Progress(doing, len(shares), wanted=how.progress) as shown,
        watch(model, how.where, to=sinks) as w,
        torch.no_grad(),
    ):
        for (step, own), batch in zip(shares, _batches(plan, shares), strict=True):
            w.step(step)
            call(model, _moved(batch, model))
            w.step(ids=own)
            if not is_told:
                is_told, size = True, disk.planned_size()
                doing = f"{doing}, {size}"
                if how.tell is not None:
                    how.tell(size)
            shown.advance(doing)


def _batches(plan: _Plan, shares: Sequence[tuple[int, range]]) -> Iterator[Any]:
    chosen = [list(own) for _, own in shares]
    return iter(cast("Any", DataLoader(plan.data, batch_sampler=chosen, **plan.loading)))


def _moved(batch: Any, model: nn.Module) -> Any:
    """Return a batch on the device of the model."""
    parameter = next(model.parameters(), None)
    if parameter is None or all(tensor.device == parameter.device for tensor in _tensors(batch)):
        return batch
    if isinstance(batch, Tensor):
        return batch.to(parameter.device)
    if isinstance(batch, Mapping):
        return {name: _moved(one, model) for name, one in batch.items()}
    if isinstance(batch, tuple | list):
        return [_moved(one, model) for one in batch]
    return batch


def _tensors(batch: Any) -> Iterator[Tensor]:
    for _, one in leaves(batch):
        if isinstance(one, Tensor):
            yield one


def _call(model: nn.Module, batch: Any) -> object:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0]) if isinstance(batch, tuple | list) else model(batch)
