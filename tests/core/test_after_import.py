"""Functions that wait for an import."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

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


def test_who_asks_only_for_the_spec_or_fails_to_import_ends_no_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asked_module.py").write_text("raise ValueError\n")
    monkeypatch.syspath_prepend(tmp_path)
    called: list[str] = []
    after_import("asked_module", lambda: called.append("first"))
    leave = after_import("asked_module", lambda: called.append("left"))
    specs = [importlib.util.find_spec("asked_module") for _ in range(2)]
    assert all(spec is not None for spec in specs)
    with pytest.raises(ValueError):
        importlib.import_module("asked_module")
    assert not called
    (tmp_path / "asked_module.py").write_text("number = 3\n\n")
    importlib.invalidate_caches()
    leave()
    assert importlib.import_module("asked_module").number == 3
    assert called == ["first"]


def test_an_import_that_goes_through_the_finders_meanwhile_asks_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sought_module.py").write_text("number = 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    leave = after_import("awaited_elsewhere", lambda: None)

    class Leaving:
        """Ends the waiting while an import goes on, as another thread would."""

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            leave()

    # The finder behind it, which follows the files, is the last one and would be passed over.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path[:-1], Leaving(), sys.meta_path[-1]])
    assert importlib.import_module("sought_module").number == 2
