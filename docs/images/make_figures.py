"""Draw the pictures of both pages of figures in docs/guides from real trainings.

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
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

import torchtap as tt

_FOLDER = Path(__file__).with_name("figures")
_COLORS = 255
_DPI = 90
_COARSER = {"feature_maps": 76}
"""Pictures of many colours have fewer pixels, so that all are small."""


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


@cache
def vit_seen() -> tuple[nn.Module, tt.Run, object]:
    """Train a small ViT on the digits, and watch it look at one of them."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    images, classes = digits()
    images = nn.functional.interpolate(images, scale_factor=4, mode="bilinear")
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=4, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=4, num_channels=1, num_labels=10,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(250):
        rows = torch.randint(0, len(images), (64,))
        loss = cross_entropy(model(images[rows]).logits, classes[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    shown = images[3:4]
    with tt.watch(model, "*") as w, torch.no_grad():
        model(shown)
    return model, w.run, shown


def _drawn(name: str, *args: object, **kwargs: object) -> Callable[[], Figure]:
    """A figure of the run of the small network."""
    return lambda: getattr(tt.plot, name)(trained_cnn()[1], *args, **kwargs)


def attention() -> Figure:
    model, _, shown = vit_seen()
    return tt.plot.attention(model, shown)


def attention_heads() -> Figure:
    model, _, shown = vit_seen()
    return tt.plot.attention(model, shown, layer="*layers.2.attention")


def tokens() -> Figure:
    _, run, shown = vit_seen()
    return tt.plot.tokens(run, "vit.layers.3", 1 - shown[0])  # type: ignore[index]


def feature_maps() -> Figure:
    from torchtap.cli.demo import demo_batch, load_demo

    model = load_demo()
    with tt.watch(model, "_blocks.3._swish") as w, torch.no_grad():
        model(demo_batch()[0])
    return tt.plot.feature_maps(w.run, "_blocks.3._swish", channels=10, clip=0.01)


def saved() -> Figure:
    from torchtap.cli.demo import demo_batch, load_demo

    return tt.plot.saved(tt.saved_report(load_demo(), demo_batch()[0], depth=1))


def filters_in_color() -> Figure:
    from torchtap.cli.demo import load_demo

    return tt.plot.filters(load_demo(), "_conv_stem")


FIGURES: dict[str, Callable[[], Figure]] = {
    "series": _drawn("series", ["*@Conv2d", "*@Linear"]),
    "series_gradients": _drawn("series", "*:param_grad", "l2"),
    "gradient_flow": lambda: tt.plot.gradient_flow(vanishing()),
    "gradient_flow_cnn": _drawn("gradient_flow"),
    "heatmap": lambda: tt.plot.heatmap(vanishing(), "*:grad_output", "absmax"),
    "histograms": _drawn("histograms", "0:param_grad[weight]"),
    "histograms_of_several": _drawn("histograms", ["0", "1", "2", "8"]),
    "updates": _drawn("updates"),
    "spectra": lambda: tt.plot.spectra(trained_cnn()[0]),
    "filters": lambda: tt.plot.filters(trained_cnn()[0], "3"),
    "filters_in_color": filters_in_color,
    "feature_maps": feature_maps,
    "tokens": tokens,
    "attention": attention,
    "attention_heads": attention_heads,
    "saved": saved,
}


def main(names: list[str]) -> None:
    _FOLDER.mkdir(exist_ok=True)
    for name in names or list(FIGURES):
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn, dpi=_COARSER.get(name, _DPI))
        picture = (
            Image.open(drawn).convert("RGB").quantize(_COLORS, kmeans=4, dither=Image.Dither.NONE)
        )
        path = _FOLDER / f"{name}.png"
        picture.save(path, optimize=True)
        print(f"{path.name:28} {picture.size} {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
