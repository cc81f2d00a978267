"""The front door of offloading."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchtap.errors import InputError, OffloadError
from torchtap.moving.attach import Attachment
from torchtap.moving.codecs import Codec
from torchtap.moving.session import Session
from torchtap.moving.slab import folder_for
from torchtap.moving.streams import CudaStreams, Streams
from torchtap.moving.tally import OffloadReport
from torchtap.moving.tiers import CodecTier, DiskTier, HostTier, Tier
from torchtap.packing import Pair, push, remove, top
from torchtap.plan import Where, make_plan, modules_of
from torchtap.untouched import untouched

OneTo = Literal["cpu", "disk"] | str | Codec
To = OneTo | Sequence[OneTo | tuple[OneTo, int | None]]
OnFull = Literal["wait", "keep", "raise"]

_CHECKPOINT = "checkpoint_inputs"
_open_attachments: list[Attachment] = []
_CHECKPOINT_FILE = torch.utils.checkpoint.__file__


class Offload:
    """What ``tt.offload`` returns: a context manager, and a handle if it is attached to a model.

    Safe to close twice. What is packed can still be unpacked after closing: backward may come
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
        self, session: Session, attachment: Attachment, model: nn.Module | None, *, attached: bool
    ) -> None:
        self._session = session
        self._attachment = attachment
        self._model = model
        self._is_attached = attached
        self._num_blocks = 0
        self._is_open = True
        if attached:
            _open_attachments.append(attachment)

    def report(self) -> OffloadReport:
        """What it gained and what it cost so far; print it, or take ``.line()`` while training."""
        report = self._session.report()
        if self._attachment.inside_checkpoint:
            names = [path or "." for path in self._attachment.inside_checkpoint]
            note = (
                f"{', '.join(names[:3])} ran inside a non-reentrant checkpoint, which keeps "
                f"nothing but its inputs; offload around it, not in it"
            )
            self._session.notes[note] = None
            report = self._session.report()
        return report

    def verify(self, loss: Callable[[], Tensor], model: nn.Module | None = None) -> Gradients:
        """Run a step without and with offloading, and compare the gradients.

        Args:
            loss: runs the forward and returns the loss; it must do the same each time (random
                numbers and buffers are put back in between).
            model: whose parameters to compare, if the offloading is not attached to one.

        Returns:
            path -> relative error of its gradient: norm of the difference to norm, in float64.

        Raises:
            InputError: no model is known.
            OffloadError: it is closed.
        """
        if not self._is_open:
            raise OffloadError("This offload is closed; call tt.offload again.")
        chosen = self._model if model is None else model
        if chosen is None:
            raise InputError("Offload.verify needs a model: pass the one whose loss it is.")
        names = [name for name, param in chosen.named_parameters() if param.requires_grad]
        params = [param for param in chosen.parameters() if param.requires_grad]
        modules, _ = modules_of(chosen)

        def gradients() -> tuple[Tensor | None, ...]:
            with untouched(modules):
                return torch.autograd.grad(loss(), params, allow_unused=True)

        with suspend_offload():
            plain = gradients()
        with ExitStack() as stack:
            if not self._is_attached:
                stack.enter_context(self._block())
            moved = gradients()
        pairs = zip(names, plain, moved, strict=True)
        return Gradients({name: _relative(a, b) for name, a, b in pairs})

    @contextmanager
    def _block(self) -> Iterator[None]:
        self._attachment.begin()
        try:
            yield
        finally:
            self._attachment.end()

    def flush(self) -> None:
        """Wait until all that is on its way has arrived."""
        self._session.flush()

    def close(self) -> None:
        """Take the hooks off, and wait for what is on its way."""
        if not self._is_open:
            return
        self._is_open = False
        if self._is_attached:
            _open_attachments.remove(self._attachment)
        self._attachment.detach()
        self._session.close()

    def __enter__(self) -> Offload:
        if not self._is_open:
            raise OffloadError("This offload is closed; call tt.offload again.")
        if not self._is_attached:
            self._attachment.begin()
            _open_attachments.append(self._attachment)
        self._num_blocks += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._num_blocks -= 1
        if self._is_attached:
            self.close()
            return
        self._attachment.end()
        _open_attachments.remove(self._attachment)

    def __repr__(self) -> str:
        return repr(self.report())


class Gradients(dict[str, float]):
    """Path of a parameter -> relative error of its gradient. Printing it shows the worst."""

    @property
    def worst(self) -> float:
        """The largest error; 0 where all are equal to the bit."""
        return max(self.values(), default=0.0)

    def __repr__(self) -> str:
        from torchtap.view.offload import show_gradients

        return show_gradients(self)


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
    streams: Streams | None = None,
) -> Offload:
    """Move what autograd saves for backward, and bring it back when backward asks.

    Gradients are equal to the bit for ``cpu`` and ``disk``. Parameters, their views and casts,
    small tensors, and kinds that cannot be moved stay where they are, watched for being
    overwritten as autograd does.

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
            fetched ahead (one tensor may come on top). The latest are kept, as backward needs
            them first. Without it, all are sent away at once.
        keep_last: bytes of the latest tensors to keep; by default three quarters of
            ``max_bytes``, so that a quarter may be on its way.
        dir: folder of the file; by default the system's folder for temporary files.
        on_full: when more is on its way than fits: ``wait``, ``keep`` it in memory, or ``raise``.
        only: ``checkpoint_inputs``: nothing but what activation checkpoints keep.
        verify: a function that runs the forward and returns the loss: run it plain and offloaded
            now, and raise if gradients differ (``cpu``, ``disk``) or are not finite (codecs). Needs
            ``model``.
        allow_tmpfs: also write to a folder that lives in memory.
        streams: how copies to host memory run; for tests without a GPU,
            ``torchtap.moving.streams.FakeStreams()``.

    Returns:
        a context manager; attached to a model also a handle. ``.report()`` says what it gained.

    Raises:
        InputError: an argument does not fit, or the folder cannot be used.
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
    _check(min_bytes=min_bytes, max_bytes=max_bytes, keep_last=keep_last, on_full=on_full)
    if only not in (None, _CHECKPOINT):
        raise InputError(f"only is {only!r}; expected {_CHECKPOINT!r}.")
    tiers = _tiers(to, dir, allow_tmpfs=allow_tmpfs, streams=streams)
    if model is None and where != "*":
        raise InputError(f"where is {where!r}, which chooses modules of a model: pass model=.")
    attachment = Attachment()
    kept = (max_bytes or 0) * 3 // 4 if keep_last is None else keep_last
    session = Session(
        tiers,
        min_bytes=min_bytes,
        max_bytes=max_bytes if max_bytes is not None or keep_last is None else 2 * keep_last,
        keep_last=kept,
        on_full=on_full,
        wants=None if only is None else _checkpoint_inputs,
        places=attachment.places,
    )
    attachment.pair = (session.pack, session.unpack)
    if model is not None:
        _attach(attachment, model, where)
    done = Offload(session, attachment, model, attached=model is not None)
    if verify is not None:
        try:
            _prove(done, verify, tiers)
        except BaseException:
            done.close()
            raise
    return done


@contextmanager
def suspend_offload() -> Iterator[None]:
    """Take all offloading off in this thread while the block runs.

    ``torch.func`` (``grad``, ``vjp``, ``jacrev``, ...) raises where any saved-tensor hooks are on;
    other people's stay on.

    Example:
        >>> import torch, torchtap as tt
        >>> with tt.offload("disk"):
        ...     with tt.suspend_offload():
        ...         torch.func.grad(torch.sin)(torch.tensor(0.0))
        tensor(1.)
    """
    pairs = {id(one.pair[0]): one.pair for one in _open_attachments if one.pair is not None}
    above: list[tuple[Pair, bool]] = []
    stack: list[Pair] = []
    while (found := top()) is not None:
        remove(found)
        stack.append(found)
    for pair in reversed(stack):
        is_ours = id(pair[0]) in pairs
        above.append((pair, is_ours))
        if not is_ours:
            push(pair)
    paused = list(_open_attachments)
    for one in paused:
        one.pause()
    try:
        yield
    finally:
        for one in paused:
            one.resume()
        for pair, is_ours in above:
            if not is_ours:
                remove(pair)
        for pair, _ in above:
            push(pair)


# ---------------------------------------------------------------------- the request


def _check(**given: Any) -> None:
    for name in ("min_bytes", "max_bytes", "keep_last"):
        value = given[name]
        is_optional = name != "min_bytes" and value is None
        if not is_optional and (not isinstance(value, int) or value < 0):
            raise InputError(f"{name} is {value!r}; expected a number of bytes from 0.")
    if given["on_full"] not in ("wait", "keep", "raise"):
        raise InputError(f"on_full is {given['on_full']!r}; expected 'wait', 'keep' or 'raise'.")


def _tiers(to: Any, folder: Any, *, allow_tmpfs: bool, streams: Streams | None) -> list[Tier]:
    chain = list(to) if isinstance(to, list | tuple) else [to]
    if not chain:
        raise InputError("to is an empty list; expected 'cpu', 'disk', a codec, or several.")
    tiers: list[Tier] = []
    for item in chain:
        one, capacity = _with_budget(item)
        if one == "disk":
            tiers.append(_disk(folder, capacity, allow_tmpfs=allow_tmpfs))
        elif one == "cpu":
            tiers.append(HostTier(CudaStreams() if streams is None else streams, capacity))
        elif hasattr(one, "encode") and hasattr(one, "decode"):
            tiers.append(CodecTier(one, capacity))
        else:
            raise InputError(
                f"to holds {one!r}; expected 'cpu', 'disk', or one of tt.codecs, e.g. "
                f"tt.codecs.bf16()."
            )
    return tiers


def _with_budget(item: Any) -> tuple[Any, int | None]:
    if not isinstance(item, tuple):
        return item, None
    if len(item) == 2 and (item[1] is None or (isinstance(item[1], int) and item[1] >= 0)):
        return item
    raise InputError(f"to holds {item!r}; expected a pair, of where to and a number of bytes.")


def _disk(folder: Any, capacity: int | None, *, allow_tmpfs: bool) -> DiskTier:
    where = folder_for(folder, allow_memory=allow_tmpfs)
    try:
        return DiskTier(where, capacity)
    except OSError as error:
        raise InputError(
            f"dir is {str(where)!r}, where no file can be made ({error.strerror}). Give another "
            f"folder."
        ) from error


def _attach(attachment: Attachment, model: nn.Module, where: Where) -> None:
    plan = make_plan(model, where)
    modules, _ = modules_of(model)
    if any(planned.path == "" for planned in plan.taps):
        modules = {**modules, "": model}  # The wrapper itself: a compiled graph has no modules.
    attachment.attach(plan, modules, around=True)


def _checkpoint_inputs(tensor: Tensor) -> str | None:
    """Checkpoints save from a file of their own, a few frames up."""
    frame: FrameType | None = sys._getframe(3)
    for _ in range(4):
        if frame is not None and frame.f_code.co_filename == _CHECKPOINT_FILE:
            return None
        frame = None if frame is None else frame.f_back
    return "not the input of a checkpoint"


def _prove(done: Offload, loss: Callable[[], Tensor], tiers: Sequence[Tier]) -> None:
    errors = done.verify(loss)
    is_exact = not any(isinstance(tier, CodecTier) for tier in tiers)
    wrong = [name for name, error in errors.items() if error if is_exact or error != error]
    if wrong:
        raise OffloadError(
            f"Offloading changed the gradients of {', '.join(wrong[:3])}: relative error up to "
            f"{errors.worst:.3g}. Does the loss do the same each time that it is run?"
        )


def _relative(plain: Tensor | None, moved: Tensor | None) -> float:
    if plain is None or moved is None:
        return 0.0 if plain is moved else float("nan")
    first, second = _wide(plain), _wide(moved)
    if bool(((first == second) | (first.isnan() & second.isnan())).all()):
        return 0.0
    norm = float(torch.linalg.vector_norm(first))
    difference = float(torch.linalg.vector_norm(second - first))
    return difference / norm if norm else float("inf")


def _wide(gradient: Tensor) -> Tensor:
    dense = gradient.detach().to_dense() if gradient.layout is not torch.strided else gradient
    return dense.to(torch.complex128 if dense.is_complex() else torch.float64)
