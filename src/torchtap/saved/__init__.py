"""Moves what autograd saves for backward, or makes it smaller.

- :mod:`~torchtap.saved.layout`: how a tensor lies in memory, and who is who.
- :mod:`~torchtap.saved.block`: one stretch of saved memory, owned by the graph.
- :mod:`~torchtap.saved.tiers`, :mod:`~torchtap.saved.spill_file`,
  :mod:`~torchtap.saved.streams`, :mod:`~torchtap.saved.codecs`: where it goes.
- :mod:`~torchtap.saved.engine`: what goes when, within a budget, and comes back.
- :mod:`~torchtap.hooks.scope`: when our hooks are on.
- :mod:`~torchtap.saved.forks`: whether this is a child of the process that began.
- :mod:`~torchtap.saved.offload_report`: what it gained and what it cost.
"""
