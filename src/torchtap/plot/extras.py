"""What pictures need and torchtap does not require."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtap.core.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure


def figure_class() -> type[Figure]:
    """matplotlib's figure."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise _no_matplotlib() from error
    return Figure


def color_map(name: str) -> Colormap:
    """One of matplotlib's colour maps."""
    try:
        from matplotlib import colormaps
    except ImportError as error:
        raise _no_matplotlib() from error
    return colormaps[name]


def pillow() -> Any:
    """The module ``PIL.Image``."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError(
            "Overlays need Pillow. Install it: pip install 'torchtap[image]'."
        ) from error
    return Image


def _no_matplotlib() -> MissingExtraError:
    return MissingExtraError("Pictures need matplotlib. Install it: pip install 'torchtap[plot]'.")
