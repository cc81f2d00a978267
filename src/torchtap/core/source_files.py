"""Files of source code: whose they are, and how they are named in a message."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
from hashlib import sha256
from pathlib import Path
from types import FrameType

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
"""Folder of PyTorch."""
OURS = str(Path(__file__).parents[1]) + os.sep
"""Folder of torchtap."""
STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
"""Folder of Python's standard library."""
_PACKAGES = ("site-packages", "dist-packages")
_MODELS = os.path.join(OURS, "testing") + os.sep
"""Models of the zoo, which are torchtap's and stand for a user's."""


def is_of_package(file: str) -> bool:
    """Return whether code is of an installed package."""
    return any(f"{os.sep}{name}{os.sep}" in file for name in _PACKAGES)


def is_of_standard(file: str) -> bool:
    """Return whether code is of Python's standard library."""
    return file.startswith((STANDARD, "<frozen")) and not is_of_package(file)


@functools.cache
def is_of_library(file: str) -> bool:
    """Return whether code is of PyTorch, torchtap, the standard library or an installed package."""
    return file.startswith((TORCH, OURS, STANDARD, "<frozen")) or is_of_package(file)


@functools.cache
def is_of_model(file: str) -> bool:
    """Return whether code may be that of a model or of a training: of whatever runs PyTorch."""
    if file.startswith(("<", TORCH)) or is_of_standard(file):
        return False
    return not file.startswith(OURS) or file.startswith(_MODELS)


def shown_file(file: str) -> str:
    """Return a file as it is named in a note: below the current folder, or below those of packages.

    A cell of a notebook is named as IPython names it: ``Cell In[3]``.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    cell = None if shell is None else shell.compile.format_code_name(file)
    if cell:
        return " ".join(cell)
    for name in _PACKAGES:
        _, found, below = file.rpartition(f"{os.sep}{name}{os.sep}")
        if found:
            return below
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):
        return file


def line_text(file: str, line: int, frame: FrameType | None = None) -> str:
    """Return a line of source without its indent; empty where there is none.

    Args:
        file: that it stands in.
        line: its number, from 1.
        frame: that runs it, whose loader may know the source of a file that is on no disk.
    """
    return linecache.getline(file, line, None if frame is None else frame.f_globals).strip()


def hash_of(file: str) -> str:
    """SHA-256 of a file of source, in hexadecimal; empty where there is no file to read."""
    try:
        return sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
