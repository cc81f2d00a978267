"""Functions that find where a training went wrong, and in what two runs differ.

- :mod:`~torchtap.diagnosis.origins`: ``tt.guard`` and ``tt.locate``, the operation that made the
  first non-finite value.
- :mod:`~torchtap.diagnosis.calls`: ``tt.record_call``, ``tt.replay`` and ``tt.audit``, one call of
  one module.
- :mod:`~torchtap.diagnosis.comparison`: ``tt.compare``, two runs or two modules.

Rules over a run (``tt.diagnose``) stand in :mod:`torchtap.runs.rules`: they need only the run.
"""
