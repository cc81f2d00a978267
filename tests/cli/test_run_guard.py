"""``torchtap run --guard``: a script that knows nothing of it ends at the first NaN or Inf."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchtap as tt
from torchtap.diagnosis.origins.origin import origin_of

_SCRIPT = """
import sys
import torch
from torch import nn


class Scores(nn.Module):
    def forward(self, x):
        return torch.log(x)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 4), nn.Softplus(), Scores(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(6):
    x = torch.full((3, 2), float("-1e30") if number == 4 and "bad" in sys.argv else 1.0)
    try:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    except ArithmeticError:
        if "caught" not in sys.argv:
            raise
print("the end")
sys.exit(7 if "seven" in sys.argv else 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "code"),
    [("", 0), ("seven", 7), ("bad", 1), ("bad caught", 1), ("bad caught seven", 7)],
)
def test_the_exit_code_says_whether_something_was_found(
    tmp_path: Path, said: str, code: int
) -> None:
    words = tuple(said.split())
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torchtap", "run", "--guard", str(script), *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(tt.__file__).parents[1])},
    )
    assert done.returncode == code, done.stderr
    is_bad = "bad" in words
    said_often = done.stderr.count("In the forward, log in 2 made the first Inf")
    assert said_often == is_bad, done.stderr  # By the traceback, or after the end: once.
    assert ("NonFiniteError" in done.stderr) == (words == ("bad",))
    assert ("the end" in done.stdout) == (words != ("bad",))
    run = tt.open(tmp_path / "run.safetensors")
    kept = [run.labels(step)["origin"] for step in range(5) if "origin" in run.labels(step)]
    assert len(kept) == is_bad
    if is_bad:
        origin = origin_of(json.loads(kept[0]))
        assert (origin.code, len(origin.file_hash)) == ("return torch.log(x)", 64)
        assert Path(origin.file).name == "train.py"
