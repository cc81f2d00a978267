"""Arguments of the wrong kind are refused in words, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchtap as tt

ROWS = torch.ones(2, 3)
MODEL: Any = nn.Linear(3, 2)
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a step that is a number": (lambda: tt.locate(MODEL, 3), "step is int; expected a function"),  # type: ignore[arg-type]
    "a call that is a number": (lambda: tt.replay(3), "call is int; expected"),  # type: ignore[arg-type]
    "a path that is a number": (
        lambda: tt.record_call(MODEL, 3, ROWS),  # type: ignore[arg-type]
        "path is int; expected the path of a module",
    ),
    "a tolerance that is a word": (
        lambda: tt.compare(MODEL, MODEL, ROWS, tolerance="x"),  # type: ignore[arg-type]
        "tolerance is 'x'; expected a number",
    ),
    "a dtype of whole numbers": (
        lambda: tt.audit(MODEL, ROWS, dtypes="int8"),
        "dtypes has 'int8'; expected a floating dtype",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, said = WRONG[name]
    with pytest.raises(tt.TorchtapError, match=said):
        call()


def test_one_dtype_need_not_be_a_list() -> None:
    assert list(tt.audit(MODEL, ROWS, dtypes="float16")) == list(
        tt.audit(MODEL, ROWS, dtypes=["float16"])
    )
