"""Moves what autograd saves for backward, or makes it smaller.

- :mod:`~torchtap.moving.form`: how a tensor lies in memory, and who is who.
- :mod:`~torchtap.moving.parcel`: one stretch of saved memory, owned by the graph.
- :mod:`~torchtap.moving.tiers`, :mod:`~torchtap.moving.slab`,
  :mod:`~torchtap.moving.streams`, :mod:`~torchtap.moving.codecs`: where it goes.
- :mod:`~torchtap.moving.session`: what goes when, within a budget, and comes back.
- :mod:`~torchtap.hooks.scope`: when our hooks are on.
- :mod:`~torchtap.moving.forks`: whether this is a child of the process that began.
- :mod:`~torchtap.moving.tally`: what it gained and what it cost.
"""
