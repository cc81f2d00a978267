"""Import what pictures need and torchtap does not require."""

from __future__ import annotations

import base64
import io
from html import escape
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure


def figure_class() -> type[Figure]:
    """matplotlib's figure, which also shows itself in a notebook."""
    try:
        import matplotlib.figure  # noqa: F401 - another ImportError is no missing extra
    except ImportError as error:
        raise _no_matplotlib() from error
    from torchtap.plot.shown_figure import ShownFigure

    return ShownFigure


def color_map(name: str) -> Colormap:
    """Return one of matplotlib's colour maps."""
    try:
        from matplotlib import colormaps
    except ImportError as error:
        raise _no_matplotlib() from error
    return colormaps[name]


def pillow() -> Any:
    """Return the module ``PIL.Image``."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "Overlays need Pillow. Install it: pip install 'torchtap[image]'."
        ) from error
    return Image


def drawn_tag(figure: Figure, name: str) -> str:
    """Return a figure in HTML, as part of the page.

    Args:
        figure: is drawn.
        name: of the picture, for who does not see it.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=80)
    data = base64.b64encode(drawn.getvalue()).decode()
    return f'<img alt="{escape(name)}" src="data:image/png;base64,{data}">'


def _no_matplotlib() -> MissingExtraError:
    return MissingExtraError("Pictures need matplotlib. Install it: pip install 'torchtap[plot]'.")
