"""``tt.guard``: stays on during a training, and says where the first NaN or Inf was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from torchtap.core.closable import Closable
from torchtap.core.doors import require
from torchtap.core.errors import CaptureError, InputError
from torchtap.core.module_paths import Where
from torchtap.core.record import Sink
from torchtap.core.text import plural
from torchtap.diagnosis.origins.guard_engine import GuardEngine
from torchtap.diagnosis.origins.nonfinite_steps import Hits, On
from torchtap.diagnosis.origins.origin import Origin
from torchtap.diagnosis.origins.recorder import Recorder
from torchtap.diagnosis.origins.verdict_of_ranks import Ranks
from torchtap.runs.step_notes import checked_ids


class Guard(Closable):
    """The result of ``tt.guard``: a context manager and a handle, safe to close twice.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), 0.1)
        >>> with tt.guard(model) as guard:
        ...     for step in range(3):
        ...         optimizer.zero_grad()
        ...         model(torch.ones(4, 2)).sum().backward()
        ...         optimizer.step()
        >>> print(guard)
        Guard of Linear (closed, step 2): all finite
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        keep: int,
        on: On,
        recorder: Recorder | None,
    ) -> None:
        ranks = Ranks()
        self._name = type(model).__name__
        self._recorder = recorder
        self._hits = Hits(model, on, recorder, ranks)
        self._engine = GuardEngine(
            model, optimizer, keep, hits=self._hits, recorder=recorder, ranks=ranks
        )
        self._engine.attach()
        if recorder is not None:
            recorder.listen(self._record)

    @property
    def origin(self) -> Origin | None:
        """Return the origin of the first NaN or Inf; ``None`` while all is finite."""
        return next(iter(self._hits.origins.values()), None)

    @property
    def origins(self) -> Mapping[int, Origin]:
        """Return step -> origin, of the steps that were looked into."""
        return dict(self._hits.origins)

    @property
    def skipped(self) -> list[int]:
        """Return the numbers of the steps that were left out; ``len`` counts them."""
        return list(self._hits.skipped)

    @property
    def recorded(self) -> Path | None:
        """Return the file of the flight recorder; ``None`` while it has not written."""
        return None if self._recorder is None else self._recorder.written

    @property
    def step(self) -> int:
        """Return the step that runs, from 0: optimizer steps of the model, with those left out.

        Where several optimizers train the model (a GAN), one step of each is one step.
        """
        return self._engine.steps.running.number

    def log(self, *, ids: Iterable[int | str] | Tensor | None = None, **numbers: Any) -> None:
        """Tell the guard of numbers of the running step, such as its loss, and of its samples.

        A loss that is not finite is looked into though the gradients are finite: any number with
        ``loss`` in its name, and on the CPU the number that a backward begins from. Where the model
        is watched too, ``w.log(loss=loss)`` does the same. Where a ``GradScaler`` leaves the step
        out, NaN counts, and an Inf that its scale cannot have made.

        A step begins with the first forward of the model after an optimizer's step, so ids are told
        between the forward and ``optimizer.step()``, and a loss there or after it.

        Args:
            ids: of the samples of the batch, in order: an origin names those that do it.
            numbers: a name and a number (or a tensor of one element) each.

        Example:
            >>> import torch, torchtap as tt
            >>> model = torch.nn.Linear(2, 2)
            >>> with tt.guard(model) as guard:
            ...     guard.log(loss=model(torch.ones(1, 2)).sum(), ids=["a"])
            >>> guard.origin is None
            True
        """
        self._refuse_closed()
        self._engine.steps.running.log(numbers, checked_ids(ids))

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        found = "all finite"
        if self.origin is not None:
            found = f"{plural(len(self.origins), 'step')} not finite, {len(self.skipped)} left out"
        return f"Guard of {self._name} ({state}, step {self.step}): {found}"

    def _record(self, why: str) -> None:
        self._hits.record(self._engine.steps.running, why)

    # ------------------------------------------------------------------ off

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and self._is_open:
            self._record(f"{kind.__name__}: {error}")
        super().__exit__(kind, error, traceback)

    def _closed(self) -> CaptureError:
        return CaptureError("This guard is closed; call tt.guard again to go on.")

    def _finish(self, *, raising: bool) -> None:
        try:
            if raising:
                self._engine.look_at_losses()
        finally:
            self._engine.detach()
            if self._recorder is not None:
                self._recorder.close()


def guard(
    model: nn.Module,
    *,
    optimizer: Optimizer | None = None,
    keep: int = 2,
    on: On = "raise",
    record: str | Path | None = None,
    where: Where | None = None,
    ring: Sink | None = None,
) -> Guard:
    """Stay on during a training, and say where the first NaN or Inf was made.

    Before each step of an optimizer the gradients are read once, and the loss if it is logged. Of
    the running step nothing is kept but references: what the model was called with, random states,
    modes, and the gradients that arrived at its outputs. If something is not finite, the calls are
    replayed eagerly and operation by operation with the weights, which are still those of that
    step, and the operation is found that made it. Infinite gradients by which a ``GradScaler``
    looks for its scale are normal.

    Faults outside of the model (the loss, clipping, the optimizer) are noticed, and not named by
    operation: ``tt.locate`` does, with the step as a function.

    Args:
        model: any module, also compiled, or wrapped for data parallelism: then all ranks guard.
        optimizer: whose steps count; by default any that has a parameter of the model.
        keep: how many steps are remembered, the running one among them: what was logged, and
            whether they were finite. Calls are kept of the running step alone.
        on: ``"raise"`` a ``NonFiniteError`` before the optimizer's step; ``"warn"`` once and go on;
            ``"skip"``: leave the optimizer's step out, on all ranks; or call a function with the
            origin and go on.
        record: file of a flight recorder, which keeps the last steps in memory and writes them as
            a run when something is not finite, when an exception leaves the ``with`` block, or at
            SIGTERM. Several ranks write a file each, ``crash.rank0.safetensors``.
        where: what the recorder keeps, patterns as of ``tt.watch``; by default the batch, and all
            outputs with their gradients.
        ring: the sink that holds the last steps; by default ``tt.Memory(max_steps=4)``. For
            statistics alone, ``tt.Stats(keep=8)``.

    Returns:
        a handle, also a context manager. ``guard.origin`` is the first origin.

    Raises:
        InputError: an argument is none of these, or is for the recorder, and there is none.
        NonFiniteError: from ``optimizer.step()``, with ``on="raise"``.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tt.guard(model, on="warn") as guard:
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> guard.origin is None
        True
    """
    require("tt.guard", model)
    if not (isinstance(keep, int) and keep > 0):
        raise InputError(f"tt.guard got keep={keep!r}; expected a whole number above 0.")
    if not (callable(on) or on in ("raise", "warn", "skip")):
        raise InputError(
            f"tt.guard got on={on!r}; expected 'raise', 'warn', 'skip' or a function of the origin."
        )
    unused = [name for name, one in (("where", where), ("ring", ring)) if one is not None]
    if unused and record is None:
        raise InputError(
            f"tt.guard got {' and '.join(unused)}, which the flight recorder takes, and no "
            f"record=FILE, which turns it on."
        )
    kind: type = type(optimizer)
    if optimizer is not None and not issubclass(kind, Optimizer):
        raise InputError(
            f"tt.guard got a {kind.__name__} as optimizer; expected a torch.optim.Optimizer."
        )
    recorder = None if record is None else Recorder(model, record, where, ring)
    return Guard(model, optimizer, keep, on, recorder)
