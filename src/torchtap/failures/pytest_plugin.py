"""``pytest --torchtap-explain``: what PyTorch raises in a test gets the note of torchtap.

pytest loads this file with every run of an environment that has torchtap, so it imports nothing of
PyTorch until a test fails and the option is given.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("torchtap").addoption(
        "--torchtap-explain",
        action="store_true",
        help="say below an error of PyTorch at which module and line it came, and what to do",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Add the note before pytest turns the exception into text."""
    is_asked = item.config.getoption("torchtap_explain") and "torch" in sys.modules
    if call.excinfo is not None and is_asked:
        from torchtap.failures.added_notes import add_notes

        add_notes(call.excinfo.value)
    return (yield)
