"""``tt.verify`` on several ranks at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import run_on_two_ranks

ONE_RANK_IS_UNSTEADY = """
import os, warnings
import torch, torchtap as tt
from torch import distributed, nn

warnings.simplefilter("ignore")
distributed.init_process_group("gloo")
rank = distributed.get_rank()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
    def forward(self, x):
        self.calls += 1  # State that no proof can put back, on rank 0.
        total = x.sum().detach()
        distributed.all_reduce(total)
        return self.linear(x) + (self.calls if rank == 0 else 0) + total

model = Model()
found = tt.verify(model, torch.ones(2, 4))
assert bool(found) == (rank == 1), found
assert bool(found.unsteady) == (rank == 0)
"""


@pytest.mark.slow
def test_ranks_run_equally_often_where_one_alone_is_unsteady(tmp_path: Path) -> None:
    run_on_two_ranks(tmp_path, ONE_RANK_IS_UNSTEADY)
