"""Map values to colours, and say when there is nothing to colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchtap.core.text import number
from torchtap.plot.extras import color_map
from torchtap.plot.prepare import bad_words
from torchtap.plot.style import BAD, MAGNITUDE, SIGNED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

Limits = tuple[float, float]


def fault_of(values: Array) -> str:
    """Why a map means nothing to the eye; empty where it may be drawn.

    Example:
        >>> import numpy
        >>> fault_of(numpy.zeros((7, 7))), fault_of(numpy.ones((1, 1))), fault_of(numpy.eye(2))
        ('constant: every value is 0', 'one pixel: 1', '')
    """
    import numpy

    if not values.size:
        return "empty: no value"
    finite = values[numpy.isfinite(values)]
    if not finite.size:
        return f"no finite value: {bad_words(values)}"
    if values.size == 1:
        return f"one pixel: {number(float(values.flat[0]))}"
    if (finite == finite.flat[0]).all():
        every = "every value" if finite.size == values.size else "every finite value"
        return f"constant: {every} is {number(float(finite.flat[0]))}"
    return ""


def range_of(values: Array) -> str:
    """Return the smallest and the largest finite value, and what is not finite, in words.

    Example:
        >>> import numpy
        >>> range_of(numpy.array([0.5, -2, numpy.nan]))
        'range -2 to 0.5, 1 NaN (magenta)'
    """
    import numpy

    finite = values[numpy.isfinite(values)]
    said = "no finite value"
    if finite.size:
        said = f"range {number(float(finite.min()))} to {number(float(finite.max()))}"
    bad = bad_words(values)
    return f"{said}, {bad} (magenta)" if bad else said


def limits_of(arrays: Iterable[Array], clip: float = 0.0) -> Limits:
    """Return the values of the first and last colour: symmetric where any value is below zero.

    Args:
        arrays: of values.
        clip: this share of the largest magnitudes is beyond the last colour.

    Example:
        >>> import numpy
        >>> limits_of([numpy.array([1.0, 3.0])]), limits_of([numpy.array([1.0, -3.0])])
        ((0.0, 3.0), (-3.0, 3.0))
    """
    import numpy

    parts = [array[numpy.isfinite(array)].ravel() for array in arrays]
    finite = numpy.concatenate(parts) if parts else numpy.zeros(0)
    reach = float(numpy.quantile(abs(finite), 1 - clip)) if finite.size else 0.0
    reach = reach or 1.0
    return (-reach, reach) if (finite < 0).any() else (0.0, reach)


def color_name(limits: Limits) -> str:
    """Return the colour map of these limits: diverging where they are of both signs."""
    return SIGNED if limits[0] < 0 else MAGNITUDE


def colored(values: Array, limits: Limits) -> Array:
    """Return ``uint8[..., 4]``; magenta is what is not finite.

    Args:
        values: floats of any shape.
        limits: of the first and the last colour.
    """
    import numpy

    finite = numpy.isfinite(values)
    unit = (numpy.where(finite, values, limits[0]) - limits[0]) / (limits[1] - limits[0])
    unit = numpy.clip(unit, 0, 1)
    colors: Array = color_map(color_name(limits))(unit, bytes=True)
    colors[~finite] = [round(255 * part) for part in BAD]
    return colors


def blended(picture: Array, values: Array, limits: Limits, alpha: float) -> Array:
    """Return a map's colours over a picture, ``uint8[H, W, 3]``.

    Each channel is ``(1 - alpha) * picture + alpha * color``, rounded.

    Args:
        picture: ``uint8[H, W, 3]``.
        values: ``[H, W]``.
        limits: as of :func:`colored`.
        alpha: share of the colours.
    """
    import numpy

    colors = colored(values, limits)[..., :3].astype("float64")
    mixed: Array = numpy.rint((1 - alpha) * picture.astype("float64") + alpha * colors)
    return mixed.astype("uint8")
