"""Situations in which PyTorch raises, by topic: what each means, and the ways out.

Each file has a table ``SITUATIONS``: name of a message (:mod:`torchtap.failures.message_patterns`)
-> a :class:`~torchtap.failures.situation_row.SituationRow`, or a function where the sentence has to
be computed. A new situation is a pattern there, a row here, and a program in
``tests/support/error_programs``, from which ``docs/errors.md`` is made.
"""

from __future__ import annotations

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
from torchtap.failures.situation_row import Situation

_TOPICS = (
    arguments, backward, dtypes_and_devices, functions, hooks, in_place, indices, inference,
    leaves, losses, modules, none_gradients, normalization, products, shapes, systems,
)  # fmt: skip
SITUATIONS: dict[str, Situation] = {
    name: one for topic in _TOPICS for name, one in topic.SITUATIONS.items()
}
"""Name of a message -> what it means."""
