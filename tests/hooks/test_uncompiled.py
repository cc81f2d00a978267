"""The compiler runs again, in whatever order the threads end that had it step aside."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.hooks.uncompiled import uncompiled


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_blocks_in_two_threads_that_overlap_leave_the_compiler_on(first_ends_first: bool) -> None:
    begun, ends = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def run(number: int) -> None:
        with uncompiled():
            begun[number].set()
            assert ends[number].wait(10)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for number, thread in enumerate(threads):
        thread.start()
        assert begun[number].wait(10)
    for number in (0, 1) if first_ends_first else (1, 0):
        assert is_compiling_off()
        ends[number].set()
        threads[number].join()
    assert not is_compiling_off()


@pytest.mark.usefixtures("fresh_compiler")
def test_features_in_many_threads_leave_the_compiler_on() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    torch.compile(model, backend="eager")(torch.ones(1, 3))
    features = tt.features(model, "0")
    threads = [
        threading.Thread(target=lambda: [features(torch.ones(1, 3)) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not is_compiling_off()


@pytest.mark.usefixtures("fresh_compiler")
def test_an_error_inside_leaves_the_compiler_on() -> None:
    with pytest.raises(KeyError), uncompiled():
        raise KeyError
    assert not is_compiling_off()


def is_compiling_off() -> bool:
    """Return whether Dynamo runs what it is given as it is written."""
    traced: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        traced.append(1)
        return graph

    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
    return not traced
