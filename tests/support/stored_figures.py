"""Figures that are compared with stored pictures.

``python tests/support/stored_figures.py`` stores them again, to be looked at.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drawn import measured_run
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import torchtap as tt
from torchtap.core.site import Site

FOLDER = Path(__file__).parents[1] / "data" / "figures"
_DPI = 55


def _stds(num: int, steps: int) -> Any:
    t, depth = np.arange(steps), np.arange(num)[:, None]
    return np.exp(-depth * 0.9 + 0.3 * np.sin(t / 9 + depth))


def _few() -> tt.Run:
    stds = _stds(4, 60)
    stds[1, 30], stds[2, 5:20], stds[3, 50] = math.nan, -1, 0
    return measured_run(stds, [Site(f"blocks.{place}") for place in range(4)])


def _flow() -> Figure:
    ports = ("output", "grad_output")
    sites = [Site(f"blocks.{place}", port) for place in range(12) for port in ports]
    stds = np.array([[1.0, math.exp(place - 12)] for place in range(12)]).reshape(24, 1)
    stds[5], stds[9] = math.nan, 0
    return tt.plot.gradient_flow(measured_run(stds, sites))


def _ridges() -> Figure:
    with tt.watch(relu := nn.LeakyReLU(0.3), to=tt.Stats()) as w:
        for step in range(12):
            relu(torch.linspace(-3, 3 + step / 4, 4000).tanh() * (1 + step / 4))
            w.step()
    return tt.plot.histograms(w.run, "*")


def _net() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.Linear(40, 30))
    with torch.no_grad():
        for one in net.parameters():
            one.copy_(torch.sin(torch.arange(one.numel()) * 1.7 + 0.3).view_as(one))
    return net


FIGURES: dict[str, Callable[[], Figure]] = {
    "series": lambda: tt.plot.series(_few(), "*"),
    "heatmap": lambda: tt.plot.heatmap(_few(), "*", "absmax"),
    "gradient_flow": _flow,
    "histograms": _ridges,
    "spectra": lambda: tt.plot.spectra(_net()),
    "filters": lambda: tt.plot.filters(_net(), "0"),
}


def pixels_of(figure: Figure) -> Any:
    """A figure as ``float[H, W, 3]``."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    return np.asarray(Image.open(drawn).convert("RGB"), dtype=float)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        picture = Image.fromarray(pixels_of(draw()).astype("uint8")).quantize(128, kmeans=3)
        picture.save(FOLDER / f"{name}.png", optimize=True)
        print(name, (FOLDER / f"{name}.png").stat().st_size)


if __name__ == "__main__":
    main()
