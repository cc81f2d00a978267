"""``tt.open``: a run that was saved, or that is being written."""

from __future__ import annotations

import os
from pathlib import Path

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.runs.run import Run


def open_run(path: str | Path, *, verify: bool = True) -> Run:
    """Open a run: a file that :meth:`Run.save` wrote, or a folder of ``tt.Disk``.

    Values are read when they are asked for, as views of the files, which are mapped into memory.
    Writing into such a tensor changes no file, and what is read of it later.
    A folder that is being written, or was left by a crash, is opened as it is; what several ranks
    wrote is merged as :func:`tt.merge <torchtap.merge>` does.

    Args:
        path: a file, a folder, or the folder in it of one rank or one attempt.
        verify: compare each value with its checksum when it is first read; of a file also its
            statistics, and its header when it is opened. Without, what is there is read, and
            ``absent`` says if the header is damaged. A file that an earlier version wrote has no
            checksums, which ``absent`` says.

    Raises:
        FileNotFoundError: there is nothing.
        InputError: ``path`` is no path.
        RunError: it is not a run of torchtap, or is damaged.

    Example:
        >>> import tempfile, torch, torchtap as tt
        >>> with tt.watch(torch.nn.Linear(2, 3)) as w:
        ...     pass
        >>> tt.open(w.run.save(tempfile.mkdtemp() + "/run.safetensors")).steps
        []
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"tt.open got {kind_of(path)}; expected the path of a file or a folder with a run."
        )
    if Path(path).is_dir():
        from torchtap.runs.store.opening import open_folder

        return open_folder(Path(path), verify=verify)
    from torchtap.runs.single_file.file import read_run

    stored = read_run(path, verify=verify)
    return Run(*stored[:4], scalars=stored.scalars, ranks=stored.ranks, notes=stored.notes)
