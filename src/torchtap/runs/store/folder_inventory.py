"""List the contents of a folder, site by site, from its indices alone. Knows nothing of torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torchtap.core.absence import WHOLE_RUN, Absence
from torchtap.core.errors import RunError
from torchtap.runs.inventory import Inventory, inventory_of
from torchtap.runs.meta import Meta, meta_of
from torchtap.runs.single_file.description import Description, read_description
from torchtap.runs.store.attempt_reader import AttemptReader
from torchtap.runs.store.history import absences, current_values, valid_until_of
from torchtap.runs.store.index import EMPTY, joined_indices
from torchtap.runs.store.layout import (
    RUN_FILE,
    SERIES,
    SERIES_DAMAGED,
    attempts_in,
    is_attempt,
    ranks_in,
    read_json,
)


def inventory_of_folder(path: Path) -> Inventory:
    """List a run in a folder; of several ranks all their values, not merged.

    Raises:
        RunError: it is no run.
    """
    ranks = attempts_by_rank(path)
    indices, absent, metas = [], list[Absence](), list[Meta]()
    measured: list[Description] = []
    for number, attempts in ranks.items():
        valid_until = valid_until_of(attempts)
        indices += [current_values(one.index, valid_until[key]) for key, one in attempts.items()]
        where = f"rank {number}: " if len(ranks) > 1 else ""
        absent += [entry._replace(reason=f"{where}{entry.reason}") for entry in absences(attempts)]
        last = list(attempts.values())[-1]
        metas.append(meta_of(last.facts.get("meta", {})))
        if "series" in last.facts:
            try:
                measured.append(read_description(last.folder / SERIES))
            except (OSError, RunError):
                absent.append(Absence(WHOLE_RUN, f"{where}{SERIES_DAMAGED}"))
    whole = joined_indices([index for index in indices if len(index)] or [EMPTY])
    meta = metas[0] if len(ranks) == 1 else replace(metas[0], rank=None)
    if not measured:
        return inventory_of(whole, meta, absent)
    first = measured[0]
    return inventory_of(whole, meta, absent, first.measured, first.num_measured_steps)


def attempts_by_rank(path: Path) -> dict[int, dict[int, AttemptReader]]:
    """The attempts of each rank of a run; of one rank, or one attempt, where that is the folder.

    Raises:
        RunError: it is no run.
    """
    if is_attempt(path):
        one = AttemptReader(path)
        return {int(one.facts.get("rank", 0)): {0: one}}
    if (path / RUN_FILE).exists():
        read_json(path / RUN_FILE)
    folders = {0: path} if attempts_in(path) else ranks_in(path)
    by_rank = {
        number: {n: AttemptReader(one) for n, one in attempts_in(folder).items()}
        for number, folder in folders.items()
    }
    by_rank = {number: attempts for number, attempts in by_rank.items() if attempts}
    if not by_rank:
        raise RunError(f"{path} is a folder and no run: it has none of the folders rank-00000, ...")
    return by_rank
