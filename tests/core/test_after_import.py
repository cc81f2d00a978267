"""Functions that wait for an import."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from torchtap.core.after_import import after_import


def test_each_of_several_that_wait_for_one_module_is_called_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awaited_module.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[str] = []
    after_import("awaited_module", lambda: called.append("first"))
    after_import("awaited_module", lambda: called.append("second"))
    leave = after_import("awaited_module", lambda: called.append("left"))
    leave()
    module = importlib.import_module("awaited_module")
    assert module.number == 1
    assert sorted(called) == ["first", "second"]
    importlib.reload(module)
    assert len(called) == 2
