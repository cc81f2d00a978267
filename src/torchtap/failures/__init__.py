"""Why PyTorch raised: ``tt.explain_errors``, and the command line's own errors.

In the order in which it is read:

- :mod:`~torchtap.failures.explain_errors`: the door: the block, and the note on the exception.
- :mod:`~torchtap.failures.messages`: PyTorch's messages, by name. The one place that reads them.
- :mod:`~torchtap.failures.source`: the source of what ran, parsed.
- :mod:`~torchtap.failures.failure`: what is known of one exception: where it was raised
  (:mod:`~torchtap.failures.frame`), what modules are called (:mod:`~torchtap.failures.names`), and
  the tensors of the operation with what made them (:mod:`~torchtap.failures.operands`, by
  :mod:`~torchtap.failures.assignments`).
- :mod:`~torchtap.failures.call_numbers`: which call of a module it was, of several.
- :mod:`~torchtap.failures.graph_reading`, :mod:`~torchtap.failures.writes`,
  :mod:`~torchtap.failures.cuts`: what the autograd graph and the source say of a backward that
  failed: what is freed or overwritten, which line wrote, where the graph was cut.
- :mod:`~torchtap.failures.gradients_read`: the gradients in an expression that are ``None``.
- :mod:`~torchtap.failures.recording`: what ``record=True`` notes of writes in place.
- :mod:`~torchtap.failures.catalogue`: the situations, by topic.
- :mod:`~torchtap.failures.note`: the note as text.
"""
