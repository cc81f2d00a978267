"""The methods of ``tt.attribute``: a row says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torchtap.explain.attributions.attribution_result import AttributionResult
from torchtap.explain.attributions.gradient_methods import (
    gradient,
    input_x_gradient,
    integrated_gradients,
)
from torchtap.explain.attributions.guided_backprop import deconvolution, guided_backprop
from torchtap.explain.attributions.noise import mean_of, mean_square_of, noisy_maps, variance_of
from torchtap.explain.attributions.perturbation import feature_permutation, occlusion
from torchtap.explain.attributions.propagation import deeplift, lrp
from torchtap.explain.attributions.score_rounding import DIFFERENCES, GRADIENTS, SHARES
from torchtap.explain.attributions.shapley import shapley


@dataclass(frozen=True, slots=True)
class Method:
    """A method of attribution.

    Attributes:
        function: is called with a variable; its keyword-only parameters are its settings.
        values: how the values of its maps come about, which tells when they are rounding alone.
        needs_gradient: whether it explains only values that carry one.
    """

    function: Callable[..., AttributionResult]
    values: str = GRADIENTS
    needs_gradient: bool = True


METHODS: Mapping[str, Method] = {
    "gradient": Method(gradient),
    "input_x_gradient": Method(input_x_gradient, SHARES),
    "integrated_gradients": Method(integrated_gradients, SHARES),
    "guided_backprop": Method(guided_backprop),
    "deconvolution": Method(deconvolution),
    "lrp": Method(lrp, SHARES),
    "deeplift": Method(deeplift, SHARES),
    "occlusion": Method(occlusion, DIFFERENCES, needs_gradient=False),
    "feature_permutation": Method(feature_permutation, DIFFERENCES, needs_gradient=False),
    "shapley": Method(shapley, DIFFERENCES, needs_gradient=False),
}

NOISY: Mapping[str, Method] = {
    "smoothgrad": Method(partial(noisy_maps, mean_of)),
    "smoothgrad_sq": Method(partial(noisy_maps, mean_square_of)),
    "vargrad": Method(partial(noisy_maps, variance_of)),
}
"""Methods that are made of the maps of another one: they are called with it and its name too."""
