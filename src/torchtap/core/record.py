"""One value kept, its key, and the protocol of a sink, which takes records."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torchtap.core.errors import OverwrittenError
from torchtap.core.site import Site

if TYPE_CHECKING:
    from torch import Tensor

FORWARD = "forward"
RECOMPUTE = "recompute"
BACKWARD = "backward"
EVAL = "eval"
PHASES = (FORWARD, RECOMPUTE, BACKWARD, EVAL)
UNVERSIONED = -1
"""Version of a value that nothing can overwrite."""
_MOST_NAMED = 6
"""Up to here steps are named one by one in a sentence."""
_MOST_STEPS = 8
"""Up to here all steps of a run are named in an error."""


class Key(NamedTuple):
    """The key of a record: the user's step, the site, and the call within the step.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu) as w:
        ...     _ = relu(torch.ones(2))
        >>> key = next(w.run.records(".")).key
        >>> key.step, str(key.site), key.call
        (0, '.:output', 0)
    """

    step: int
    site: Site
    call: int


class _Row(NamedTuple):
    site: Site
    step: int
    call: int
    phase: str
    backward: int
    labels: tuple[str, ...]
    kept: Any
    version: int


class Record(_Row):
    """One value that flowed through a model.

    A tuple underneath, because thousands are made per second inside hooks.

    Attributes:
        site: where.
        step: the user's counter.
        call: which execution of the module within the step, from 0; for ``param_grad``, which
            accumulation. Calls of phase ``backward`` have numbers of their own.
        phase: ``forward``, ``recompute`` (activation checkpointing ran the forward again),
            ``backward`` (any other call inside a backward, and its gradients), or ``eval`` (an
            evaluation forward of a model that trains).
        backward: which backward of the step brought a gradient, from 0; -1 for forward values.
        labels: what else is to be known of the value, e.g. ``("total",)``.

    Example:
        >>> import torch, torchtap as tt
        >>> relu = torch.nn.ReLU()
        >>> with tt.watch(relu, ".:output,grad_output") as w:
        ...     relu(torch.ones(2, requires_grad=True)).sum().backward()
        >>> [(record.site.port, record.call, record.backward) for record in w.run.records("*:*")]
        [('output', 0, -1), ('grad_output', 0, 0)]
    """

    __slots__ = ()

    @property
    def key(self) -> Key:
        """Step, site and call."""
        return Key(self.step, self.site, self.call)

    @property
    def value(self) -> Tensor:
        """Return the tensor at the moment of the tap, detached.

        Raises:
            OverwrittenError: it was kept without a copy (with ``copy="never"``, or at a site
                where nothing was overwritten before) and was overwritten since.
        """
        if self.version != UNVERSIONED and self.kept._version != self.version:
            raise OverwrittenError(
                f"{self.site} (step {self.step}, call {self.call}) was kept without a copy and has "
                f"been overwritten since. Watch with copy='always' to keep what was there."
            )
        return self.kept  # type: ignore[no-any-return]

    @property
    def overwritten(self) -> bool:
        """Return whether the value was kept without copying and is lost."""
        return bool(self.version != UNVERSIONED and self.kept._version != self.version)

    @property
    def nbytes(self) -> int:
        """Bytes of the value; of a sparse or nested one, of all elements it stands for."""
        return nbytes_of(self.kept)

    def with_value(self, value: Tensor) -> Record:
        """Return the record with another value, which nothing overwrites: for a store of its own.

        Example:
            >>> import torch, torchtap as tt
            >>> halved = []
            >>> def keep_half(record):
            ...     halved.append(record.with_value(record.value.half()))
            >>> with tt.watch(torch.nn.ReLU(), to=keep_half) as w:
            ...     pass
        """
        return new_record(Record, (*self[:-2], value, UNVERSIONED))

    def __repr__(self) -> str:
        kept = self.kept
        kind = str(kept.dtype).removeprefix("torch.")
        # Where each part has a shape of its own, and PyTorch raises an error if asked for one.
        is_shapeless = kept.is_nested and str(kept.layout) == "torch.strided"
        shape = f"[{kept.size(0)} parts]" if is_shapeless else list(kept.shape)
        extra = "" if self.phase == FORWARD else f", {self.phase}"
        labels = f", {', '.join(self.labels)}" if self.labels else ""
        return (
            f"<Record {self.site} step {self.step} call {self.call}{extra}{labels} {kind}{shape}>"
        )

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    __hash__ = object.__hash__


def nbytes_of(kept: Tensor) -> int:
    """Bytes of a tensor of any kind; of a sparse or nested one, of all elements."""
    try:
        return int(kept.nbytes)
    except (RuntimeError, NotImplementedError):  # It has no memory of its own.
        return int(kept.numel() * kept.element_size())


new_record = tuple.__new__
"""``new_record(Record, row)`` makes a record for a third of the price of calling the class."""


def steps_there(steps: Sequence[int], missing: int | None = None) -> str:
    """Describe the steps of a run when one is asked for that it does not have.

    Args:
        steps: those there are, ascending.
        missing: the one that was asked for.

    Example:
        >>> steps_there([0, 1, 2])
        'Its steps are [0, 1, 2].'
        >>> steps_there(range(0, 4000, 2), 701)
        'It has 2,000 steps from 0 to 3998, near 701 are 700 and 702.'
    """
    if len(steps) <= _MOST_STEPS:
        return f"Its steps are {list(steps)}." if steps else "It has no steps."
    said = f"It has {len(steps):,} steps from {steps[0]} to {steps[-1]}"
    if missing is None or missing < steps[0] or missing > steps[-1]:
        return f"{said}."
    place = bisect(steps, missing)
    return f"{said}, near {missing} are {steps[place - 1]} and {steps[place]}."


def said_steps(steps: Sequence[int]) -> str:
    """Return ``step 3``, ``steps 3, 5, 6``, or ``steps 3 to 90 (40 of them)``."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    if len(steps) <= _MOST_NAMED:
        return f"steps {', '.join(map(str, steps))}"
    return f"steps {steps[0]} to {steps[-1]} ({len(steps)} of them)"


@runtime_checkable
class Sink(Protocol):
    """Takes records. A plain callable ``f(record)`` is made one by ``tt.watch``.

    ``take`` runs inside PyTorch's hooks, with grad mode, autocast and inference mode off; it must
    not draw random numbers. An exception of it never reaches the training: it is raised by
    ``step()`` and ``close()``, and the sink gets nothing more.

    A sink may have more, and ``tt.watch`` uses each part that it has:

    ``keeps`` (``bool``, by default ``True``)
        Whether the sink refers to ``record.value`` after ``take`` has returned. Where every sink
        of a watch says ``False``, nothing is copied.
    ``takes`` (``bool``, by default ``True``)
        Whether it is given records at all. A sink that says ``False`` works at the end of steps
        alone, with what the others measured, and the others are called as if it were not there.
    ``contents()`` -> ``Sequence[Record]``
        The records that it holds now, in the order of their arrival: ``w.run`` reads them. A sink
        that stores values in another form makes them with :meth:`Record.with_value`.
    ``measured()`` -> series
        What it measured, as ``tt.Stats`` gives it: ``w.run`` reads that too.
    ``ended()`` -> series, or ``None``
        The same for steps that have ended, from any thread: it asks no device, and where
        another thread is measuring for long it gives ``None``. A sink that writes asks for it.
    ``absent`` (iterable of :class:`torchtap.Absence`)
        What it was given and does not hold, with reasons: ``w.absent`` lists it.
    ``meter(site)`` -> ``Callable[[Tensor, int], bool]``
        A function of the tensor and the step that may take values of ``site`` in place of
        ``take``; it returns ``False`` for those of which it wants a record. Asked for where the
        sink is the only one.
    ``meters(sites)`` -> ``Sequence`` of those
        Makes those of several sites at once, no two of which are equal, where ``meter`` is
        ``unguarded``: a watch then opens faster.
    ``begin(about)``
        Told once, when the watch begins, what is known of it (:class:`torchtap.runs.about.About`):
        the model, and functions that say later what was seen and what is absent.
    ``sync()``
        Write what was taken so far, and return when it can be read: ``w.sync()`` calls it, before
        a training saves a checkpoint.
    ``planned_size()`` -> :class:`~torchtap.core.planned_size.PlannedSize`
        How large what it writes will be, as far as it knows: ``w.plan`` says it.
    ``reads_backward`` (``bool``, by default ``True``)
        Whether it reads ``record.backward``. Where no sink of a watch does, that number may be of a
        checkpoint's own backward, and a hook on the model's output is saved.
    ``skips_steps`` (``bool``, by default ``False``)
        Whether ``close_step`` may be left out for a step of which nothing was recorded, where
        another such step follows.
    ``unguarded`` (collection of ``"take"`` and ``"meter"``)
        Those of its functions that never raise and run alike in any grad mode and under autocast
        and inference mode: hooks call them directly, without a lock.

    Example:
        >>> import torch, torchtap as tt
        >>> class Halves:
        ...     keeps = False
        ...     def __init__(self):
        ...         self.records = []
        ...     def take(self, record):
        ...         self.records.append(record.with_value(record.value.half()))
        ...     def close_step(self, step):
        ...         pass
        ...     def close(self):
        ...         pass
        ...     def contents(self):
        ...         return self.records
        >>> model = torch.nn.Sequential(torch.nn.ReLU())
        >>> with tt.watch(model, "0", to=Halves()) as w:
        ...     _ = model(torch.tensor([-1.0, 2.0]))
        >>> w.run["0:output"]
        tensor([0., 2.], dtype=torch.float16)
    """

    def take(self, record: Record) -> None:
        """Take one record."""

    def close_step(self, step: int) -> None:
        """No more forward values of ``step`` will come."""

    def close(self) -> None:
        """Nothing more will come."""
