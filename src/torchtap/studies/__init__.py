"""Functions that run a model for the user and return a table.

In the order in which they are read:

- :mod:`~torchtap.studies.summary`: ``tt.summary``, shapes and costs module by module.
- :mod:`~torchtap.studies.verify`: ``tt.verify``, with :mod:`~torchtap.studies.true_values` (what
  one run of a model really computes) and :mod:`~torchtap.studies.twin` (the model run out of
  place, whose gradients are the truth), both by :mod:`~torchtap.studies.plain_hooks`.
- :mod:`~torchtap.studies.sweep`: ``tt.sweep``, one edit after another, and
  :mod:`~torchtap.studies.sweep_table`, which it returns. :mod:`~torchtap.studies.sweep_study` runs
  the model, several edits in one forward by :mod:`~torchtap.studies.sweep_rows`;
  :mod:`~torchtap.studies.sweep_log` is the file from which a sweep goes on, with
  :mod:`~torchtap.studies.fingerprint` (a number for what a value holds).
"""
