"""Situations in which PyTorch raises, by topic: what each means, and the ways out.

Each file has a table ``SITUATIONS``: name of a message (:mod:`torchtap.failures.messages`)
-> a :class:`~torchtap.failures.situation_row.SituationRow`, or a function where the sentence has to
be computed. A new situation is a pattern there, a row here, and a program in
``tests/support/error_programs``, from which ``docs/reference/errors/`` is made.
"""

from __future__ import annotations

from torchtap.failures.catalogue import (
    arguments,
    attention,
    backward,
    batches,
    binary_losses,
    broadcasting,
    compilers,
    concatenations,
    conversions,
    creation,
    dimensions,
    draws,
    dtypes_and_devices,
    elements,
    equations,
    expansions,
    functions,
    hooks,
    in_place,
    indices,
    inference,
    layers,
    layouts,
    leaves,
    loaders,
    loading,
    loss_arguments,
    loss_shapes,
    losses,
    members,
    modules,
    none_gradients,
    normalization,
    not_tensors,
    numbers,
    objects,
    optimizers,
    overwritten,
    plain_objects,
    products,
    ranks,
    refused,
    resampling,
    reshapes,
    scripts,
    second_backwards,
    sequences,
    several_views,
    sparse_tensors,
    spectra,
    state_dicts,
    systems,
    trainings,
    transforms,
    values_given,
)
from torchtap.failures.situation_row import Situation

TOPICS: dict[str, dict[str, Situation]] = {
    topic.__name__.rpartition(".")[2]: topic.SITUATIONS
    for topic in (
        arguments, attention, backward, batches, binary_losses, broadcasting, compilers,
        concatenations, conversions, creation, dimensions, draws, dtypes_and_devices, elements,
        equations, expansions, functions, hooks, in_place, indices, inference, layers, layouts,
        leaves, loaders, loading, loss_arguments, loss_shapes, losses, members, modules,
        none_gradients, normalization, not_tensors, numbers, objects, optimizers, overwritten,
        plain_objects, products, ranks, refused, resampling, reshapes, scripts, second_backwards,
        sequences, several_views, sparse_tensors, spectra, state_dicts, systems, trainings,
        transforms, values_given,
    )
}  # fmt: skip
"""Topic, the name of its file -> its situations."""
SITUATIONS: dict[str, Situation] = {
    name: one for topic in TOPICS.values() for name, one in topic.items()
}
"""Name of a message -> what it means."""
