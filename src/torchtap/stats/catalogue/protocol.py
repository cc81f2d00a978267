"""The protocol of a statistic: its state, its update by a tensor, its merge and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.core.text import class_of
from torchtap.stats.catalogue.results import OF_SHARDS, Missing

_NO_SHARDS = (
    f"{OF_SHARDS.rstrip('.')}; a statistic that has merge_shards, or needs_places = False, merges "
    f"them."
)


@runtime_checkable
class Statistic(Protocol):
    """One number or small vector kept instead of a value, with its merge.

    ``update`` gets each tensor detached, real and strided, with grad mode, autocast and inference
    mode off. It must not write into it, keep it, or draw random numbers. ``merge`` must be
    associative: calls, micro-batches, steps and ranks all go through it. States may be anything.

    A statistic may have more, and torchtap uses each part that it has:

    ``pack(state)`` -> ``Mapping[str, Tensor]`` and ``unpack(parts)`` -> state
        The state as named tensors, of any names, shapes and of dtypes that a file can hold, and
        back. ``unpack`` gets the same names, dtypes, shapes and bits as tensors on the CPU, which
        it may keep. With both, a file or folder holds the state of each step, and ``tt.open(path,
        statistics=[...])`` merges and finishes it as in memory: windows of steps, attempts, ranks.
        Without them a file holds the results of ``finish``. Parts that are no tensors, or what
        ``pack`` raises, cost that state and not the run: ``absent`` says so. An exception of
        ``unpack``, ``merge`` or ``finish`` in an opened run is raised, as ``RunError``, where that
        result is read.
    ``needs_places`` (``bool``, by default ``True``)
        Whether it depends on where in its tensor a value stands. Sparse and nested tensors are
        measured by their stored values, joined, which are not where they stand in the tensor, and
        shards are parts of one. So a statistic is not available of them, and reading it says so,
        unless this is ``False``: ``update`` then gets these values, and ``merge`` the states of
        shards. A sum or a maximum of magnitudes is over the values alone, since those that are not
        stored are zero.
    ``merge_ranks(one, two)`` -> state
        Merges what two ranks have of the same steps, each of its part of the batch, the lower rank
        first; by default ``merge`` does, which gets neighbouring steps in their order.
    ``ranks_by_step`` (``bool``, by default ``False``)
        Whether states of all steps cannot be merged by ``merge_ranks``, but only step by step, as
        those of a cosine between steps.
    ``merge_shards(one, two, dim, num_dims)`` -> state
        Merges what two ranks have of two shards of one tensor of ``num_dims`` dims that was cut
        along ``dim``, counted from 0; both are ``None`` where that is not known. The first shard
        comes first.

    A result may say how it is shown: by ``in_words()`` -> ``str`` in a table, and by
    ``with_notes(notes)`` -> result, of a window that was measured in part, with what is to be
    known of it (``("3 of 10 steps",)``).

    Attributes:
        name: under which the result stands in ``Statistics.extra``.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> class MeanCube:
        ...     name = "mean_cube"
        ...     def init(self):
        ...         return 0.0, 0
        ...     def update(self, state, tensor):
        ...         return state[0] + float(tensor.double().pow(3).sum()), state[1] + tensor.numel()
        ...     def merge(self, one, two):
        ...         return one[0] + two[0], one[1] + two[1]
        ...     def finish(self, state):
        ...         return state[0] / max(state[1], 1)
        ...     def pack(self, state):
        ...         total = torch.tensor(state[0], dtype=torch.float64)
        ...         return {"total": total, "count": torch.tensor(state[1])}
        ...     def unpack(self, parts):
        ...         return parts["total"].item(), parts["count"].item()
        >>> model = torch.nn.ReLU()
        >>> with tt.watch(model, to=tt.Stats(statistics=[MeanCube()])) as w:
        ...     for value in (1.0, 2.0):
        ...         _ = model(torch.tensor([-1.0, value]))
        ...         w.step()
        >>> w.run.stats(".:output").extra["mean_cube"]
        4.0
        >>> path = w.run.save(tempfile.mkdtemp() + "/run.safetensors")
        >>> run = tt.open(path, statistics=[MeanCube()])
        >>> run.stats(".:output", step=[0, 1]).extra["mean_cube"]
        2.25
    """

    @property
    def name(self) -> str:
        """The name under which the result stands in ``Statistics.extra``."""

    def init(self) -> Any:
        """Return the state of nothing."""

    def update(self, state: Any, tensor: Tensor) -> Any:
        """Return the state with one more tensor."""

    def merge(self, one: Any, two: Any) -> Any:
        """Return the state of both parts."""

    def finish(self, state: Any) -> Any:
        """Return the result."""


@runtime_checkable
class OfSlices(Protocol):
    """A statistic whose state is rows of slices, which the kernel can fill as it measures."""

    def cut(self, tensor: Tensor) -> tuple[int, int] | None:
        """Return how many slices a tensor has, and how many elements of each lie together.

        The same for more samples or fewer. ``None``: :meth:`Statistic.update` has to be asked.
        """

    def of_rows(self, rows: NDArray[np.float64]) -> Any:
        """Return the state that has rows, ``float64[slices, 16]``."""


def needs_places(statistic: Statistic) -> bool:
    """Return whether a statistic depends on where in its tensor a value stands."""
    return bool(getattr(statistic, "needs_places", True))


def can_pack(statistic: Statistic) -> bool:
    """Return whether a statistic turns its states into named tensors and back."""
    return all(callable(getattr(statistic, part, None)) for part in ("pack", "unpack"))


def merge_ranks(statistic: Statistic, one: Any, two: Any) -> Any:
    """Merge the states of two ranks of the same steps, each of its part of the batch."""
    merge = getattr(statistic, "merge_ranks", None) or statistic.merge
    return merge(one, two)


def merge_shards(
    statistic: Statistic, one: Any, two: Any, dim: int | None, num_dims: int | None
) -> Any:
    """Merge the states of two shards; give :class:`Missing` where places in a shard mean nothing.

    Args:
        statistic: whose states they are.
        one: of the shard that comes first.
        two: of the next one.
        dim: along which the tensor was cut, from 0; ``None`` where that is not known.
        num_dims: of the tensor; ``None`` where that is not known.
    """
    merge = getattr(statistic, "merge_shards", None)
    if merge is not None:
        return merge(one, two, dim, num_dims)
    return Missing(_NO_SHARDS) if needs_places(statistic) else merge_ranks(statistic, one, two)


def ranks_by_step(statistic: Statistic) -> bool:
    """Return whether states of ranks can be merged step by step only."""
    return bool(getattr(statistic, "ranks_by_step", False))


def check_statistics(statistics: Sequence[Statistic]) -> None:
    """Refuse what are no statistics, and names that stand for two of them.

    Raises:
        InputError: one is no statistic, can be packed and not unpacked, or has another's name.
    """
    for statistic in statistics:
        if not isinstance(statistic, Statistic):
            raise InputError(
                f"{statistic!r} is no statistic: expected name, init, update, merge and finish."
            )
        there = [part for part in ("pack", "unpack") if callable(getattr(statistic, part, None))]
        if len(there) == 1:
            raise InputError(
                f"The statistic {statistic.name!r} has {there[0]} and no "
                f"{'unpack' if there == ['pack'] else 'pack'}: expected both, or neither, in "
                f"{class_of(statistic)}."
            )
    names = [statistic.name for statistic in statistics]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"Two statistics are named {twice!r}, and extra holds one of each name. Give each "
            f"its own: name='...'."
        )


def are_alike(one: Statistic, two: Statistic) -> bool:
    """Return whether the states of two statistics merge with each other, as far as they tell.

    A statistic of an opened run is as the one that it was given (``original``).
    """
    one, two = (getattr(each, "original", each) for each in (one, two))
    if type(one) is not type(two) or one.name != two.name:
        return False
    return one == two or not is_dataclass(one)
