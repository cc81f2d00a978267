"""A watch holds little of a model, and not for long."""

from __future__ import annotations

import gc
import weakref

from torch import nn

import torchtap as tt


def test_a_watch_that_was_never_closed_is_freed_with_its_model() -> None:
    model = nn.Linear(2, 2)
    gone = weakref.ref(tt.watch(model, "*")._engine.calls)
    del model
    gc.collect()
    assert gone() is None
