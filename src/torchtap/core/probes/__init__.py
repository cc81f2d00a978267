"""Tries each private name of PyTorch on a small example: ``torchtap selfcheck``, and the tests.

:mod:`~torchtap.core.probes.probes` has the table of all, and some;
:mod:`~torchtap.core.probes.autograd_probes`, :mod:`~torchtap.core.probes.frame_probes` and
:mod:`~torchtap.core.probes.mode_probes` have those of one kind.
"""
