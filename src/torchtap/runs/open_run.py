"""``tt.open``: a run that was saved, or that is being written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torchtap.core.errors import InputError
from torchtap.core.tensors import kind_of
from torchtap.runs.run import Run
from torchtap.stats.catalogue.protocol import Statistic, check_statistics
from torchtap.stats.catalogue.saved import refuse_unknown


def open_run(path: str | Path, *, verify: bool = True, statistics: Sequence[Statistic] = ()) -> Run:
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
        statistics: those of the user's own that the run was measured with and that pack their
            states (see :class:`torchtap.Statistic`): they are merged and finished as in memory.
            Without, the parts that they packed are read as tensors, by their names. Statistics of
            ``tt.stats`` need not be given.

    Raises:
        FileNotFoundError: there is nothing.
        InputError: ``path`` is no path, or the run has no statistic as one of ``statistics``.
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
    if statistics:
        check_statistics(statistics)
    if Path(path).is_dir():
        from torchtap.runs.store.folder_source import open_folder

        folder = open_folder(Path(path), verify=verify, own=statistics)
        if statistics:  # Else nothing of the folder is read now.
            refuse_unknown(statistics, folder.statistics, str(path))
        return Run(folder)
    from torchtap.runs.single_file.file_source import FileSource

    file = FileSource(path, verify=verify, own=statistics)
    refuse_unknown(statistics, file.statistics, str(path))
    return Run(file)
