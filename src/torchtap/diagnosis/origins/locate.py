"""``tt.locate``: runs a step again and names the operation that made what is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from torchtap.capture.unobserved import unobserved
from torchtap.core.distributed import is_distributed, num_ranks, own_rank
from torchtap.core.doors import require
from torchtap.core.errors import InputError
from torchtap.core.module_paths import type_names
from torchtap.core.rebuild import replace_arguments
from torchtap.core.source_files import hash_of
from torchtap.diagnosis.origins.nonfinite_rows import bad_rows, num_samples
from torchtap.diagnosis.origins.origin import INPUT, OPTIMIZER, PARAMETER, Origin
from torchtap.diagnosis.origins.put_back import PutBack, WriteWatch
from torchtap.diagnosis.origins.step_trace import Trace
from torchtap.diagnosis.origins.values import badness, tensors_of
from torchtap.diagnosis.origins.verdict_of_ranks import Ranks
from torchtap.hooks.uncompiled import uncompiled


def locate(model: nn.Module, step: Callable[..., Any], *batch: Any) -> Origin | None:
    """Run one training step and find the operation that made the first value that is not finite.

    The step runs eagerly, operation by operation, with its loss, its backward, its clipping and its
    optimizer; then everything is put back: weights, buffers, gradients, the states of optimizers,
    schedulers and of a ``GradScaler``, random generators, modes and hooks. It takes several times
    as long as a plain step, and the memory of what it writes into.

    Args:
        model: whose modules are to be named; wrappers are looked through. Where it is spread over
            ranks (DDP, FSDP, tensor parallelism), all ranks call this, and get one origin.
        step: one whole step. What it returns is taken for the loss, beside whatever it calls
            ``backward()`` on.
        batch: what ``step`` is called with.

    Returns:
        the origin; ``None`` where the loss, the gradients and the parameters are finite.

    Raises:
        InputError: ``step`` is no function, or is finite and called no module of ``model``.
        Exception: what ``step`` raised, if nothing was found that is not finite.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def step(x):
        ...     optimizer.zero_grad()
        ...     loss = model(x).sqrt().mean()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> with torch.no_grad():
        ...     _ = model.weight.fill_(-1), model.bias.zero_()
        >>> origin = tt.locate(model, step, torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
        >>> origin.operation, origin.index, origin.inputs
        ('sqrt', (0, 0), 'float32[2, 1] -2..2 (there -2)')
    """
    require("tt.locate", model)
    if not callable(step):
        raise InputError(
            f"step is {type(step).__name__}; expected a function that runs one training step: its "
            f"forward, loss, backward, clipping and optimizer."
        )
    located = _Located(model, step, batch)
    if num_ranks() > 1:
        return _located_together(model, located)
    origin = located.trace()
    if origin is not None and located.is_scaled:
        origin = located.trace(is_unscaled=True)  # By infinite gradients a scaler finds its scale.
    if origin is None:
        return None
    return replace(complete(origin), rows=located.rows(origin), num_samples=located.num_samples)


def _located_together(model: nn.Module, located: _Located) -> Origin | None:
    """Run the step once on each rank: one that ran it again alone would wait for the others."""
    origin = located.trace(is_unscaled=located.is_scaled)
    own = None if origin is None else complete(origin)
    if not _spans_ranks(model):
        return own
    ranks = Ranks()
    try:
        return ranks.verdict(own)
    finally:
        ranks.close()


def _spans_ranks(model: nn.Module) -> bool:
    """Return whether no rank can run a model alone, so that all of them are here."""
    kinds = {name for module in model.modules() for name in type_names(module)}
    if kinds & {"DistributedDataParallel", "FullyShardedDataParallel"}:
        return True
    return any(map(is_distributed, model.parameters()))


def _is_sound(param: Tensor) -> bool:
    return not badness(param) and (param.grad is None or not badness(param.grad))


def complete(origin: Origin) -> Origin:
    """Add what this process knows: its rank, and a hash of the file of the line."""
    rank = own_rank()[0] if num_ranks() else None
    return replace(origin, rank=rank, file_hash=hash_of(origin.file) if origin.file else "")


class _Located:
    """A step that is run again and again, and leaves everything as it was."""

    def __init__(self, model: nn.Module, step: Callable[..., Any], batch: tuple[Any, ...]) -> None:
        self._model, self._step, self._batch = model, step, batch
        self._before = PutBack(model, batch)

    @property
    def is_scaled(self) -> bool:
        """Return whether a ``GradScaler`` may have taken part."""
        return any(scaler.is_enabled() for scaler in self._before.scalers)

    @property
    def num_samples(self) -> int:
        """Return the number of samples of the batch; 0 without any."""
        return num_samples(tensors_of(self._batch))

    def trace(self, *, is_unscaled: bool = False) -> Origin | None:
        """Run the step operation by operation.

        Args:
            is_unscaled: let scalers multiply by 1.
        """
        memory = self._before.memory
        trace = Trace(self._model, before_write=memory.before_write, made=memory.made)
        batch = tensors_of(self._batch)
        named = [(f"tensor {number} of the batch", one) for number, one in enumerate(batch)]
        trace.begin_with(named, INPUT, ".")
        with self._put_back(), uncompiled(), unobserved(self._model):
            if is_unscaled:
                self._unscale()
            error: Exception | None = None
            returned: Any = None
            try:
                with trace:
                    returned = self._step(*self._batch)
            except Exception as raised:  # noqa: BLE001 - raised below, unless an origin explains it
                error = raised
            origin = trace.root(*self._groups(returned, trace.losses))
            if error is not None and origin is None:
                raise error
            if origin is None and not trace.calls.were_any:
                raise InputError(
                    f"step called no module of {type(self._model).__name__}, so nothing of it was "
                    f"looked at. Give a function that calls this very model, and its backward."
                )
        return origin

    def rows(self, found: Origin) -> tuple[int, ...]:
        """Return the samples of the batch that are not finite alone."""
        if found.phase in (PARAMETER, OPTIMIZER):
            return ()
        # Other trainings of this process may be in ruins.
        self._before.params = list(filter(_is_sound, self._before.params))
        rows = bad_rows(self.num_samples, self._is_clean)
        return rows if rows or found.phase != INPUT else found.index[:1]

    def _is_clean(self, cut: Callable[[Tensor], Tensor]) -> bool:
        def taken(leaf: str, tensor: Tensor, kind: str = "") -> Tensor:
            return tensor if kind else cut(tensor)

        batch, _ = replace_arguments(self._batch, {}, taken, inside=taken)
        alone = unobserved(self._model)
        with self._put_back(), uncompiled(), alone, WriteWatch(self._before.memory):
            groups = self._groups(self._step(*batch), ())
            return not any(badness(one) for group in groups for one in group)

    def _groups(self, returned: Any, losses: Iterable[Tensor]) -> tuple[list[Tensor], ...]:
        """Return the tensors that count: the losses, else the gradients, else the parameters."""
        params = self._before.params
        gradients = [param.grad for param in params if param.grad is not None]
        return [*tensors_of(returned), *losses], tensors_of(gradients), tensors_of(params)

    def _unscale(self) -> None:
        with WriteWatch(self._before.memory):
            for scaler in self._before.scalers:
                if scaler.is_enabled():
                    scaler.load_state_dict({**scaler.state_dict(), "scale": 1.0})

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._before.put_back()
