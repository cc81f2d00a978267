"""``tt.offload`` and what it returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from torch import Tensor, nn

from torchtap.core.closable import Closable, abandon
from torchtap.core.doors import require
from torchtap.core.errors import InputError, OffloadError
from torchtap.core.module_paths import Where, modules_of, several
from torchtap.core.plan import make_plan
from torchtap.core.site import Pattern
from torchtap.core.text import plural
from torchtap.hooks.module_hook import keep_dynamo_out
from torchtap.hooks.saved_hooks_scope import SavedHooksScope
from torchtap.hooks.saved_pairs import is_for_checkpoint, make_pair
from torchtap.saved.buffer_storages import Buffers
from torchtap.saved.gradient_check import Gradients, check_proof, compare_gradients
from torchtap.saved.offload_engine import OffloadEngine
from torchtap.saved.offload_notes import never_called, notes_of, why_nothing
from torchtap.saved.offload_report import OffloadReport
from torchtap.saved.parse_tiers import To, is_number, make_tiers
from torchtap.saved.suspend import open_scopes

OnFull = Literal["wait", "keep", "raise"]
Missing = Literal["error", "ignore"]
_CHECKPOINT = "checkpoint_inputs"


class Offload(Closable):
    """The result of ``tt.offload``: a context manager, and a handle if it is attached to a model.

    Safe to close twice. Packed tensors can still be unpacked after closing: backward may come
    later.

    Example:
        >>> import torch, torchtap as tt
        >>> model = torch.nn.Linear(64, 64)
        >>> off = tt.offload("disk", model=model, min_bytes=1024)
        >>> model(torch.ones(64, 64)).sum().backward()
        >>> off.close()
        >>> off.report().packed_nbytes
        16384
    """

    def __init__(
        self,
        engine: OffloadEngine,
        scope: SavedHooksScope,
        model: nn.Module | None,
        *,
        paths: Sequence[str],
        keep_last: int,
        missing: Missing,
    ) -> None:
        self._engine = engine
        self._scope = scope
        self._model = model
        self._kind = type(model).__name__
        self._capacities = [tier.capacity for tier in engine.chain.tiers]
        self._paths = paths
        self._keep_last = keep_last
        self._missing = missing
        self._is_attached = model is not None
        self._num_blocks = 0
        self._was_entered = False
        if self._is_attached:
            open_scopes.append(scope)

    def report(self) -> OffloadReport:
        """Report the gain and cost so far; print it, or take ``.line()`` while training."""
        report = self._engine.report()
        budgets = [capacity for capacity in self._capacities if capacity is not None]
        if len(budgets) < len(self._capacities) or (
            self._is_open and (self._is_attached or self._num_blocks)
        ):
            budgets = []
        is_over = all(one is None for one in self._capacities) and self._engine.holds_nothing()
        notes_found = notes_of(
            report, self._scope, keep_last=self._keep_last, budgets=budgets, is_over=is_over
        )
        notes = [*report.notes, *notes_found]
        if self._is_attached and not self._is_open and not self._scope.entered:
            notes.append(never_called(len(self._paths)))
        if self._is_attached or self._was_entered:
            places = {path or ".": place for place, path in enumerate(self._paths)}
            rows = sorted(report.rows, key=lambda row: places.get(row.path, -1))
            return replace(report, rows=tuple(rows), notes=tuple(notes))
        return replace(report, notes=(*notes, _NEVER_ENTERED))

    def verify(self, loss: Callable[[], Tensor], model: nn.Module | None = None) -> Gradients:
        """Run a step without and with offloading, and compare the gradients.

        Args:
            loss: runs the forward and returns the loss; it must do the same each time (random
                numbers and buffers are put back in between).
            model: whose parameters to compare, if the offloading is not attached to one.

        Returns:
            path -> relative error of its gradient: norm of the difference to norm, in float64.

        Raises:
            InputError: no model is known, none of its parameters is trainable, or the loss is no
                single number that depends on them.
            OffloadError: it is closed.
        """
        self._refuse_closed()
        chosen = self._model if model is None else model
        if chosen is None:
            raise InputError("Offload.verify needs a model: pass the one whose loss it is.")
        around = nullcontext() if self._is_attached else self._block()
        return compare_gradients(loss, chosen, self._engine, around)

    @contextmanager
    def _block(self) -> Iterator[None]:
        self._scope.begin()
        try:
            yield
        finally:
            self._scope.end()
        self._engine.end_operation()

    def flush(self) -> None:
        """Wait until all that is on its way has arrived."""
        self._engine.flush()

    def close(self) -> None:
        """Take the hooks off, and wait for what is on its way.

        Raises:
            OffloadError: something was saved, and nothing of it could be offloaded as asked: it is
                of another kind, or hooks are forbidden where it was saved. Not with
                ``missing="ignore"``, nor where it was small or in host memory already.
        """
        super().close()

    def _closed(self) -> OffloadError:
        return OffloadError("This offload is closed; call tt.offload again.")

    def _finish(self, *, raising: bool) -> None:
        self._model = None
        if self._is_attached:
            open_scopes.remove(self._scope)
        self._scope.detach()
        self._engine.close()
        if raising and self._missing == "error":
            self._raise_missing()

    def _raise_missing(self) -> None:
        reason = why_nothing(self._engine.report(), self._scope)
        if reason is not None:
            raise OffloadError(
                f"Nothing was offloaded: {reason}. Gradients are as without it. If that is meant, "
                f"pass missing='ignore'."
            )

    def __enter__(self) -> Offload:
        super().__enter__()
        if not self._is_attached:
            self._scope.begin()
            open_scopes.append(self._scope)
        self._num_blocks += 1
        self._was_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._num_blocks -= 1
        if self._is_attached:
            super().__exit__(kind, error, traceback)
            return
        self._scope.end()
        open_scopes.remove(self._scope)
        self._engine.end_operation()

    def __repr__(self) -> str:
        where = "a block"
        if self._is_attached:
            where = f"{plural(len(self._paths), 'module')} of {self._kind}"
        state = "" if self._is_open else ", closed"
        return f"<tt.offload of {where}{state}: {self.report().line()}>"


_NEVER_ENTERED = (
    "it was never entered: without model= it works in its block only; write `with off:` around the "
    "forward"
)


def offload(
    to: To = "cpu",
    *,
    model: nn.Module | None = None,
    where: Where = "*",
    min_bytes: int = 65536,
    max_bytes: int | None = None,
    keep_last: int | None = None,
    dir: str | os.PathLike[str] | None = None,
    on_full: OnFull = "wait",
    only: Literal["checkpoint_inputs"] | None = None,
    verify: Callable[[], Tensor] | None = None,
    allow_tmpfs: bool = False,
    missing: Missing = "error",
) -> Offload:
    """Move what autograd saves for backward, and bring it back when backward asks.

    Gradients are equal to the bit for ``cpu`` and ``disk``. Parameters, their views and casts,
    buffers of ``model``, small tensors, and kinds that cannot be moved stay where they are, watched
    for being overwritten as autograd does.

    Args:
        to: ``cpu`` (from a GPU to pinned host memory, beside the computation), ``disk`` (one
            anonymous file, gone when the process is), one of ``tt.codecs`` (a smaller form; not
            exact), or a list of them with budgets: ``[("cpu", 8 << 30), "disk"]`` fills the first
            and goes on with the next.
        model: attach to the modules of a model that ``where`` selects, in all threads; without
            it, ``with tt.offload(...)`` works on all that runs in the block, in this thread.
        where: patterns as for ``tt.watch``, without ports.
        min_bytes: smaller tensors stay.
        max_bytes: most bytes of saved tensors that are in memory at one time: kept, leaving,
            fetched ahead (what the running operation saves may come on top). The latest are kept,
            as backward needs them first. Without it, all leave when their operation has ended.
        keep_last: bytes of the latest tensors to keep; by default three quarters of
            ``max_bytes``, so that a quarter may be on its way.
        dir: folder of the file; by default the system's folder for temporary files.
        on_full: when more is on its way than fits: ``wait``, ``keep`` it in memory, or ``raise``.
        only: ``checkpoint_inputs``: nothing but what activation checkpoints keep.
        verify: a function that runs the forward and returns the loss: run it plain and offloaded
            now, and raise if gradients differ (``cpu``, ``disk``) or are no longer finite (codecs),
            or if nothing was offloaded. Needs ``model``.
        allow_tmpfs: also write to a folder that lives in memory.
        missing: what to do when ``to`` can move nothing on this machine, and when closing, if
            nothing at all was offloaded, other than for its size: ``error``, or ``ignore``.

    Returns:
        a context manager; attached to a model also a handle. ``.report()`` says what it gained.

    Raises:
        InputError: an argument does not fit, the folder cannot be used, or nothing could ever be
            moved: a budget that is too small for any tensor.
        OffloadError: ``verify`` found a difference, or nothing that was moved.
        SiteError: a pattern fits no module.

    Example:
        >>> import torch, torchtap as tt
        >>> x = torch.randn(256, 256, requires_grad=True)
        >>> with tt.offload("disk") as off:
        ...     loss = x.sin().exp().sum()
        >>> loss.backward()
        >>> torch.equal(x.grad, x.detach().sin().exp() * x.detach().cos())
        True
        >>> off.flush()  # Wait for what is still on its way, to count it.
        >>> off.report().moved_nbytes
        {'disk': 524288}
    """
    require("tt.offload", *(() if model is None else (model,)))
    _check_bytes(min_bytes, max_bytes, keep_last)
    _check_arguments(model=model, where=where, only=only, missing=missing, on_full=on_full)
    tiers = make_tiers(to, dir, allow_tmpfs=allow_tmpfs, min_bytes=min_bytes)
    scope = SavedHooksScope()
    buffers = None if model is None else _buffers_of(model, min_bytes)
    kept = (max_bytes or 0) * 3 // 4 if keep_last is None else keep_last
    engine = OffloadEngine(
        tiers,
        min_bytes=min_bytes,
        max_bytes=max_bytes if max_bytes is not None or keep_last is None else 2 * keep_last,
        keep_last=kept,
        on_full=on_full,
        why_not=_why_not(buffers, only),
        thread=scope.thread,
    )
    scope.pair = make_pair(engine.pack, engine.unpack)
    scope.on_end = engine.end_operation
    paths = [] if model is None else _attach(scope, model, where, buffers)
    done = Offload(engine, scope, model, paths=paths, keep_last=kept, missing=missing)
    if verify is not None:
        try:
            check_proof(done.verify(verify), tiers, done.report)
        except BaseException:  # The proof runs the user's model, which may raise anything.
            abandon(done)
            raise
    return done


keep_dynamo_out(
    offload,
    reason="torchtap: tt.offload is called inside of what is compiled. Call it outside, around the "
    "call, or compile with fullgraph=False",
)


def _check_arguments(*, model: Any, where: Where, only: Any, missing: Any, on_full: Any) -> None:
    """Refuse the arguments of ``tt.offload`` that are none of what is expected.

    Raises:
        InputError: of the first of them.
    """
    if on_full not in ("wait", "keep", "raise"):
        raise InputError(f"on_full is {on_full!r}; expected 'wait', 'keep' or 'raise'.")
    if only not in (None, _CHECKPOINT):
        raise InputError(f"only is {only!r}; expected {_CHECKPOINT!r}.")
    if missing not in ("error", "ignore"):
        raise InputError(f"missing is {missing!r}; expected 'error' or 'ignore'.")
    if model is None and where != "*":
        raise InputError(f"where is {where!r}, which chooses modules of a model: pass model=.")


def _check_bytes(min_bytes: Any, max_bytes: Any, keep_last: Any) -> None:
    """Refuse numbers of bytes that are none, or that do not fit to each other.

    Raises:
        InputError: of the first of them.
    """
    if not is_number(min_bytes):
        raise InputError(f"min_bytes is {min_bytes!r}; expected a number of bytes from 0.")
    for name, value in (("max_bytes", max_bytes), ("keep_last", keep_last)):
        if value is not None and not is_number(value):
            raise InputError(f"{name} is {value!r}; expected a number of bytes from 0.")
    if max_bytes is not None and keep_last is not None and keep_last > max_bytes:
        raise InputError(
            f"keep_last is {keep_last:,} and max_bytes {max_bytes:,}: more is to be kept than may "
            f"be in memory. Give keep_last at most max_bytes; a quarter less leaves room for what "
            f"is on its way."
        )


def _check_no_ports(where: Where) -> None:
    """Refuse patterns with a port: offloading takes whole modules."""
    for item in several(where):
        pattern = Pattern.parse(item) if isinstance(item, str) else item
        if isinstance(pattern, Pattern) and (pattern.ports is not None or pattern.leaf):
            bare = replace(pattern, ports=None, leaf="")
            raise InputError(
                f"where holds {str(pattern)!r}, with a port; offloading takes whole modules. Write "
                f"{str(bare)!r}."
            )


def _attach(
    scope: SavedHooksScope, model: nn.Module, where: Where, buffers: Buffers | None
) -> list[str]:
    """Hook the modules; returns their paths."""
    plan = make_plan(model, where)
    _check_no_ports(where)
    modules, _ = modules_of(model)
    paths = [planned.path for planned in plan.taps]
    if "" in paths:
        modules = {**modules, "": model}  # The wrapper itself: a compiled graph has no modules.
    if buffers is not None:
        inside = {path: buffers.inside(path) for path in paths}
        scope.on_begin = lambda path: buffers.look(inside[path])
    scope.attach(plan, modules, around=True)
    return paths


def _buffers_of(model: nn.Module, min_bytes: int) -> Buffers:
    make_plan(model, "*")  # Says it if it is no module.
    return Buffers(modules_of(model)[0].items(), min_bytes)


def _why_not(buffers: Buffers | None, only: str | None) -> Callable[[Tensor], str | None] | None:
    """Return a function that says why a tensor that could be moved is to stay."""
    if buffers is None and only is None:
        return None

    def why_not(tensor: Tensor) -> str | None:
        if buffers is not None and tensor.untyped_storage()._cdata in buffers:
            return "buffer"
        if only is not None and not is_for_checkpoint():
            return "not the input of a checkpoint"
        return None

    return why_not
