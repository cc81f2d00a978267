"""Errors about what a model does not have name what is near."""

from __future__ import annotations

import pytest
from torch import nn

import torchtap as tt


def test_a_class_that_is_nowhere_is_named() -> None:
    with pytest.raises(tt.SiteError, match="has no module of class 'Conv2d'"):
        tt.watch(nn.Sequential(nn.Linear(1, 1)), nn.Conv2d)
