"""Draw the pictures of the docs from the demo: ``.venv/bin/python docs/images/make.py``.

The demo's own picture has 16 million colours and 1 MB; a page needs neither. The photograph and
the maps get 128 colours each, those of the maps from their colour maps.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy
from matplotlib import colormaps
from PIL import Image

from torchtap.cli.demo import SITES, run_demo
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
    small(Image.open(drawn).convert("RGB"), split).save(
        Path(__file__).with_name("feature_maps.png"), optimize=True
    )


def small(picture: Image.Image, split: int) -> Image.Image:
    """The same with a palette: one half of it for what is left of ``split``, one for the rest."""
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
