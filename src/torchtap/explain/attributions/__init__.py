"""Attribution: what each element of a value adds to a score.

In the order in which it is read:

- ``method_request``: a method of ``method_table`` with its settings. ``explained_input``: a tensor
  among the inputs or a site of the model, read and replaced by ``site_value``. ``variable``: the
  score as a function of it.
- ``attribution_result``: the result of a method. ``many_runs``: many runs, several in one forward.
  ``score_rounding``: results that are rounding alone.
- Methods by gradients: ``gradient_methods``, ``noise``.
- Methods by taking parts away: ``feature_mask``, ``perturbation``, ``shapley``.
- Methods by other rules of the backward: ``operations`` between value and score,
  ``guided_backprop`` with ``rectifier_lookalikes``, ``propagation``.
"""
