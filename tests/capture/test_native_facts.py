"""Facts of modules that are read natively, while code of others changes the modules."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.stats.kernels import native

pytestmark = pytest.mark.skipif(not native.takes_calls(), reason="no native kernel")

_CHANGED_MEANWHILE = """
import gc, torch, weakref, torchtap as tt
from torch import nn
from torch.overrides import TorchFunctionMode
from torchtap.capture.training_facts import _kernel

class Dropping(TorchFunctionMode):
    '''Drops the parameters of a module as one of them is asked for anything.'''
    def __torch_function__(self, function, types, args=(), kwargs=None):
        layer.__dict__["_parameters"] = {}
        gc.collect()
        return function(*args, **(kwargs or {}))

kernel, layer = _kernel(), nn.Linear(3, 2)
with Dropping():
    assert kernel.read_modules({"": layer})[1] == {"": 8}

layer = nn.Linear(3, 2)
with Dropping():
    state = kernel.read_state({"": weakref.ref(layer)})
assert state == (["", True], ["", "weight", True, "", "bias", True])

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):  # The collector runs it.
        layer.__dict__["scale"] = float("2.5")

layer, found = nn.Identity(), set()
gc.collect()
gc.set_threshold(1)
for _ in range(50):
    Cycle()
    layer.__dict__["scale"] = float("1.5")
    found.add(kernel.read_modules({"": layer})[0][""]["scale"])
assert found <= {1.5, 2.5}, found
"""


def test_what_is_taken_from_a_module_while_it_is_read_is_read() -> None:
    # Memory that was freed holds other bytes at once.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "90"}
    done = subprocess.run(
        [sys.executable, "-c", _CHANGED_MEANWHILE],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_an_interrupt_while_a_model_is_compared_is_raised() -> None:
    interrupts = list[BaseException]()

    class Named(type):
        def __getattribute__(cls, name: str) -> object:
            if name == "__name__" and interrupts:
                raise interrupts.pop()
            return super().__getattribute__(name)

    class Layer(nn.Module, metaclass=Named):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    model = Layer()
    for _ in range(2):
        with tt.watch(model, "*:output"):
            model(torch.ones(1))
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        tt.watch(model, "*:output")
