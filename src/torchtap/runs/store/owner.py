"""The attempt that a stream belongs to: the metadata of its schema says it. Needs pyarrow.

A file of another run is also intact, so no checksum reveals it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

_ATTEMPT = b"attempt"


def owned(schema: Any, owner: str) -> Any:
    """Return a schema that says of which attempt its stream is."""
    return schema.with_metadata({_ATTEMPT: owner.encode("ascii")}) if owner else schema


def owner_of(path: Path) -> str:
    """The attempt that a stream says it is of; empty where it says nothing that can be read."""
    try:
        with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as reader:
            said = (reader.schema.metadata or {}).get(_ATTEMPT, b"")
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return ""
    return str(said, "ascii", "replace")


def are_of_one(one: str, other: str) -> bool:
    """Return whether two files may be of one attempt: neither says another one."""
    return not one or not other or one == other
