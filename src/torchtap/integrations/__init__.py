"""Callbacks that watch a model while a trainer trains it, and sinks that hand on to loggers.

    trainer = Trainer(..., callbacks=[TrainerWatch("*:output,grad_output", to=tt.Stats())])
    tt.watch(model, to=[tt.Stats(), TensorBoardLog("logs")])

A callback steps with the trainer's own number, keeps evaluation apart (phase ``eval``), logs the
numbers that the trainer logs, and closes when the training ends or raises. Nothing of a trainer or
a logger is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "AccelerateWatch",
    "AimLog",
    "LightningWatch",
    "MlflowLog",
    "TensorBoardLog",
    "TrainerWatch",
    "WandbLog",
]

_HOMES = {
    "AccelerateWatch": "accelerate",
    "LightningWatch": "lightning",
    "TrainerWatch": "transformers_trainer",
}
_LOGS = {
    "AimLog": "aim_log",
    "MlflowLog": "mlflow_log",
    "TensorBoardLog": "tensorboard_log",
    "WandbLog": "wandb_log",
}


def __getattr__(name: str) -> Any:
    if name in _LOGS:
        value = getattr(import_module(f"{__name__}.{_LOGS[name]}"), name)
    elif name in _HOMES:
        value = import_module(f"{__name__}.{_HOMES[name]}").watch_class()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
