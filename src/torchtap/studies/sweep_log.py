"""Keep a sweep's results so far in a file, so that it can go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchtap.core.errors import InputError, RunError
from torchtap.core.module_paths import mode_of
from torchtap.studies.fingerprint import NoFingerprintError, fingerprint
from torchtap.studies.sweep_study import Study
from torchtap.studies.sweep_table import Values


class SweepLog:
    """The results so far, also in a file, so that a sweep that was killed can go on.

    Args:
        path: of the file, if there is to be one.
        head: what tells this sweep from others; only asked for where there is a file.

    Attributes:
        done: (site, edit) -> metrics.
    """

    def __init__(self, path: str | Path | None, head: Callable[[], Mapping[str, Any]]) -> None:
        self.done: dict[tuple[str, str], Values] = {}
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        if self._path.exists() and self._path.stat().st_size:
            self._read(self._path, head())
        else:
            self._path.write_text(json.dumps(head()) + "\n", encoding="utf-8")

    def _read(self, path: Path, head: Mapping[str, Any]) -> None:
        try:
            first, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            header = json.loads(first)
            if not isinstance(header, dict):
                raise ValueError("It is no head.")
        except ValueError:
            raise RunError(f"{path} is no file of a sweep. Give another path.") from None
        if header != head:
            different = [key for key in head if header.get(key) != head[key]]
            raise RunError(
                f"{path} is of another sweep, with other {', '.join(different)}. Give another "
                f"path, or delete it."
            )
        kept = [line for line in lines if line.endswith("\n")]
        if len(kept) < len(lines):  # Killed in the middle of a line.
            path.write_text(first + "".join(kept), encoding="utf-8")
        for line in kept:
            row = json.loads(line)
            self.done[row["site"], row["edit"]] = row["values"]

    def write(self, site: str, edit: str, values: Values) -> None:
        """One more is done."""
        self.done[site, edit] = values
        if self._path is not None:
            row = {"site": site, "edit": edit, "values": values}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def head_of(study: Study) -> dict[str, Any]:
    """Return the parts of a study that must be the same for a sweep to go on from a file.

    Raises:
        InputError: a part cannot be identified.
    """
    state = {**dict(study.model.named_parameters()), **dict(study.model.named_buffers())}
    functions = {trial.name: trial.function for trial in study.trials}
    return {
        "torchtap": "sweep",
        "model": type(study.modules[""]).__name__,
        "trials": [list(trial.key) for trial in study.trials],
        "weights": _told("The model", state),
        "inputs": _told("The input", (study.args, study.kwargs)),
        "modes": _told("The model", [mode_of(module) for module in study.modules.values()]),
        "edits": {name: _told(f"Edit {name!r}", one) for name, one in functions.items()},
        "metric": _told("The metric", study.metric),
    }


def _told(what: str, value: Any) -> str:
    try:
        return fingerprint(value)
    except NoFingerprintError as error:
        raise InputError(
            f"tt.sweep(path=...): {what} holds {error}, so it cannot be determined whether it is "
            f"the same when the sweep goes on from the file. Hand over tensors, plain values and "
            f"functions of them, or leave path= out."
        ) from error
