"""``tt.merge``: the runs of all ranks of one training as one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torchtap.core.absence import Absence
from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.runs.merging.merged_source import merge_sources
from torchtap.runs.open_run import open_run
from torchtap.runs.run import Run
from torchtap.runs.source import Source


def merge(
    runs: Iterable[Run | str | Path], *, allow_missing: bool = False, stages: bool = False
) -> Run:
    """The runs of all ranks of one training as one run.

    The values of the ranks at a site make up the whole by its port and placement:

    - Inputs, outputs and their gradients are of parts of the batch. Their statistics are added up,
      as of one process with the whole batch. Kept values stand side by side, as further calls of
      the step with a label ``rank N``, and ``run.cat`` joins them. A gradient is of the rank's own
      loss: where that is a mean over its part of the batch, it is as many times the gradient of
      the whole as there are parts, and ``notes`` says so.
    - Parameters, buffers, updates and ``step_grad`` are replicas, taken once. All ranks are
      compared; steps in which they differ are left out, and ``absent`` names site, step and ranks.
    - Shards (FSDP, tensor parallelism) are put together, their statistics added up.
    - Partial sums, and gradients of parameters from before DDP averages them, are left out:
      ``absent`` says so, and ``run.over_ranks`` has the numbers of each rank.
    - Ranks of one batch (tensor parallelism) that have a plain tensor each: replicas where they are
      equal, else parts of one value, added up; ``notes`` says which.
    - Of the stages of a pipeline each has sites of its own, merged among the ranks that ran it.
      Where several have a module of one path, such as the root, its sites are left out: it is
      another module on each. Microbatches are calls, and gradients are of the loss of each.
    - Numbers that were logged are averaged over the ranks; where they differ, those of each rank
      stand beside, as ``loss of rank 1``.
    - Steps that not all ranks have are left out, and ``absent`` says which ranks lack them.

    Args:
        runs: one of each rank, in any order: runs, or the files that they were saved to.
        allow_missing: merge without the ranks that are not given; ``absent`` and ``notes`` say so.
        stages: runs of different modules are of the stages of one pipeline. Where
            ``torch.distributed.pipelining`` ran them, the runs know that themselves.

    Returns:
        a run with ``meta.rank`` of ``None``. It is saved and opened as any other.

    Raises:
        InputError: there is no run, one of a single process, or one that was merged already.
        RunError: they are not of one training: another model, other patterns, another number of
            ranks, a rank twice or missing, or no step that all have.

    Example:
        >>> import dataclasses, torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> def rank(number):  # Under torchrun, each process saves such a run: w.run.save(...)
        ...     with tt.watch(relu) as w:
        ...         _ = relu(torch.full((1, 2), float(number)))
        ...     meta = dataclasses.replace(w.run.meta, rank=number, world_size=2)
        ...     return tt.Run(list(w.run.records()), meta)
        >>> run = tt.merge([rank(0), rank(1)])
        >>> run.cat(".:output")
        tensor([[0., 0.],
                [1., 1.]])
        >>> run.over_ranks(".:output", "mean")
        ([0, 1], [0.0, 1.0])
    """
    return merge_all(runs, allow_missing=allow_missing, stages=stages).run


class Merged(NamedTuple):
    """The result of merging.

    Attributes:
        run: of all ranks.
        differing: replicas that are not equal, in the order of the steps in which they began.
    """

    run: Run
    differing: tuple[Absence, ...]


def merge_all(
    runs: Iterable[Run | str | Path], *, allow_missing: bool = False, stages: bool = False
) -> Merged:
    """Merge as :func:`merge` does, and return the replicas that differ, too."""
    if isinstance(runs, str | Path | Run):
        raise InputError("tt.merge takes a list of runs or files, one of each rank, not one alone.")
    if not isinstance(runs, Iterable):
        raise InputError(
            f"tt.merge got {kind_of(runs)}; expected a list of runs or files, one of each rank."
        )
    source = merge_sources(_opened(runs), allow_missing=allow_missing, stages=stages)
    return Merged(Run(source), source.differing)


def _opened(runs: Iterable[Run | str | Path]) -> Iterator[tuple[str, Source]]:
    for number, one in enumerate(runs):
        if isinstance(one, Run):
            yield f"run {number} of the list", one.source
        elif isinstance(one, str | Path):
            yield str(one), open_run(one).source
        else:
            raise InputError(
                f"Item {number} of the list is a {type(one).__name__}; expected a run or its file."
            )
