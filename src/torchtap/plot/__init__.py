"""Figures of what was recorded, as matplotlib figures that no global state knows of.

Each takes ``ax=`` and returns the figure. matplotlib is imported when a figure is drawn.
"""

from torchtap.plot.attention_maps import attention
from torchtap.plot.live import live
from torchtap.plot.maps import default_site, feature_maps, feature_maps_overview
from torchtap.plot.over_depth import gradient_flow
from torchtap.plot.over_steps import series, updates
from torchtap.plot.ridges import histograms
from torchtap.plot.saved_bars import saved
from torchtap.plot.singular_values import spectra
from torchtap.plot.site_heat import heatmap
from torchtap.plot.site_pair import pair
from torchtap.plot.token_maps import tokens
from torchtap.plot.weight_filters import filters

__all__ = [
    "attention",
    "default_site",
    "feature_maps",
    "feature_maps_overview",
    "filters",
    "gradient_flow",
    "heatmap",
    "histograms",
    "live",
    "pair",
    "saved",
    "series",
    "spectra",
    "tokens",
    "updates",
]
