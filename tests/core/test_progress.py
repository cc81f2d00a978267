"""Progress on stderr."""

from __future__ import annotations

import pytest

from torchtap.core import progress
from torchtap.core.progress import Progress


def test_work_inside_of_other_work_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)

    def work() -> None:
        with Progress("outer", 2, wanted=True) as outer:
            outer._timer.join()
            with Progress("inner", 5, wanted=True) as inner:
                inner.advance("inner")
            outer.advance("outer")

    work()
    said = capsys.readouterr().err
    assert "torchtap: outer" in said
    assert "inner" not in said
    with Progress("inner", 5, wanted=True) as alone:  # It shows once nothing is around it.
        alone._timer.join()
    assert "torchtap: inner" in capsys.readouterr().err
