"""The public face as text: every public name with its signature, a line each.

``python tests/support/face.py`` writes it to ``tests/data/face.txt``, and a test compares the two:
what a user can call changes only where a diff of that file shows it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torchtap as tt
import torchtap.testing
from torchtap.integrations.accelerate import AccelerateWatch
from torchtap.integrations.aim_log import AimLog
from torchtap.integrations.lightning import LightningEvents
from torchtap.integrations.mlflow_log import MlflowLog
from torchtap.integrations.tensorboard_log import TensorBoardLog
from torchtap.integrations.transformers_trainer import TrainerEvents
from torchtap.integrations.wandb_log import WandbLog

# Without the base classes of the trainers, which need not be installed.
_INTEGRATIONS = {
    "AccelerateWatch": AccelerateWatch,
    "AimLog": AimLog,
    "LightningWatch": LightningEvents,
    "MlflowLog": MlflowLog,
    "TensorBoardLog": TensorBoardLog,
    "TrainerWatch": TrainerEvents,
    "WandbLog": WandbLog,
}
SNAPSHOT = Path(__file__).parents[1] / "data" / "face.txt"


def face() -> str:
    """All of it."""
    lines = [line for name in tt.__all__ for line in _lines(name, getattr(tt, name))]
    lines += _lines("testing", torchtap.testing)
    for name, value in _INTEGRATIONS.items():
        lines += _lines(f"integrations.{name}", value)
    return "\n".join(lines) + "\n"


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, types.ModuleType):
        for inner in _public_names(value):
            yield from _lines(f"{name}.{inner}", getattr(value, inner))
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})" if bases else f"class {name}"
        for inner, member in sorted(_members(value).items()):
            yield f"  {inner}{_signature_of(member)}"
    elif callable(value):
        yield f"{name}{inspect.signature(value)}"
    else:
        yield f"{name}: {type(value).__name__}"


def _public_names(module: types.ModuleType) -> list[str]:
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if not _is_foreign(module, value)]
    return sorted(name for name in names if not name.startswith("_"))


def _is_foreign(module: types.ModuleType, value: Any) -> bool:
    home: str = getattr(value, "__module__", "") or ""
    return isinstance(value, types.ModuleType) or not home.startswith("torchtap")


def _members(value: type) -> dict[str, Any]:
    """Members that a class and its bases in torchtap define, and its fields."""
    ours = [base for base in reversed(value.__mro__) if base.__module__.startswith("torchtap")]
    members = {name: kind for base in ours for name, kind in base.__annotations__.items()}
    members |= {name: member for base in ours for name, member in vars(base).items()}
    kept = {"__init__", "__call__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__"}
    return {n: m for n, m in members.items() if not n.startswith("_") or n in kept}


def _signature_of(member: Any) -> str:
    if isinstance(member, property):
        assert member.fget is not None
        return f": {inspect.signature(member.fget).return_annotation}"
    function = getattr(member, "__func__", member)
    if inspect.isfunction(function):
        return str(inspect.signature(function))
    return f": {member}" if isinstance(member, str) else ""


if __name__ == "__main__":
    SNAPSHOT.write_text(face())
