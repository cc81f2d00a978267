"""Finds the runs under a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from torchtap.core.errors import RunError
from torchtap.runs.file_name import ENDING
from torchtap.runs.store.layout import attempts_in, is_attempt, is_run_folder

_DEPTH = 4
"""Folders below the one that was given in which runs are looked for."""
_MOST = 1000
"""Runs at most."""


def is_run(path: Path) -> bool:
    """Return whether a path is one run: a file, or a folder of ``tt.Disk``, or a part of it."""
    if not path.is_dir():
        return True
    return is_attempt(path) or is_run_folder(path) or bool(attempts_in(path))


def runs_under(folder: Path) -> list[Path]:
    """The runs in a folder and the folders in it, by name, 1,000 at most; links are not followed.

    Folders that may not be read are passed over, as files of other kinds are.
    """
    runs: list[Path] = []
    for path in _walk(folder, _DEPTH):
        runs.append(path)
        if len(runs) == _MOST:
            break
    return runs


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda one: one.name)
    except OSError:
        return
    for one in entries:
        path = Path(one.path)
        if one.is_dir(follow_symlinks=False):
            if is_run(path):
                yield path
            elif depth:
                yield from _walk(path, depth - 1)
        elif one.name.endswith(ENDING) and one.is_file(follow_symlinks=False) and _has_run(path):
            yield path


def _has_run(path: Path) -> bool:
    """Return whether a safetensors file has a run in it, by its header."""
    from torchtap.runs.single_file.description import read_description

    try:
        read_description(path)
    except (OSError, RunError):
        return False
    return True
