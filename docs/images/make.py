"""Draw the pictures of the docs from the demo: ``.venv/bin/python docs/images/make.py``.

The demo's own picture has 16 million colours and 1 MB; a page needs neither. The photograph and
the maps get 128 colours each, those of the maps from their colour maps.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy
import torch
from matplotlib import colormaps
from PIL import Image
from skimage import data

from torchtap.cli.batch import image_tensor, square
from torchtap.cli.demo import SITES, class_names, load_demo, run_demo
from torchtap.cli.demo_sheet import explain_demo
from torchtap.explain.cam import cam
from torchtap.plot.maps import feature_maps_overview


def main() -> None:
    found = run_demo()
    caption = "\n".join(f"{g.probability:.3f}  {g.index} {g.name}" for g in found.guesses)
    title = f"{found.model} sees: {found.guesses[0].name}"
    figure = feature_maps_overview(
        found.run, SITES, picture=found.picture, caption=caption, title=title
    )
    drawn = io.BytesIO()
    figure.savefig(drawn)
    split = int(figure.axes[1].get_window_extent().x0) - 4
    drawn_small = small(Image.open(drawn).convert("RGB"), split)
    drawn_small.save(_beside("feature_maps.png"), optimize=True)

    sheet = io.BytesIO()
    explain_demo(found).figure.savefig(sheet)
    few_colors(Image.open(sheet)).save(_beside("explained.png"), optimize=True)
    draw_two_classes()


def draw_two_classes() -> None:
    """The picture of the recipe of two classes, and the check of one of its maps."""
    model = load_demo()
    photographs = [Image.fromarray(one) for one in (data.chelsea(), data.coffee())]
    parts = [
        image_tensor(one, size=224, mean=(127 / 255,), std=(128 / 255,)) for one in photographs
    ]
    batch = torch.cat(parts, 3).repeat(2, 1, 1, 1)
    picture = numpy.hstack([numpy.asarray(square(one, 224)) for one in photographs])
    found = cam(model, batch, layer="_bn1", target=[285, 967]).with_names(class_names())
    for name, figure in (
        ("two_classes.png", found.to_figure([picture, picture], scale="each")),
        ("check.png", found.check(steps=24, num_random=1, num_noise=2).to_figure(0)),
    ):
        drawn = io.BytesIO()
        figure.savefig(drawn)
        few_colors(Image.open(drawn)).save(_beside(name), optimize=True)


def few_colors(picture: Image.Image) -> Image.Image:
    """The picture with a palette of its own."""
    return picture.convert("RGB").quantize(128, kmeans=8, dither=Image.Dither.NONE)


def _beside(name: str) -> Path:
    return Path(__file__).with_name(name)


def small(picture: Image.Image, split: int) -> Image.Image:
    """The picture with a palette: one half for what is left of ``split``, one for the rest."""
    left = picture.crop((0, 0, split, picture.height))
    right = picture.crop((split, 0, picture.width, picture.height))
    photograph = left.quantize(128, kmeans=8).getpalette()[: 3 * 128]
    left = left.quantize(palette=_palette(photograph), dither=Image.Dither.FLOYDSTEINBERG)
    right = right.quantize(palette=_palette(_colors_of_maps()), dither=Image.Dither.NONE)
    places = numpy.hstack([numpy.asarray(left), numpy.asarray(right) + 128])
    joined = Image.fromarray(places.astype("uint8"), mode="P")
    joined.putpalette(photograph + _colors_of_maps())
    return joined


def _colors_of_maps() -> list[int]:
    parts = [("RdBu_r", 66), ("viridis", 46), ("gray", 16)]
    rows = [colormaps[name](numpy.linspace(0, 1, num), bytes=True)[:, :3] for name, num in parts]
    return numpy.concatenate(rows).flatten().tolist()


def _palette(colors: list[int]) -> Image.Image:
    holder = Image.new("P", (1, 1))
    holder.putpalette(colors)
    return holder


if __name__ == "__main__":
    main()
