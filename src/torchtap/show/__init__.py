"""Shows a run: ``tt.report`` as one offline page, ``torchtap top`` and ``serve`` while it grows."""
