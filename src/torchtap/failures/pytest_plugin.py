"""``pytest --torchtap-explain``: what PyTorch raises in a test gets the note of torchtap.

pytest loads this file with every run of an environment that has torchtap, so it imports nothing of
PyTorch until a test fails and the option is given.
"""

from __future__ import annotations

import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("torchtap").addoption(
        "--torchtap-explain",
        action="store_true",
        help="say below an error of PyTorch at which module and line it came, and what to do",
    )


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Add the note before pytest turns the exception into text.

    No wrapper, and not the first: a plugin of pytest has put what a ``unittest.TestCase`` raised
    into the call by then. It returns nothing, so that pytest makes the report.
    """
    is_asked = item.config.getoption("torchtap_explain") and "torch" in sys.modules
    if call.excinfo is not None and is_asked:
        from torchtap.failures.added_notes import add_notes

        add_notes(call.excinfo.value)
