"""How a run is kept and read again: in memory, in one safetensors file, or in a folder.

In the order in which it is read:

- :mod:`~torchtap.runs.run`: the face of a run. :mod:`~torchtap.runs.contents`: what it holds at one
  moment. :mod:`~torchtap.runs.select`: from text to sites.
- :mod:`~torchtap.runs.records`: records as columns. :mod:`~torchtap.runs.memory`: ``tt.Memory``.
- :mod:`~torchtap.runs.file`: a run in a file, with :mod:`~torchtap.runs.packed` (its series) and
  :mod:`~torchtap.runs.values` (nested values). ``store/``: a run in a folder.
- :mod:`~torchtap.runs.open_run`: ``tt.open`` of both. :mod:`~torchtap.runs.list_runs`: what is in
  them, without torch, as a :mod:`~torchtap.runs.listing`.
- :mod:`~torchtap.runs.table` and :mod:`~torchtap.runs.modules`: rows per site and per module.
  The other modules print them.
- :mod:`~torchtap.runs.scalars`: what a training logs. ``merging/``: the runs of all ranks as one.
"""
