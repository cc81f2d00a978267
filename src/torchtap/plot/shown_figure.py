"""A figure that a notebook shows. Imported where a figure is drawn: it needs matplotlib."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A matplotlib figure that shows itself in a notebook, also without ``%matplotlib``.

    IPython shows a bare ``Figure`` as a picture only once ``pyplot`` was imported, which these
    figures do without. Where it was, IPython's own way counts, and this one is not asked.
    """

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
