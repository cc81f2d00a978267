"""Turn a record into maps: which dimension is what, which channels, and what is to be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from torchtap.core.errors import InputError
from torchtap.core.text import count, number, plural, typed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from torchtap.core.record import Record

    Array = NDArray[Any]

Layout = Literal["NCHW", "NHWC", "CHW", "HWC", "NCL", "CL", "NCDHW", "CDHW"]
Channels = int | Sequence[int] | None

_MOST_MAPS = 64
_LAYOUTS: dict[Layout, str] = {
    "NCHW": "(N, C, H, W)",
    "NHWC": "(N, H, W, C)",
    "CHW": "(C, H, W)",
    "HWC": "(H, W, C)",
    "NCL": "(N, C, L)",
    "CL": "(C, L)",
    "NCDHW": "(N, C, D, H, W)",
    "CDHW": "(C, D, H, W)",
}
_TOKEN_TYPES = ("Attention", "Embedding", "Encoder", "Decoder", "LayerNorm", "Linear", "RMSNorm")


@dataclass(frozen=True, slots=True)
class Maps:
    """The maps of one sample, ready to draw.

    Attributes:
        values: float64[C, H, W].
        channels: their numbers.
        total: how many channels there are.
        title: site, shape, step, call.
        notes: what else is to be said.
        low: smallest finite value.
        high: largest finite value.
        reach: largest magnitude that has a colour of its own.
    """

    values: Array
    channels: tuple[int, ...]
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
        """The least and the largest value that have a colour of their own."""
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


def layout_of(record: Record, types: Sequence[str]) -> Layout:
    """Return the layout, from the number of dimensions and the module's class; never a guess."""
    dims = record.kept.dim()
    where = f"{record.site} is {_typed(record.kept)}"
    one_d = any(name.endswith("1d") for name in types)
    two_d = any(name.endswith("2d") for name in types)
    three_d = any(name.endswith("3d") for name in types)
    if dims == 5:
        return "NCDHW"
    if dims == 4:
        return "CDHW" if three_d else "NCHW"
    if dims == 3 and one_d:
        return "NCL"
    if dims == 3 and two_d:
        return "CHW"
    if dims == 2 and one_d and any(name.startswith("Conv") for name in types):
        return "CL"
    if dims == 3 and any(part in name for part in _TOKEN_TYPES for name in types):
        raise InputError(
            f"{where}: tokens (B, T, C). Feature maps need channels with a picture each: "
            f"(N, C, H, W) or (C, H, W). Name a convolution."
        )
    if dims == 3:
        raise InputError(
            f"{where}, which may be (C, H, W), (N, C, L) or tokens (B, T, C). Say which: "
            f"layout='CHW' or layout='NCL'."
        )
    raise InputError(f"{where}; feature maps need (N, C, H, W) or (C, H, W).")


def take_maps(record: Record, layout: Layout, sample: int, channels: Channels, clip: float) -> Maps:
    import numpy

    if layout not in _LAYOUTS:
        raise InputError(f"layout is {layout!r}; expected one of {', '.join(_LAYOUTS)}.")
    value = record.value
    where = f"{record.site} is {_typed(value)}"
    if value.dim() != len(layout):
        raise InputError(f"{where}; layout {layout!r} means {_LAYOUTS[layout]}.")
    notes = []
    if layout.startswith("N"):
        if not -len(value) <= sample < len(value):
            raise InputError(f"{where}; there is no sample {sample}.")
        value, layout = value[sample], layout[1:]  # type: ignore[assignment]
        if len(record.value) > 1:
            notes.append(f"sample {sample % len(record.value)}")
    if layout == "HWC":
        value = value.movedim(-1, 0)
    if layout == "CDHW":
        notes.append(f"slice {value.shape[1] // 2} of {value.shape[1]}")
        value = value[:, value.shape[1] // 2]
    if layout == "CL":
        value = value[:, None]
    chosen = _choose(where, value.shape[0], channels)
    if not value[0].numel():
        raise InputError(f"{where}: there is nothing to draw.")
    if value.is_complex():
        notes.append("magnitude")
    picked = (value.abs() if value.is_complex() else value)[list(chosen)]
    array = picked.detach().to("cpu").double().numpy()
    finite = array[numpy.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    reach = float(numpy.quantile(abs(finite), 1 - clip)) if finite.size else 0.0
    title = f"{record.site}  {_typed(record.value)}  step {record.step} call {record.call}"
    maps = Maps(array, chosen, value.shape[0], title, tuple(notes), low, high, reach)
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
    states = [constant_of(one) for one in maps.values]
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
    """``0`` or the constant that a map consists of; empty if it varies."""
    import numpy

    first = one.flat[0]
    if not numpy.isfinite(first) or not (one == first).all():
        return ""
    return number(float(first))


def _typed(tensor: Tensor) -> str:
    return typed(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
