"""Maps of what decided a network's output, and how far to trust them.

In the order in which it is read:

- :mod:`~torchtap.explain.cam` and :mod:`~torchtap.explain.attribute`: the two doors.
  :mod:`~torchtap.explain.check`: how far to trust what came out.
- :mod:`~torchtap.explain.subject`: a model and its inputs, run again and again without a trace.
  :mod:`~torchtap.explain.target`: the number of each row that is explained.
  :mod:`~torchtap.explain.recipe`: how a map is made anew, with another model or other inputs.
  :mod:`~torchtap.explain.unknown_names`: misspelt methods and arguments.
- :mod:`~torchtap.explain.site_probe`: the one way to the value at a site of the model.
- Causes of silently wrong maps, found by running the model:
  :mod:`~torchtap.explain.doubled_batch_probe` (a dimension that does not count the rows of the
  batch), :mod:`~torchtap.explain.shared_read_probe` (a value that the model reads elsewhere
  too), :mod:`~torchtap.explain.same_scores` (rows that change each other's scores).
- ``cams/``: class activation maps. ``attributions/``: attribution. ``maps/``: the result of both.
  ``checks/``: the parts of a check. ``README.md``: the way through all of it.
"""
