"""Whatever is done with a folder, in any order: it holds what a plain dict holds."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from bits import content
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from recordings import held
from records import record

import torchtap as tt
from torchtap.core.record import PHASES

SIZES = st.sampled_from([(), (0,), (1,), (3, 2), (2, 20_000), (1, 20_000), (2, 2, 9_000)])
DTYPES = st.sampled_from(["float32", "bfloat16", "int64", "bool", "complex128"])
NAMES = st.sampled_from(["a", "A", "b.c", "../d", ""])


class Folder(RuleBasedStateMachine):
    """A dict of what was committed is the model; what was taken since then waits beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.path = self.home / "run"
        self.committed: dict[Any, Any] = {}
        self.waiting: dict[Any, Any] = {}
        self.step = 0
        self.disk: tt.Disk | None = None
        self.reader: tt.Run | None = None

    @initialize()
    def begin(self) -> None:
        self.disk = tt.Disk(self.path)

    @precondition(lambda self: self.disk is not None)
    @rule(
        name=NAMES,
        size=SIZES,
        dtype=DTYPES,
        phase=st.sampled_from(PHASES),
        call=st.integers(0, 3),
        seed=st.integers(0, 2**32 - 1),
        labels=st.sampled_from([(), ("total",), ("ä", '"')]),
    )
    def take(
        self,
        name: str,
        size: tuple[int, ...],
        dtype: str,
        phase: str,
        call: int,
        seed: int,
        labels: tuple[str, ...],
    ) -> None:
        assert self.disk is not None
        generator = torch.Generator().manual_seed(seed)
        value = torch.randint(0, 200, size, generator=generator).to(getattr(torch, dtype))
        row = record(name, value, step=self.step, call=call, phase=phase, labels=labels)
        self.disk.take(row)
        key = (str(row.site), self.step, call, phase, row.backward, labels)
        number = sum(other[:-1] == key for other in self.waiting)
        self.waiting[(*key, number)] = content(value)

    @precondition(lambda self: self.disk is not None)
    @rule()
    def commit(self) -> None:
        assert self.disk is not None
        self.disk.close_step(self.step)
        self._all_waiting_is_committed()

    @precondition(lambda self: self.disk is not None)
    @rule()
    def close(self) -> None:
        assert self.disk is not None
        self.disk.close()
        self._all_waiting_is_committed()
        self.disk = None

    @precondition(lambda self: self.disk is None)
    @rule()
    def resume(self) -> None:
        self.disk = tt.Disk(self.path, resume=True)

    @precondition(lambda self: self.disk is not None and self.path.exists())
    @rule(torn=st.integers(0, 100))
    def crash(self, torn: int) -> None:
        """The folder as a process that is killed leaves it, with what it wrote last torn."""
        assert self.disk is not None
        self.disk.flush()
        left = self.home / f"left-{random.getrandbits(64):x}"
        shutil.copytree(self.path, left)
        self.disk.close()
        shutil.rmtree(self.path)
        left.rename(self.path)
        self.disk, self.reader = None, None
        self.waiting.clear()
        for file in self.path.rglob("*"):
            if file.suffix in (".arrows", ".safetensors") and file.stat().st_size:
                with file.open("ab") as stream:
                    stream.write(os.urandom(torn))
        if not self.committed and not any(self.path.rglob("rank-*/attempt-*")):
            shutil.rmtree(self.path)

    @precondition(lambda self: self.path.exists())
    @rule()
    def open(self) -> None:
        if self.disk is not None:
            self.disk.flush()
        self.reader = tt.open(self.path)
        assert held(self.reader) == self.committed

    @precondition(lambda self: self.reader is not None)
    @rule()
    def refresh(self) -> None:
        assert self.reader is not None
        if self.disk is not None:
            self.disk.flush()
        self.reader.refresh()
        assert held(self.reader) == self.committed

    @invariant()
    def steps_are_those_of_the_dict(self) -> None:
        if self.reader is not None:
            assert set(self.reader.steps) <= {key[1] for key in self.committed}

    def _all_waiting_is_committed(self) -> None:
        self.committed.update(self.waiting)
        self.waiting.clear()
        self.step += 1

    def teardown(self) -> None:
        if self.disk is not None:
            self.disk.close()
        shutil.rmtree(self.home)


Folder.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestFolder = Folder.TestCase
