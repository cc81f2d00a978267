"""A picture of the user's, whatever it is held in, as pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError
from torchtap.core.text import number, typed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_CHANNELS = (1, 3, 4)
_SLACK = 1e-3
"""How far rounding may carry a share of light out of 0 to 1."""


def pixels_of(
    image: Any, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Array:
    """Return a picture as ``uint8[H, W, 3]``.

    Args:
        image: a PIL image; a NumPy array ``[H, W]`` or ``[H, W, C]``; a tensor ``[H, W]``,
            ``[C, H, W]`` or ``[1, C, H, W]``; with 1, 3 or 4 channels (alpha is dropped), of bytes
            or of floats from 0 to 1.
        mean: what was subtracted from the floats, one number or one for each channel.
        std: what they were divided by then.

    Raises:
        InputError: it is no picture; the message says what was found.
    """
    import numpy

    if hasattr(image, "convert") and hasattr(image, "getbands"):  # Of Pillow.
        return numpy.asarray(image.convert("RGB"))
    is_tensor = hasattr(image, "detach")
    if is_tensor:
        value = image.detach().cpu()
        array = (value.float() if value.is_floating_point() else value).numpy()
    elif isinstance(image, numpy.ndarray):
        array = image
    else:
        raise InputError(
            f"The picture is a {type(image).__name__}; expected a PIL image, an array [H, W, 3] or "
            f"a tensor [3, H, W]. Open a file with PIL.Image.open."
        )
    what = typed(str(array.dtype), image.shape)
    array = _channels_last(array, what, is_tensor=is_tensor)
    if mean is not None or std is not None:
        array = _denormalised(array, what, mean, std)
    pixels = _bytes(array, what)
    if pixels.shape[2] == 1:
        return pixels.repeat(3, axis=2)
    return pixels[..., :3]


def _channels_last(array: Array, found: str, *, is_tensor: bool) -> Array:
    import numpy

    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim == 2:
        array = array[..., None]
    elif (
        array.ndim == 3
        and array.shape[0] in _CHANNELS
        and (is_tensor or array.shape[2] not in _CHANNELS)
    ):
        array = numpy.moveaxis(array, 0, 2)
    if array.ndim != 3 or array.shape[2] not in _CHANNELS or not array.size:
        raise InputError(
            f"The picture is {found}; expected one picture: an array [H, W, 3] or a tensor "
            f"[3, H, W], with 1, 3 or 4 channels."
        )
    return array


def _denormalised(
    array: Array, found: str, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Array:
    import numpy

    if not numpy.issubdtype(array.dtype, numpy.floating):
        raise InputError(f"The picture is {found}; mean= and std= are for floats.")
    undone = array
    for name, given, undo in (("std", std, numpy.multiply), ("mean", mean, numpy.add)):
        values = numpy.atleast_1d(numpy.asarray(0.0 if given is None else given, dtype="float64"))
        if given is None:
            continue
        if values.shape not in ((1,), (array.shape[2],)):
            raise InputError(
                f"{name} has {values.size} numbers, and the picture is {found}; expected one, or "
                f"one for each channel."
            )
        undone = undo(undone, values)
    return undone


def _bytes(array: Array, found: str) -> Array:
    import numpy

    if array.dtype == numpy.uint8:
        return array
    if array.dtype == numpy.bool_:
        return (array * 255).astype("uint8")
    if not numpy.issubdtype(array.dtype, numpy.floating):
        raise InputError(f"The picture is {found}; expected uint8, or floats from 0 to 1.")
    if not numpy.isfinite(array).all():
        bad = int((~numpy.isfinite(array)).sum())
        raise InputError(f"The picture is {found} with {bad} values that are not finite.")
    low, high = float(array.min()), float(array.max())
    if low < -_SLACK or high > 1 + _SLACK:
        raise InputError(
            f"The picture is {found} with values from {number(low)} to {number(high)}; expected "
            f"0 to 1. Give mean= and std= if it was normalised with them."
        )
    pixels: Array = numpy.rint(numpy.clip(array, 0, 1) * 255).astype("uint8")
    return pixels
