"""Turn a record into maps: which dimension is what, which channels, and what is to be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError
from torchtap.core.text import count, number, plural, typed
from torchtap.plot.grids import DIMS, MEANS, Layout, laid_out

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from torchtap.core.record import Record

    Array = NDArray[Any]

Channels = int | Sequence[int] | None

_MOST_MAPS = 64


@dataclass(frozen=True, slots=True)
class Maps:
    """The maps of one sample, ready to draw.

    Attributes:
        values: float64[C, H, W].
        channels: their numbers, or what stands in the corner of each.
        total: how many channels there are.
        title: site, shape, step, call.
        notes: what else is to be said.
        low: smallest finite value.
        high: largest finite value.
        reach: largest magnitude that has a colour of its own.
    """

    values: Array
    channels: tuple[int | str, ...]
    total: int
    title: str
    notes: tuple[str, ...]
    low: float
    high: float
    reach: float

    @property
    def signed(self) -> bool:
        return self.low < 0

    @property
    def limits(self) -> tuple[float, float]:
        """Return the least and the largest value that have a colour of their own."""
        if self.signed:
            most = self.reach or max(abs(self.low), abs(self.high))
            return -most, most
        if self.reach > self.low:
            return self.low, self.reach
        return (0.0, self.high) if self.high > 0 else (0.0, 1.0)

    @property
    def remark(self) -> str:
        shown = f"range {number(self.low)} to {number(self.high)}"
        bottom, top = self.limits
        if self.low < bottom or self.high > top:
            shown += f", colours {number(bottom)} to {number(top)}"
        return ", ".join([*self.notes, shown])


def take_maps(
    record: Record,
    layout: Layout,
    sample: int,
    channels: Channels,
    clip: float,
    *,
    rows: int | None = None,
) -> Maps:
    """Take the maps of one sample out of a value.

    Args:
        record: of the value.
        layout: what its dimensions are.
        sample: which of the batch.
        channels: how many from the first, or which.
        clip: share of the largest magnitudes beyond the last colour.
        rows: of the batch, where a value of windows has more.

    Raises:
        InputError: the value has no such maps.
    """
    if layout not in MEANS:
        raise InputError(f"layout is {layout!r}; expected one of {', '.join(MEANS)}.")
    value, notes = record.value, list[str]()
    where = f"{record.site} is {_typed(value)}"
    if value.dim() != DIMS.get(layout, len(layout)):
        raise InputError(f"{where}; layout {layout!r} means {MEANS[layout]}.")
    num = len(value)
    if layout in DIMS:
        value, notes = laid_out(value, layout, rows)
        num, layout = len(value), "NCHW"
    if layout.startswith("N"):
        if not -len(value) <= sample < len(value):
            raise InputError(f"{where}; there is no sample {sample}.")
        value, layout = value[sample], layout[1:]  # type: ignore[assignment]
        if num > 1:
            notes.insert(0, f"sample {sample % num}")
    if layout == "HWC":
        value = value.movedim(-1, 0)
        notes.append("channels last")
    if layout == "CDHW":
        notes.append(f"slice {value.shape[1] // 2} of {value.shape[1]}")
        value = value[:, value.shape[1] // 2]
    if layout == "CL":
        value = value[:, None]
    chosen = _choose(where, value.shape[0], channels)
    if not value[0].numel():
        raise InputError(f"{where}: there is nothing to draw.")
    return _maps_of(record, value, chosen, notes, clip)


def _maps_of(
    record: Record, value: Tensor, chosen: tuple[int, ...], notes: list[str], clip: float
) -> Maps:
    """Make maps of some channels of one sample, ``[C, H, W]``."""
    import numpy

    if value.is_complex():
        notes.append("magnitude")
    picked = (value.abs() if value.is_complex() else value)[list(chosen)]
    array = picked.detach().to("cpu").double().numpy()
    finite = array[numpy.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    reach = float(numpy.quantile(abs(finite), 1 - clip)) if finite.size else 0.0
    title = f"{record.site}  {_typed(record.value)}  step {record.step} call {record.call}"
    maps = Maps(
        values=array,
        channels=chosen,
        total=value.shape[0],
        title=title,
        notes=tuple(notes),
        low=low,
        high=high,
        reach=reach,
    )
    return replace(maps, notes=(*notes, *_remarks(maps)))


def _choose(where: str, total: int, channels: Channels) -> tuple[int, ...]:
    if not total:
        raise InputError(f"{where}: it has no channel.")
    if channels is None:
        return tuple(range(min(total, _MOST_MAPS)))
    if isinstance(channels, int):
        if channels < 1:
            raise InputError(f"channels is {channels}; expected a count from 1, or numbers.")
        return tuple(range(min(total, channels)))
    wrong = [channel for channel in channels if not 0 <= channel < total]
    if wrong or not channels:
        raise InputError(f"{where}: there is no channel {wrong[0] if wrong else '(none named)'}.")
    return tuple(channels)


def _remarks(maps: Maps) -> list[str]:
    """Return what the eye might miss: maps with nothing in them, and values that are NaN or Inf."""
    said = [f"{len(maps.channels)} of {plural(maps.total, 'channel')}"]
    if len(maps.channels) == maps.total:
        said = [plural(maps.total, "channel")]
    bad = bad_words(maps.values)
    if bad:
        said.append(f"{bad} (magenta)")
    states = [constant_of(value) for value in maps.values]
    zero, constant = states.count("0"), len([s for s in states if s and s != "0"])
    if zero:
        said.append(f"{count(zero)} all zero")
    if constant:
        said.append(f"{count(constant)} constant")
    return said


def bad_words(values: Array) -> str:
    import numpy

    counts = (int(numpy.isnan(values).sum()), "NaN"), (int(numpy.isinf(values).sum()), "Inf")
    return " and ".join(f"{count(n)} {word}" for n, word in counts if n)


def constant_of(one: Array) -> str:
    """Return ``0`` or the constant that a map consists of; empty if it varies."""
    import numpy

    first = one.flat[0]
    if not numpy.isfinite(first) or not (one == first).all():
        return ""
    return number(float(first))


def _typed(tensor: Tensor) -> str:
    return typed(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
