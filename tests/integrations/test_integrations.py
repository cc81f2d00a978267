"""The integrations import their libraries late, and only their own."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from pages import ROOT

import torchtap.integrations
from torchtap.integrations.accelerate import AccelerateWatch
from torchtap.integrations.aim_log import AimLog
from torchtap.integrations.lightning import LightningEvents
from torchtap.integrations.mlflow_log import MlflowLog
from torchtap.integrations.tensorboard_log import TensorBoardLog
from torchtap.integrations.transformers_trainer import TrainerEvents
from torchtap.integrations.wandb_log import WandbLog

LOGS = [TensorBoardLog, WandbLog, MlflowLog, AimLog]
NAMES = sorted(
    ["AccelerateWatch", "LightningWatch", "TrainerWatch", *(one.__name__ for one in LOGS)]
)
TRAINERS = ("lightning", "pytorch_lightning", "transformers", "accelerate")
FOREIGN = (*TRAINERS, "tensorboard", "wandb", "mlflow", "aim")


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_foreign_is_imported_before_it_is_asked_for() -> None:
    code = f"""
import sys, torchtap.integrations
print([name for name in ("torch", *{FOREIGN!r}) if name in sys.modules])
import torchtap.integrations.accelerate, torchtap.integrations.lightning
import torchtap.integrations.transformers_trainer
from torchtap.integrations import AccelerateWatch, AimLog, MlflowLog, TensorBoardLog, WandbLog
print([name for name in {FOREIGN!r} if name in sys.modules])
"""
    assert python(code).splitlines() == ["[]", "[]"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "package"),
    [("LightningWatch", "lightning"), ("TrainerWatch", "'transformers[torch]'")],
)
def test_without_its_package_the_error_says_what_to_install(name: str, package: str) -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({FOREIGN!r}))  # As if none were there.
try:
    from torchtap.integrations import {name}
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = python(code)
    assert said.startswith(f"MissingExtraError {name} is a callback of ")
    assert said.endswith(f"pip install {package}")


def test_the_names_are_listed_and_no_others_are_there() -> None:
    assert dir(torchtap.integrations) == torchtap.integrations.__all__ == NAMES
    with pytest.raises(AttributeError, match="has no attribute 'TrainerWach'"):
        _ = torchtap.integrations.TrainerWach


@pytest.mark.slow
@pytest.mark.parametrize("used", ["lightning.pytorch", "pytorch_lightning"])
def test_the_callback_is_of_the_package_that_the_program_uses(used: str) -> None:
    pytest.importorskip(used)
    code = f"""
import sys, {used} as L
from torchtap.integrations import LightningWatch
print(issubclass(LightningWatch, L.Callback), LightningWatch.__module__)
"""
    assert python(code) == "True torchtap.integrations"


def test_the_list_of_everything_public_says_what_their_docstrings_say() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    row = r"^\| \[`(\w+(?:Watch|Log))`\]\([^)]+\) \| (.*) \|$"
    rows = dict(re.findall(row, text, re.MULTILINE))
    classes: dict[str, type] = {
        "AccelerateWatch": AccelerateWatch,
        "LightningWatch": LightningEvents,
        "TrainerWatch": TrainerEvents,
        **{one.__name__: one for one in LOGS},
    }
    said = {name: inspect.getdoc(one) or "" for name, one in classes.items()}
    first = {name: one.partition("\n\n")[0].replace("\n", " ") for name, one in said.items()}
    assert rows == {name: one.replace("``", "`") for name, one in first.items()}
