"""``tt.compare``: in what two runs, or two modules, differ, which call departs first, and why.

- :mod:`~torchtap.diagnosis.comparison.compare`: the public function.
- Two runs: ``step_calls`` (the calls of one step), ``alignment`` (which call of one is which of the
  other; ``renaming`` and ``traits`` help it), ``distance`` and ``rounding`` (how far, and how far
  rounding explains it), ``run_rows``.
- Two modules: ``two_modules`` runs both (``live_side``), ``live_step`` compares them, ``feeding``
  gives one the inputs of the other, and ``experiments`` finds what makes the difference vanish
  (``parameter_pairs`` knows whose weights are whose).
- ``first_divergence`` names the row; ``result`` holds what came out, ``show_comparison`` prints it.
"""
