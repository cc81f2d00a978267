"""How a run is kept and read again: in memory, or in one safetensors file.

In the order in which it is read:

- :mod:`~torchtap.runs.run`: the face of a run. :mod:`~torchtap.runs.contents`: what it holds at one
  moment. :mod:`~torchtap.runs.select`: from text to sites.
- :mod:`~torchtap.runs.records`: records as columns. :mod:`~torchtap.runs.memory`: ``tt.Memory``.
- :mod:`~torchtap.runs.file`: a run in a file, with :mod:`~torchtap.runs.packed` (its series) and
  :mod:`~torchtap.runs.values` (nested values). :mod:`~torchtap.runs.listing`: what is in it,
  without torch.
- :mod:`~torchtap.runs.table` and :mod:`~torchtap.runs.modules`: rows per site and per module.
  The other modules print them.
- :mod:`~torchtap.runs.scalars`: what a training logs. ``merging/``: the runs of all ranks as one.
"""
