"""Why PyTorch raised: ``tt.explain_errors``, and the command line's own errors.

``README.md`` follows an exception through these files, in the order in which they are read:

- :mod:`~torchtap.failures.explain_errors`: the door: the block, and
  :mod:`~torchtap.failures.explained_everywhere`, the hooks for what nothing catches
  (``%load_ext torchtap``; under pytest :mod:`~torchtap.failures.pytest_plugin`).
- :mod:`~torchtap.failures.added_notes`: the note on the exception, as text.
- :mod:`~torchtap.failures.message_patterns`: names PyTorch's messages; the one reader of them.
- :mod:`~torchtap.failures.catalogue`: the situations, by topic, as rows
  (:mod:`~torchtap.failures.situation_row`).
- :mod:`~torchtap.failures.failure`: the facts of one exception: its frames
  (:mod:`~torchtap.failures.traceback_frame`), its modules (:mod:`~torchtap.failures.module_names`),
  the tensors of the operation and what made them (:mod:`~torchtap.failures.operands`,
  :mod:`~torchtap.failures.assignments`), and its source
  (:mod:`~torchtap.failures.parsed_source`).
- :mod:`~torchtap.failures.failed_call`: which call of a module it was, of several.
- :mod:`~torchtap.failures.graph_reading`, :mod:`~torchtap.failures.writes`,
  :mod:`~torchtap.failures.graph_cuts`, :mod:`~torchtap.failures.gradients_read`: what the autograd
  graph and the source say of a backward that failed.
- :mod:`~torchtap.failures.recording`: what ``record=True`` notes of writes in place.
"""
