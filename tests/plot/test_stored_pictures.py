"""Figures look as the stored pictures do, which were looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image
from stored_figures import FIGURES, FOLDER, pixels_of

_MOST = 9.0
"""Root mean square, of 255, once small pictures are compared: letters may lie a pixel beside."""


def distance(one: Any, two: Any) -> float:
    """Root mean square of the difference of both pictures, made small."""
    small = [
        np.asarray(
            Image.fromarray(p.astype("uint8")).resize((100, 80), Image.Resampling.BOX), float
        )
        for p in (one, two)
    ]
    return float(np.sqrt(np.square(small[0] - small[1]).mean()))


def stored(name: str) -> Any:
    return np.asarray(Image.open(FOLDER / f"{name}.png").convert("RGB"), dtype=float)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_looks_as_it_was_stored(name: str) -> None:
    drawn, known = pixels_of(FIGURES[name]()), stored(name)
    assert drawn.shape == known.shape
    assert distance(drawn, known) < _MOST


def test_another_figure_does_not() -> None:
    assert distance(stored("series"), stored("spectra")) > 2 * _MOST
