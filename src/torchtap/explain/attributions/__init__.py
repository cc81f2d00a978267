"""Attribution: what each element of a value adds to a score.

In the order in which it is read:

- ``request``: a method with its settings. ``place``: a tensor among the inputs or a site of the
  model, read and replaced by ``site_value``. ``variable``: the score as a function of it.
- ``found``: what a method returns. ``many``: many runs, several in one forward.
- Methods by gradients: ``gradients``, ``integrated``, ``noise``.
- Methods by taking parts away: ``feature_mask``, ``perturbation``, ``shapley``.
- Methods by other rules of the backward: ``operations`` between value and score, ``rectifiers``
  with ``likeness``, ``propagation``.
"""
