"""CRC-32 as zlib, gzip and PNG have it; ISA-L computes it eight times as fast where it is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # Of platforms for which there is no wheel.
    from zlib import crc32 as _crc32

crc32 = cast("Callable[..., int]", _crc32)
"""``crc32(data, before=0)``. Both let other threads run meanwhile."""


def crc32_of(*parts: bytes | bytearray | memoryview) -> int:
    """The checksum of several pieces, as of one."""
    found = 0
    for part in parts:
        found = crc32(part, found)
    return found
