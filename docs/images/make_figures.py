"""Draw the pictures of docs/figures.md from real trainings.

``.venv/bin/python docs/images/make_figures.py [NAME]...`` draws all of them, or some, into
``docs/images/figures/``.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

import torchtap as tt

_FOLDER = Path(__file__).with_name("figures")
_COLORS = 128


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 handwritten digits of scikit-learn, ``float32[N, 1, 8, 8]``, and their classes."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    return images, torch.tensor(data.target)


def small_cnn() -> nn.Sequential:
    """Three convolutions, two batch norms, and a bias in front of the first of them."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


@cache
def trained_cnn() -> tuple[nn.Module, tt.Run]:
    """Train the small network for 300 steps, watched."""
    torch.manual_seed(0)
    images, classes = digits()
    net = small_cnn()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    where = "*:output,grad_output,param,param_grad,update"
    with tt.watch(net, where, to=tt.Stats(keep=300)) as w:
        for _ in range(300):
            rows = torch.randint(0, len(images), (64,))
            loss = cross_entropy(net(images[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.log(loss=loss)
            w.step()
    return net, w.run


@cache
def vanishing() -> tt.Run:
    """Train twenty layers with sigmoids for 60 steps: the gradient dies on its way back."""
    torch.manual_seed(0)
    images, classes = digits()
    layers: list[nn.Module] = [nn.Flatten()]
    for place in range(20):
        layers += [nn.Linear(64, 64), nn.Sigmoid() if place % 2 else nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with tt.watch(net, "*:output,grad_output,param_grad", to=tt.Stats()) as w:
        for _ in range(60):
            rows = torch.randint(0, len(images), (64,))
            loss = cross_entropy(net(images[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            w.step()
    return w.run


def series() -> object:
    return tt.plot.series(trained_cnn()[1], ["*@Conv2d", "*@Linear"], "std")


def gradient_flow() -> object:
    return tt.plot.gradient_flow(vanishing())


def gradient_flow_cnn() -> object:
    return tt.plot.gradient_flow(trained_cnn()[1])


def heatmap() -> object:
    return tt.plot.heatmap(vanishing(), "*:grad_output", "absmax")


def histograms() -> object:
    return tt.plot.histograms(trained_cnn()[1], "0:param_grad[weight]")


def histograms_of_several() -> object:
    return tt.plot.histograms(trained_cnn()[1], ["0:output", "1:output", "2:output", "8:output"])


def spectra() -> object:
    return tt.plot.spectra(trained_cnn()[0])


def series_gradients() -> object:
    return tt.plot.series(trained_cnn()[1], "*:param_grad", "l2")


def updates() -> object:
    return tt.plot.updates(trained_cnn()[1])


FIGURES: dict[str, Callable[[], object]] = {
    "series": series,
    "series_gradients": series_gradients,
    "updates": updates,
    "spectra": spectra,
    "histograms": histograms,
    "histograms_of_several": histograms_of_several,
    "heatmap": heatmap,
    "gradient_flow": gradient_flow,
    "gradient_flow_cnn": gradient_flow_cnn,
}


def main(names: list[str]) -> None:
    _FOLDER.mkdir(exist_ok=True)
    for name in names or list(FIGURES):
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn)  # type: ignore[attr-defined]
        picture = Image.open(drawn).convert("RGB").quantize(_COLORS)
        path = _FOLDER / f"{name}.png"
        picture.save(path, optimize=True)
        print(f"{path.name:28} {picture.size} {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
