"""Graphs of tensors and of executions, as data and as pictures.

In the order in which it is read:

- :mod:`~torchtap.graphs.nodes`: nodes, edges, calls: plain data.
- :mod:`~torchtap.graphs.autograd`, :mod:`~torchtap.graphs.groups`, :mod:`~torchtap.graphs.order`:
  the walk through autograd's nodes, which module made each, and in which order backward runs them.
- :mod:`~torchtap.graphs.trace`, :mod:`~torchtap.graphs.recorded`: an execution, followed while it
  runs, or read from a run.
- :mod:`~torchtap.graphs.reach`, :mod:`~torchtap.graphs.cuts`: which parameters a backward comes
  to, and where gradients are cut off.
- :mod:`~torchtap.graphs.graph`, :mod:`~torchtap.graphs.door`: what is asked, and ``tt.graph``.
- :mod:`~torchtap.graphs.tree`, :mod:`~torchtap.graphs.picture`, :mod:`~torchtap.graphs.layout`:
  what repeats is folded, what is shown is chosen, and boxes are placed.
- :mod:`~torchtap.graphs.pictures`: files.
"""
