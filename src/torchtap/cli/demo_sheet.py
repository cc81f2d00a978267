"""Draw the demo's sheet of maps: what decided that it is a cat, and what the maps are worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchtap.cli.demo import Demo, class_names, demo_batch, load_demo
from torchtap.core.text import with_article

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    import torchtap as tt

DEPTHS = ("_blocks.2", "_blocks.8", "_bn1")
"""Maps of 56x56, 14x14 and 7x7; the last is the BatchNorm of the last convolution."""
_STEPS, _CURVE_STEPS = 32, 20
_CONTROLS = 3
"""Maps as coarse that are compared with each; one alone is up and down by chance."""
_NAMES = {"gradcam": "Grad-CAM", "integrated_gradients": "Integrated gradients"}
_CLIP = 0.003


@dataclass(frozen=True, slots=True)
class Explained:
    """Maps of the winning class, from early to late, and of the pixels.

    Attributes:
        cams: Grad-CAM at each of :data:`DEPTHS`.
        pixels: integrated gradients.
        figure: the sheet.
    """

    cams: tuple[tt.Map, ...]
    pixels: tt.Map
    figure: Figure


def explain_demo(demo: Demo) -> Explained:
    """Explain the winner of the demo, and draw the sheet.

    Args:
        demo: what it saw.
    """
    import torchtap as tt

    model = load_demo()
    batch, _ = demo_batch()
    winner = demo.guesses[0].index
    cams = [tt.cam(model, batch, layer=layer, target=winner) for layer in DEPTHS]
    pixels = tt.attribute(model, batch, target=winner, n_steps=_STEPS)
    names = class_names()
    named = [one.with_names(names) for one in (*cams, pixels)]
    return Explained(tuple(named[:-1]), named[-1], _sheet(demo, named))


def _sheet(demo: Demo, maps: list[tt.Map]) -> Figure:
    from torchtap.plot.sheet import explained_sheet

    checks = {
        name: one.check(parts=["deletion"], steps=_CURVE_STEPS, num_controls=_CONTROLS).deletion
        for name, one in (("Grad-CAM", maps[-2]), ("Integrated gradients", maps[-1]))
    }
    curves = {
        name: (one.shares.numpy(), one.scores[0].numpy(), one.control[:, 0].numpy())
        for name, one in checks.items()
        if one is not None
    }
    caption = "Probabilities: " + ", ".join(
        f"{guess.probability:.3f} {guess.name} ({guess.index})" for guess in demo.guesses
    )
    return explained_sheet(
        demo.picture,
        caption,
        [_pane(map_, demo.picture) for map_ in maps],
        curves,
        title=f"What decided that {demo.model} sees {with_article(demo.guesses[0].name)}",
        clip=_CLIP,
    )


def _pane(found: tt.Map, picture: Any) -> Any:
    (pane,) = found.panes(0, picture)
    place = found.layer or "the input"
    return replace(pane, heading=(f"{_NAMES[found.method]} at {place}", pane.heading[-1]))
