"""Situations in which PyTorch raises, by topic: what each means, and the ways out.

Each file has a table ``SITUATIONS``: name of a message (:mod:`torchtap.failures.messages`) -> a
function of the failure and the parts of the message. A new situation is a pattern there, a function
here, and a program in ``tests/support/error_programs``, from which ``docs/errors.md`` is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torchtap.failures.catalogue import (
    arguments,
    backward,
    dtypes_and_devices,
    functions,
    hooks,
    in_place,
    indices,
    inference,
    leaves,
    losses,
    modules,
    none_gradients,
    normalization,
    products,
    shapes,
    systems,
)
from torchtap.failures.failure import Explanation, Failure
from torchtap.failures.messages import Found

Situation = Callable[[Failure, re.Match[str]], Explanation]

SITUATIONS: dict[str, Situation] = {
    **arguments.SITUATIONS,
    **backward.SITUATIONS,
    **dtypes_and_devices.SITUATIONS,
    **functions.SITUATIONS,
    **hooks.SITUATIONS,
    **in_place.SITUATIONS,
    **indices.SITUATIONS,
    **inference.SITUATIONS,
    **leaves.SITUATIONS,
    **losses.SITUATIONS,
    **modules.SITUATIONS,
    **none_gradients.SITUATIONS,
    **normalization.SITUATIONS,
    **products.SITUATIONS,
    **shapes.SITUATIONS,
    **systems.SITUATIONS,
}


def explanation_of(failure: Failure, found: Found) -> Explanation:
    """Return what a message means in a failure."""
    return SITUATIONS[found.name](failure, found.match)
