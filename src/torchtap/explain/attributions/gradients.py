"""The gradient of the score, and its product with the value."""

from __future__ import annotations

from torchtap.explain.attributions.found import Found, wide
from torchtap.explain.attributions.variable import Variable


def gradient(variable: Variable) -> Found:
    """Simonyan et al., "Deep Inside Convolutional Networks" (2014), section 3, with its sign."""
    return Found(wide(variable.gradient(variable.value)))


def input_x_gradient(variable: Variable) -> Found:
    """Shrikumar et al., "Not Just a Black Box" (2016): each element times its gradient."""
    return Found(wide(variable.value) * wide(variable.gradient(variable.value)))
