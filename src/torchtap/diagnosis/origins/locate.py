"""``tt.locate``: runs a step again and names the operation that made what is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from torchtap.core.distributed import num_ranks, own_rank
from torchtap.core.doors import require
from torchtap.core.source_files import hash_of
from torchtap.diagnosis.origins.origin import INPUT, Origin
from torchtap.diagnosis.origins.put_back import PutBack
from torchtap.diagnosis.origins.trace import Trace
from torchtap.diagnosis.origins.values import tensors_of
from torchtap.hooks.uncompiled import uncompiled


def locate(model: nn.Module, step: Callable[..., Any], *batch: Any) -> Origin | None:
    """Run one training step and find the operation that made the first value that is not finite.

    The step runs eagerly, operation by operation, with its loss, its backward, its clipping and its
    optimizer; then everything is put back: weights, buffers, gradients, the states of optimizers,
    schedulers and of a ``GradScaler``, random generators, modes and hooks. It takes several times
    as long as a plain step, and the memory of what it writes into.

    Args:
        model: whose modules are to be named; wrappers are looked through.
        step: one whole step. What it returns is taken for the loss, beside whatever it calls
            ``backward()`` on.
        batch: what ``step`` is called with.

    Returns:
        the origin; ``None`` where the loss, the gradients and the parameters are finite.

    Raises:
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
    before = PutBack(model, batch)
    found = _origin_of_step(model, step, batch, before)
    return None if found is None else complete(found)


def complete(origin: Origin) -> Origin:
    """Add what this process knows: its rank, and a hash of the file of the line."""
    rank = own_rank()[0] if num_ranks() else None
    return replace(origin, rank=rank, file_hash=hash_of(origin.file) if origin.file else "")


def _origin_of_step(
    model: nn.Module, step: Callable[..., Any], batch: tuple[Any, ...], before: PutBack
) -> Origin | None:
    trace = Trace(model, before_write=before.memory.before_write, made=before.memory.made)
    named = [(f"tensor {number} of the batch", one) for number, one in enumerate(tensors_of(batch))]
    trace.begin_with(named, INPUT, ".")
    with _put_back_after(before), uncompiled():
        error: Exception | None = None
        returned: Any = None
        try:
            with trace:
                returned = step(*batch)
        except Exception as raised:  # noqa: BLE001 - raised again, unless it is what was looked for
            error = raised
        found = _root(trace, returned, before.params)
        if error is not None and found is None:
            raise error
    return found


def _root(trace: Trace, returned: Any, params: list[Tensor]) -> Origin | None:
    gradients = [one.grad for one in params if one.grad is not None]
    losses = [*tensors_of(returned), *trace.losses]
    return trace.root(losses, tensors_of(gradients), tensors_of(params))


@contextmanager
def _put_back_after(before: PutBack) -> Iterator[None]:
    try:
        yield
    finally:
        before.put_back()
