"""The flight recorder of a guard writes the last steps when something fires, and only then."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtap as tt
from torchtap.diagnosis.origins.origin import origin_of
from torchtap.testing import Net


def train(model: nn.Module, num_steps: int, guard: tt.Guard, bad: int = -1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(num_steps):
        optimizer.zero_grad()
        x = torch.full((2, 2), -1e30 if number == bad else float(number))
        loss = model(x).square().mean()
        loss.backward()
        guard.log(loss=loss, ids=[f"{number}a", f"{number}b"])
        optimizer.step()


def make() -> Net:
    torch.manual_seed(0)
    return Net(lambda m, x: m.fc(x).square(), fc=nn.Linear(2, 2))


def test_the_last_steps_are_written_when_something_is_not_finite(tmp_path: Path) -> None:
    model = make()
    torch.manual_seed(7)
    random = torch.get_rng_state()
    with (
        pytest.raises(tt.NonFiniteError),
        tt.guard(model, record=tmp_path / "crash.safetensors") as guard,
    ):
        train(model, 9, guard, bad=6)
    assert guard.recorded == tmp_path / "crash.safetensors"
    run = tt.open(guard.recorded)
    assert run.steps == [2, 3, 4, 5, 6]
    assert torch.equal(run.get(".:input", step=6), torch.full((2, 2), -1e30))
    assert torch.equal(run.get(".:input", step=5), torch.full((2, 2), 5.0))
    assert not run.get(".:output", step=6).isfinite().all()
    assert run.ids(5) == ["5a", "5b"]
    assert run.scalars("loss")[0][-2:] == [5, 6]
    labels = run.labels(6)
    origin = origin_of(json.loads(labels["origin"]))
    assert origin.text == guard.origin.text if guard.origin else False
    assert origin.ids == ("6a", "6b")
    held = json.loads(labels["random"])[0]["torch"]
    assert base64.b64decode(held) == random.numpy().tobytes()


def test_nothing_is_written_of_a_training_that_is_well(tmp_path: Path) -> None:
    model = make()
    before = signal.getsignal(signal.SIGTERM)
    with tt.guard(model, record=tmp_path / "crash.safetensors") as guard:
        train(model, 5, guard)
    assert guard.recorded is None
    assert not list(tmp_path.iterdir())
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_exception_writes_and_keeps_its_type(tmp_path: Path) -> None:
    model = make()
    with (
        pytest.raises(KeyError, match="mine"),
        tt.guard(
            model, record=tmp_path / "crash.safetensors", ring=tt.Stats(keep=3), where="*:output"
        ) as guard,
    ):
        train(model, 5, guard)
        raise KeyError("mine")
    assert guard.recorded is not None
    run = tt.open(guard.recorded)
    assert run.labels(4)["recorded"] == "KeyError: 'mine'"
    assert run.stats("fc:output").numel == 4


_PROGRAM = """
import os, signal, sys, torch, torchtap as tt
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tt.guard(model, record=sys.argv[1]):
    for number in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    os.kill(os.getpid(), signal.SIGTERM)
    print("went on")
"""


_IN_THE_MIDDLE = """
import os, signal, sys, torch, torchtap as tt

class Ring(tt.Memory):
    def contents(self):
        global is_sent
        if number == 2 and not is_sent:
            is_sent = True
            with self._lock:  # It arrives while the records of the step are made.
                os.kill(os.getpid(), signal.SIGTERM)
        return super().contents()

number, is_sent = 0, False
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tt.guard(model, record=sys.argv[1], ring=Ring(max_steps=4)):
    while True:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        number += 1
"""


@pytest.mark.parametrize("program", [_PROGRAM, _IN_THE_MIDDLE], ids=["outside", "in the middle"])
def test_a_signal_writes_and_ends_the_process(tmp_path: Path, program: str) -> None:
    script, path = tmp_path / "train.py", tmp_path / "crash.safetensors"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1])},
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "went on" not in done.stdout
    run = tt.open(path)
    assert run.steps[-1] >= 2
    assert run.labels(run.steps[-1])["recorded"] == "SIGTERM"
