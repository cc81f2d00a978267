"""Turn what a model raised into one error: what it got, what it said and where, and a way out."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchtap.core.blame import is_raised_by_torchtap
from torchtap.core.errors import InputError, TorchtapError

if TYPE_CHECKING:
    from torch import nn

    from torchtap.cli.batch import Batch
    from torchtap.failures.failure import Failure

_MOST_CHARACTERS = 600
_WANTS_WHOLE_NUMBERS = ("index dtype", "index of floats")


@contextlib.contextmanager
def explained(
    target: str, model: nn.Module, batch: Batch, options: Mapping[str, Any]
) -> Iterator[None]:
    """Turn what the model raises into one error that says what it was given.

    An exception from outside of the model, and any with ``--traceback``, comes through with the
    note of ``tt.explain_errors`` and is otherwise as it is. An exception of torchtap's own code is
    not the model's, and comes through without a note.

    Raises:
        InputError: the model raised something.
    """
    try:
        yield
    except TorchtapError:
        raise
    except Exception as error:
        if is_raised_by_torchtap(error):
            raise
        from torchtap.failures.added_notes import add_notes, explain

        failure, found, explanation = explain(error, model)
        module = _running(failure)
        if options["traceback"] or module is None:
            add_notes(error, model)
            raise
        what = f" {explanation.what}" if explanation is not None else ""
        message = "" if found is None else found.name
        raise InputError(
            f"{target} was given {_given(batch)} and raised {type(error).__name__} in "
            f"{_named(failure, module)}{_said(error)}.{what} "
            f"{_way_out(model, batch, module, error, message, options)}; "
            f"--traceback shows where it was raised."
        ) from error


def _running(failure: Failure) -> nn.Module | None:
    """The innermost module of the model that was running; ``None`` if none, or a hook of ours."""
    from torchtap.failures.failure import raised_by_a_hook_of_ours

    if raised_by_a_hook_of_ours(failure.error):
        return None
    running = (frame.module for frame in reversed(failure.frames))
    return next((one for one in running if one is not None and one in failure.names), None)


def _given(batch: Batch) -> str:
    from torchtap.core.text import clean, typed

    named = [("", value) for value in batch.args] + list(batch.kwargs.items())
    tensors = []
    for name, value in named:
        dtype = str(value.dtype).removeprefix("torch.")
        tensors.append(f"{clean(name)}={typed(dtype, value.shape)}".removeprefix("="))
    return ", ".join(tensors)


def _named(failure: Failure, module: nn.Module) -> str:
    kind, path = type(module).__name__, failure.names.path(module)
    return f"{path} ({kind})" if path else f"{kind} itself"


def _said(error: Exception) -> str:
    from torchtap.core.text import clean, elide_end

    text = elide_end(clean(" ".join(str(error).split())), _MOST_CHARACTERS)
    return f": {text.rstrip('.')}" if text else ""


def _way_out(
    model: nn.Module,
    batch: Batch,
    module: nn.Module,
    error: Exception,
    message: str,
    options: Mapping[str, Any],
) -> str:
    from torch import nn

    is_embedding = isinstance(module, nn.Embedding | nn.EmbeddingBag)
    values = [*batch.args, *batch.kwargs.values()]
    has_fractions = any(value.is_floating_point() or value.is_complex() for value in values)
    if has_fractions and (is_embedding or message in _WANTS_WHOLE_NUMBERS):
        most = str(module.num_embeddings) if is_embedding else "N"
        size = "" if is_embedding else ", with N the size of its vocabulary"
        start = "" if options["shape"] is not None else "--shape and "
        return f"It wants whole numbers: give {start}--dtype int64 --high {most}{size}"
    if is_embedding and isinstance(error, IndexError):
        most = str(module.num_embeddings)
        return f"It has {most} rows, for numbers from 0: give --high {most}"
    if isinstance(error, TypeError) and not _fits(model, batch):
        takes = inspect.signature(model.forward).replace(return_annotation=inspect.Signature.empty)
        return (
            f"Its forward takes {takes}: give each tensor by its name in a .safetensors file "
            f"with --input"
        )
    if options["shape"] is not None:
        return "If the input is to blame, give another --shape or --dtype"
    other = "another --size, or --shape" if options["image"] is not None else "another file"
    return f"If the input is to blame, give {other}"


def _fits(model: nn.Module, batch: Batch) -> bool:
    """Return whether the forward can be called with so many arguments of these names."""
    try:
        inspect.signature(model.forward).bind(*batch.args, **batch.kwargs)
    except TypeError:
        return False
    return True
