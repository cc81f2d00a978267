"""The setting of Dynamo that makes it look at hook tables."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import torchtap as tt


@pytest.mark.usefixtures("fresh_compiler")
def test_a_watch_that_was_never_closed_puts_the_compilers_setting_back() -> None:
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    model = nn.Sequential(nn.Linear(2, 2))
    w = tt.watch(model, "0")
    model(torch.ones(1, 2))
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    del w, model
    gc.collect()
    assert torch._dynamo.config.skip_nnmodule_hook_guards is before
