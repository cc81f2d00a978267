"""``tt.merge``: the runs of all ranks of one training as one run.

In the order in which it is read:

- :mod:`~torchtap.runs.merging.merge`: the public function.
  :mod:`~torchtap.runs.merging.rank_runs`: whether the runs are of one training.
  :mod:`~torchtap.runs.merging.stages`: which stage of a pipeline each rank ran.
- :mod:`~torchtap.runs.merging.placement_rules`: a rule for each port and placement.
- :mod:`~torchtap.runs.merging.record_merge` (of what was kept) and
  :mod:`~torchtap.runs.merging.series_merge` (of what was measured, by
  :mod:`torchtap.stats.algebra`), with :mod:`~torchtap.runs.merging.row_comparison` and
  :mod:`~torchtap.runs.merging.state_merge`.
- :mod:`~torchtap.runs.merging.merge_absences`: what is not as it should be.
- :mod:`~torchtap.runs.merging.rank_numbers`: ``run.over_ranks``.
"""
