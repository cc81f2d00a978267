"""Maps of what decided a network's output, and how far to trust them.

In the order in which it is read:

- :mod:`~torchtap.explain.cam` and :mod:`~torchtap.explain.attribute`: the two doors.
  :mod:`~torchtap.explain.check`: how far to trust what came out.
- :mod:`~torchtap.explain.subject`: a model and its inputs, run again and again without a trace.
  :mod:`~torchtap.explain.target`: the number of each row that is explained.
  :mod:`~torchtap.explain.again`: how a map is made anew, with another model or other inputs.
  :mod:`~torchtap.explain.keywords`: misspelt arguments.
- Causes of silently wrong maps, found by running the model: :mod:`~torchtap.explain.rows` and
  :mod:`~torchtap.explain.twice` (a dimension that does not count the rows of the batch),
  :mod:`~torchtap.explain.spoiled` (a value that the model reads by another name too),
  :mod:`~torchtap.explain.same_scores` (rows that change each other's scores).
- ``cams/``: class activation maps. ``attributions/``: attribution. ``maps/``: what both return.
  ``checks/``: what a check measures.
"""
