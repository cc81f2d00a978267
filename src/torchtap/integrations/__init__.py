"""Callbacks that watch a model while a trainer trains it: :func:`torchtap.watch` by one line.

    trainer = Trainer(..., callbacks=[TrainerWatch("*:output,grad_output", to=tt.Stats())])

A callback steps with the trainer's own number, keeps evaluation apart (phase ``eval``), logs the
numbers that the trainer logs, and closes when the training ends or raises. Nothing of a trainer is
imported before its callback is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["AccelerateWatch", "LightningWatch", "TrainerWatch"]

_HOMES = {
    "AccelerateWatch": "accelerate",
    "LightningWatch": "lightning",
    "TrainerWatch": "transformers_trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module(f"{__name__}.{_HOMES[name]}").watch_class()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
