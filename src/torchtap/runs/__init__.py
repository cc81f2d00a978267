"""Runs, kept and read again: in memory, in one safetensors file, or in a folder.

In the order in which it is read:

- :mod:`~torchtap.runs.run`: the face of a run. :mod:`~torchtap.runs.source`: where it is read from.
  :mod:`~torchtap.runs.contents`: its contents at one moment, with :mod:`~torchtap.runs.meta`,
  :mod:`~torchtap.runs.step_notes` and :mod:`~torchtap.runs.scalars`.
  :mod:`~torchtap.runs.select`: from text to sites.
- :mod:`~torchtap.runs.records`: records as columns. :mod:`~torchtap.runs.memory`: ``tt.Memory``.
  :mod:`~torchtap.runs.site_rows` and :mod:`~torchtap.runs.row_dataset`: rows of a site.
- ``single_file/`` and ``store/``: a run in a file, a run in a folder. Both have checksums.
  :mod:`~torchtap.runs.open_run`: ``tt.open`` of both. :mod:`~torchtap.runs.inventory`: what is in
  them, without torch. :mod:`~torchtap.runs.export`: to others.
- ``tables/``: rows per site and per module. :mod:`~torchtap.runs.show` prints a run.
- ``merging/``: the runs of all ranks as one.
"""
