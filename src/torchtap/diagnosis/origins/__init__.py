"""The operation that made the first value that is not finite: ``tt.guard`` and ``tt.locate``."""
