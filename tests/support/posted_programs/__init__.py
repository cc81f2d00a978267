"""Programs as people posted them, each with its page, and a verdict on the note that it gets.

``python benchmarks/errors_outside.py`` writes the table of all of them.
"""

from __future__ import annotations

from posted_programs import data, graphs, models, trainings
from posted_programs.posted import Posted, Verdict, verdict

POSTED: list[Posted] = [*graphs.POSTED, *data.POSTED, *models.POSTED, *trainings.POSTED]

__all__ = ["POSTED", "Posted", "Verdict", "verdict"]
