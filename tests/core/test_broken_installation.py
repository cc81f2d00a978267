"""Importing from torchtap where something of what it needs is missing."""

from __future__ import annotations

import subprocess
import sys

import torchtap

_BROKEN = """
import torch
del torch.futures  # core/torch_private.py names it when it is imported.
import torchtap as tt
"""


def _run(program: str) -> str:
    words = [sys.executable, "-c", _BROKEN + program]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_the_cause_is_named_where_a_name_cannot_be_imported() -> None:
    said = _run("from torchtap import watch")
    last = said.strip().splitlines()[-1]
    assert last.startswith(
        "ImportError: torchtap.capture.watch could not be imported with torchtap"
    )
    assert "has no attribute 'futures'" in last and "torchtap selfcheck" in last
    assert "cannot import name" not in said


def test_hasattr_does_not_deny_what_dir_lists() -> None:
    said = _run(
        "assert 'watch' in dir(tt)\n"
        "try:\n    print('denied', hasattr(tt, 'watch'))\n"
        "except ImportError as error:\n    print('said', 'futures' in str(error))\n"
    )
    assert said.strip() == "said True"


def test_every_name_that_dir_lists_is_there() -> None:
    assert all(hasattr(torchtap, name) for name in dir(torchtap))


def test_a_name_that_there_never_was_is_an_attribute_error() -> None:
    assert not hasattr(torchtap, "wacht")
