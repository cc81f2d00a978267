"""The folder that a process makes in a run, to write one attempt into."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from torchtap.core.errors import RunError
from torchtap.core.text import plural
from torchtap.core.version import __version__
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.layout import (
    FORMAT,
    RUN_FILE,
    attempt_folder,
    attempts_in,
    is_run_folder,
    rank_folder,
    read_json,
    write_json,
)
from torchtap.runs.store.lock import is_being_written


def refuse_path(path: Path) -> None:
    """Refuse a place where no run can be written.

    Raises:
        RunError: a file, or a folder of something else.
    """
    if path.is_dir():
        if any(path.iterdir()) and not is_run_folder(path):
            raise RunError(f"{path} holds something else than a run. Give a new folder.")
    elif path.exists() or path.is_symlink():
        raise RunError(f"{path} is a file; expected a folder, which tt.Disk makes.")


def new_attempt(path: Path, rank: int, model: str, *, resume: bool) -> tuple[Path, int]:
    """Make the folder of the next attempt of a rank, and the run's where there is none.

    Args:
        path: of the run.
        rank: of this process.
        model: class name.
        resume: whether there may be attempts before it.

    Returns:
        the folder, and the number of the attempt.

    Raises:
        RunError: there are attempts and ``resume`` is false, one of them is being written, they
            are of another model, or the folder of the rank is a link.
        OSError: it cannot be made.
    """
    home = rank_folder(path, rank)
    if home.is_symlink():
        raise RunError(
            f"{home} is a link to {home.readlink()}; tt.Disk writes nowhere but in the folder that "
            f"it was given. Move what it links to into its place, or give another folder."
        )
    home.mkdir(parents=True, exist_ok=True)
    before = attempts_in(home)
    if before and not resume:
        raise RunError(
            f"{path} holds a run already, with {plural(len(before), 'attempt')} of rank "
            f"{rank}. resume=True (on the command line --resume) goes on with it; else give "
            f"another folder."
        )
    for number, folder in before.items():
        if is_being_written(folder):
            raise RunError(
                f"Attempt {number} of rank {rank} in {path} is being written by a process "
                f"that lives. Close its watch first, or give another folder."
            )
    if before:
        _refuse_other_model(AttemptReader(before[max(before)]), model)
    _write_run(path / RUN_FILE, model)
    number = max(before, default=-1) + 1
    folder = attempt_folder(home, number)
    folder.mkdir()  # Fails where another process was faster: no two write one folder.
    return folder, number


def _write_run(path: Path, model: str) -> None:
    if path.exists():
        read_json(path)  # Refuses another format.
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    body = {"format": FORMAT, "model": model, "created": now, "torchtap": __version__}
    write_json(path, body)


def _refuse_other_model(before: AttemptReader, model: str) -> None:
    known = before.facts.get("meta", {}).get("model", model)
    if known != model:
        raise RunError(
            f"{before.folder} is of the model {known}, and this one is {model}. Give another "
            f"folder."
        )
