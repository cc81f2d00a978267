"""What a model raised, as one error: what it got, what it said and where, and one way out."""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtap.core.errors import InputError, TorchtapError

if TYPE_CHECKING:
    from torch import nn

    from torchtap.cli.batch import Batch

_MOST_CHARACTERS = 600
# What embeddings, one_hot, gather and indexing say of numbers that are not whole.
_WANTS_WHOLE_NUMBERS = re.compile(
    r"scalar types: Long|index tensor of type Long|Expected dtype int(32/int)?64 for index"
    r"|used as indices must be long"
)


class _Place(NamedTuple):
    path: str
    module: nn.Module


@contextlib.contextmanager
def explained(
    target: str, model: nn.Module, batch: Batch, options: Mapping[str, Any]
) -> Iterator[None]:
    """Turn what the model raises into one error that says what it was given.

    What was not raised inside the model, and all with ``--traceback``, comes through as it is.

    Raises:
        InputError: the model raised something.
    """
    try:
        yield
    except TorchtapError:
        raise
    except Exception as error:
        place = _place(model, error.__traceback__)
        if options["traceback"] or place is None:
            raise
        raise InputError(
            f"{target} was given {_given(batch)} and raised {type(error).__name__} in "
            f"{_named(place)}{_said(error)}. {_way_out(model, batch, place, error, options)}; "
            f"--traceback shows where it was raised."
        ) from error


def _place(model: nn.Module, trace: TracebackType | None) -> _Place | None:
    """The innermost module of the model that was running; ``None`` if none, or a hook of ours."""
    from torchtap.core.modules import modules_of

    found = None
    by_id = {id(module): _Place(path, module) for path, module in modules_of(model)[0].items()}
    for frame, _ in traceback.walk_tb(trace):
        if str(frame.f_globals.get("__name__")).startswith("torchtap.hooks"):
            found = None
        else:
            found = by_id.get(id(frame.f_locals.get("self")), found)
    return found


def _given(batch: Batch) -> str:
    from torchtap.core.text import clean, typed

    named = [("", value) for value in batch.args] + list(batch.kwargs.items())
    tensors = []
    for name, value in named:
        dtype = str(value.dtype).removeprefix("torch.")
        tensors.append(f"{clean(name)}={typed(dtype, value.shape)}".removeprefix("="))
    return ", ".join(tensors)


def _named(place: _Place) -> str:
    kind = type(place.module).__name__
    return f"{place.path} ({kind})" if place.path else f"{kind} itself"


def _said(error: Exception) -> str:
    from torchtap.core.text import clean, elide_end

    text = elide_end(clean(" ".join(str(error).split())), _MOST_CHARACTERS)
    return f": {text.rstrip('.')}" if text else ""


def _way_out(
    model: nn.Module,
    batch: Batch,
    place: _Place,
    error: Exception,
    options: Mapping[str, Any],
) -> str:
    from torch import nn

    is_embedding = isinstance(place.module, nn.Embedding | nn.EmbeddingBag)
    values = [*batch.args, *batch.kwargs.values()]
    has_fractions = any(value.is_floating_point() or value.is_complex() for value in values)
    if has_fractions and (is_embedding or _WANTS_WHOLE_NUMBERS.search(str(error))):
        most = str(place.module.num_embeddings) if is_embedding else "N"
        size = "" if is_embedding else ", with N the size of its vocabulary"
        start = "" if options["shape"] is not None else "--shape and "
        return f"It wants whole numbers: give {start}--dtype int64 --high {most}{size}"
    if is_embedding and isinstance(error, IndexError):
        most = str(place.module.num_embeddings)
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
    """Whether the forward can be called with so many arguments of these names."""
    try:
        inspect.signature(model.forward).bind(*batch.args, **batch.kwargs)
    except TypeError:
        return False
    return True
