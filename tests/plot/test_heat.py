"""From values to colours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib import colormaps

from torchtap.plot.heat import blended, color_name, colored, limits_of, range_of


def test_limits_are_from_zero_or_symmetric_and_skip_what_is_not_finite() -> None:
    assert limits_of([np.array([1.0, 3.0, math.inf])]) == (0.0, 3.0)
    assert limits_of([np.array([1.0]), np.array([-5.0, math.nan])]) == (-5.0, 5.0)
    assert limits_of([np.zeros(3)]) == limits_of([np.array([math.nan])]) == limits_of([])
    assert limits_of([]) == (0.0, 1.0)


def test_a_share_of_the_largest_may_lie_beyond_the_last_colour() -> None:
    values = np.arange(101.0)
    assert limits_of([values], clip=0.1) == (0.0, 90.0)
    beyond = colored(values, (0.0, 90.0))
    assert (beyond[90:] == beyond[90]).all()


@pytest.mark.parametrize("limits", [(0.0, 2.0), (-2.0, 2.0)])
def test_colours_are_those_of_matplotlib(limits: tuple[float, float]) -> None:
    values = np.linspace(*limits, 7)
    wanted = colormaps["viridis" if limits[0] == 0 else "RdBu_r"](np.linspace(0, 1, 7), bytes=True)
    assert np.array_equal(colored(values, limits), wanted)
    assert color_name(limits) == ("viridis" if limits[0] == 0 else "RdBu_r")


def test_a_blend_is_the_weighted_mean() -> None:
    picture = np.array([[[10, 20, 30]]], dtype="uint8")
    first = np.array(colormaps["viridis"](0.0, bytes=True)[:3], dtype="float64")
    wanted = np.rint(0.75 * picture + 0.25 * first)
    assert np.array_equal(blended(picture, np.zeros((1, 1)), (0.0, 1.0), 0.25), wanted)


def test_the_range_says_what_is_not_finite() -> None:
    assert range_of(np.array([math.inf, math.nan])) == "no finite value, 1 NaN and 1 Inf (magenta)"
