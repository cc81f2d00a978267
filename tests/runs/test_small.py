"""Small values wait in memory and are written together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchtap.core.site import Site
from torchtap.runs.store.journal import Templates
from torchtap.runs.store.small_values import SmallWriter


def test_memory_of_a_value_may_be_used_again_before_the_value_is_written(tmp_path: Path) -> None:
    writer = SmallWriter(tmp_path / "small.arrows")
    head = (Site.parse("0:output"), 0, "forward", 0, (), "uint8", (200,), "small.arrows")
    template = Templates().of([head], [200])
    staging = bytearray(range(200))
    place = writer.add(template, np.array([0]), memoryview(staging))
    staging[:] = bytes(200)
    writer.write()
    written = (tmp_path / "small.arrows").read_bytes()
    assert written[place : place + 200] == bytes(range(200))
