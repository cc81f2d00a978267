"""Pictures of what was recorded, as matplotlib figures that no global state knows of.

matplotlib is imported when a figure is drawn.
"""

from torchtap.plot.maps import default_site, feature_maps, feature_maps_overview

__all__ = ["default_site", "feature_maps", "feature_maps_overview"]
