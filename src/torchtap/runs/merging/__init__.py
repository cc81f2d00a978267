"""``tt.merge``: the runs of all ranks of one training as one run.

In the order in which it is read:

- :mod:`~torchtap.runs.merging.merge`: the public function.
  :mod:`~torchtap.runs.merging.sources`: whether the runs are of one training.
  :mod:`~torchtap.runs.merging.stages`: which stage of a pipeline each rank ran.
- :mod:`~torchtap.runs.merging.rules`: a rule for each port and placement.
- :mod:`~torchtap.runs.merging.records` (what was kept) and :mod:`~torchtap.runs.merging.series`
  (what was measured), with :mod:`~torchtap.runs.merging.rows`,
  :mod:`~torchtap.runs.merging.summary` and :mod:`~torchtap.runs.merging.states`.
- :mod:`~torchtap.runs.merging.findings`: what is not as it should be.
- :mod:`~torchtap.runs.merging.gather_numbers`, :mod:`~torchtap.runs.merging.rank_numbers`:
  ``run.over_ranks``.
"""
