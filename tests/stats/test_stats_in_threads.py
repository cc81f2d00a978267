"""``tt.Stats`` of a model that several threads run."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt


class _Naming(nn.Module):
    """Returns its input under a name that no call had before."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"same": 2 * x, f"new{next(self.numbers)}": x}


@pytest.mark.usefixtures("switches_often", "kernel")
def test_sites_that_threads_bring_at_once_are_all_measured() -> None:
    model, x, each, num_threads = _Naming(), torch.ones(4), 60, 4
    with tt.watch(model, "*:output", to=tt.Stats()) as w:
        threads = [
            threading.Thread(target=lambda: [model(x) for _ in range(each)])
            for _ in range(num_threads)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert not w.absent  # Another thread may ask meanwhile.
            _ = w.run.sites
        for thread in threads:
            thread.join()
    number = each * num_threads
    assert len(w.run.sites) == number + 1
    same = w.run.stats(".:output[same]")
    assert (same.numel, same.mean) == (4 * number, 2.0)
    assert all(w.run.stats(f".:output[new{n}]").numel == 4 for n in range(number))
