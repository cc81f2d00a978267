"""Watches what the ``Trainer`` of Lightning fits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from torchtap.core.errors import MissingExtraError
from torchtap.integrations.watched_training import WatchedTraining

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class LightningEvents(WatchedTraining):
    """A callback of Lightning's ``Trainer`` that watches the module which it fits.

    A step is what happens between two values of ``trainer.global_step``, which is its number: all
    batches whose gradients are accumulated. With manual optimization that number counts the steps
    of all optimizers, so it may grow by more than one. Validations, also the sanity check before
    the training, have the phase ``eval``. The numbers that the module logs
    (``trainer.callback_metrics``) are kept with the step. Before a checkpoint is saved, what was
    recorded is committed (:meth:`Watch.sync`).

    Example:
        >>> import torchtap as tt
        >>> def train(module, loader):
        ...     import lightning
        ...     from torchtap.integrations import LightningWatch
        ...
        ...     tap = LightningWatch("*:output,grad_output", to=tt.Stats())
        ...     lightning.Trainer(callbacks=[tap]).fit(module, loader)
        ...     return tap.watch.run.table()
    """

    _logged: Mapping[str, Any] = MappingProxyType({})

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """The module is set up, and maybe wrapped for several ranks."""
        self._begin(pl_module)
        self._logged = {}
        self._end_step()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation before the training; a checkpoint has told its number by now."""
        self._name_step(trainer.global_step)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch begins; several may belong to one step."""
        self._logged = dict(trainer.callback_metrics)  # Since the validation, it computed anew.
        self._begin_step(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch was trained on."""
        self._log_new(trainer)
        self._end_step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """A validation ended."""
        if not trainer.sanity_checking:
            self._log_new(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch ended."""
        self._log_new(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is about to be written."""
        self._sync()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training raised."""
        self._fail(exception)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """The training ended."""
        self.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """The trainer is left."""
        self.close()

    def _log_new(self, trainer: Any) -> None:
        """Log what was computed since the last time: others stay in the dictionary."""
        metrics = dict(trainer.callback_metrics)
        self._log({k: v for k, v in metrics.items() if v is not self._logged.get(k)})
        self._logged = metrics


@cache
def watch_class() -> type[LightningEvents]:
    """Return the callback, as a subclass of the one that Lightning wants: of each package in use.

    Raises:
        MissingExtraError: Lightning is not installed.
    """
    about = {"__doc__": LightningEvents.__doc__, "__module__": "torchtap.integrations"}
    return type("LightningWatch", (LightningEvents, *_callbacks()), about)


def _callbacks() -> list[type]:
    loaded = [module for name in _PACKAGES if (module := sys.modules.get(name)) is not None]
    if loaded:
        return [module.Callback for module in loaded]
    failures = []
    for name in _PACKAGES:
        try:
            return [import_module(name).Callback]
        except ImportError as error:
            failures.append(error)
    raise MissingExtraError(
        "LightningWatch is a callback of Lightning's Trainer, and neither lightning nor "
        "pytorch_lightning can be imported: pip install lightning"
    ) from failures[0]
