"""Programs that raise find PyTorch as in a process of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def distributions_check_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile``, in a test before, ends these checks for the whole process."""
    monkeypatch.setattr("torch.distributions.Distribution._validate_args", True)
