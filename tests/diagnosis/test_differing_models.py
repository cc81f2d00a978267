"""Models that differ in one thing: it comes first, and nothing where nothing differs."""

from __future__ import annotations

import pytest
import torch
from differing_models import SITUATIONS, Situation, wrong
from differing_models.strangers import SITUATIONS as STRANGERS

import torchtap as tt


@pytest.mark.slow
@pytest.mark.parametrize("situation", [*SITUATIONS, *STRANGERS], ids=lambda each: each.name)
def test_the_planted_difference_comes_first(situation: Situation) -> None:
    two = situation.build()
    torch.manual_seed(0)
    comparison = tt.compare(two.a, two.b, *two.inputs, map=situation.map)
    assert wrong(situation, comparison) == []
