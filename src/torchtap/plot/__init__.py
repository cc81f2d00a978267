"""Pictures of what was recorded, as matplotlib figures that no global state knows of.

:mod:`~torchtap.plot.maps` holds the public functions. :mod:`~torchtap.plot.prepare` makes maps of a
record: which dimension is what, which channels, what is to be said of them;
:mod:`~torchtap.plot.draw` draws them. matplotlib is imported when a figure is drawn.
"""

from torchtap.plot.maps import default_site, feature_maps, feature_maps_overview

__all__ = ["default_site", "feature_maps", "feature_maps_overview"]
