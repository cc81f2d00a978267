"""Names of the folders and files of a run, and which names are allowed. Knows nothing of torch."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from torchtap.core.errors import RunError
from torchtap.runs.store.checksum import crc32

FORMAT = 1
"""The format of the folder; another one is refused."""
RUN_FILE = "run.json"
ATTEMPT = "attempt.json"
JOURNAL = "journal.arrows"
SMALL = "small.arrows"
INDEX = "index.safetensors"
LANES = "lanes"
PROGRESS = "progress"
STATISTICS = "statistics.arrows"
SEALED_STATISTICS = "statistics.parquet"
SERIES = "series.safetensors"
SERIES_DAMAGED = f"{SERIES} is damaged: of the statistics the numbers alone are there"

MOST_SMALL = 64 << 10
"""Values of up to so many bytes stand together with others, unless their site has a lane."""

_RANK = re.compile(r"rank-(\d{5,})")
_ATTEMPT = re.compile(r"attempt-(\d{3,})")
_LANE = re.compile(r"\d{5,}-[A-Za-z0-9_.-]{1,80}\.safetensors")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_MOST_CHARACTERS = 60


class OtherFormatError(RunError):
    """A file of another format, which a later torchtap may read."""


def rank_folder(run: Path, rank: int) -> Path:
    """Return the folder in which one rank writes."""
    return run / f"rank-{rank:05d}"


def attempt_folder(rank: Path, number: int) -> Path:
    """Return the folder in which one process of that rank writes."""
    return rank / f"attempt-{number:03d}"


def lane_name(number: int, site: str) -> str:
    """The name of a lane: its number tells it apart, the site is there for people.

    Example:
        >>> lane_name(3, "../a/b:output[x]")
        '00003-.._a_b_output_x_.safetensors'
    """
    return f"{number:05d}-{_UNSAFE.sub('_', site)[:_MOST_CHARACTERS]}.safetensors"


def parse_file(text: str) -> str:
    """Read the name of a file of values as a journal has it: a lane, or the file of small values.

    Nothing outside of its own folder is opened, whatever a journal says.

    Raises:
        RunError: it is another file.
    """
    if text != SMALL and _LANE.fullmatch(text) is None:
        raise RunError(f"The journal names the file {text!r}, which is none of this folder.")
    return text


def value_path(attempt: Path, name: str) -> Path:
    """The file of values that a journal names."""
    return attempt / name if name == SMALL else attempt / LANES / name


def ranks_in(run: Path) -> dict[int, Path]:
    """The folders of ranks in a run, by rank."""
    return _numbered(run, _RANK)


def is_attempt(folder: Path) -> bool:
    """Return whether a folder is of one attempt of a rank."""
    return (folder / JOURNAL).is_file() or (folder / ATTEMPT).is_file()


def attempts_in(rank: Path) -> dict[int, Path]:
    """The folders of attempts of a rank, by number."""
    return _numbered(rank, _ATTEMPT)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    folders: dict[int, Path] = {}
    for one in sorted(folder.iterdir()):
        match = pattern.fullmatch(one.name)
        if match is not None and one.is_dir():
            folders[int(match[1])] = one
    return dict(sorted(folders.items()))


def has_statistics(attempt: Path) -> bool:
    """Return whether an attempt has written statistics."""
    return (attempt / STATISTICS).exists()


def is_run_folder(path: Path) -> bool:
    """Return whether a folder has the parts of a run."""
    return path.is_dir() and ((path / RUN_FILE).is_file() or bool(ranks_in(path)))


def write_json(path: Path, body: dict[str, Any], *, sync: bool = False) -> None:
    """Write a small file with a checksum of its own; it appears whole or not at all."""
    body = {**body, "crc32": _checksum(body)}
    half = path.with_name(f".{path.name}.{os.getpid()}.part")
    half.unlink(missing_ok=True)  # Of a process with the same number that was killed.
    try:
        with half.open("x", encoding="ascii") as stream:  # Follows no link that stands there.
            json.dump(body, stream)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read what :func:`write_json` wrote.

    Raises:
        FileNotFoundError: it is not there.
        OtherFormatError: it is of another format.
        RunError: it is damaged.
    """
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: it is no JSON ({error}).") from error
    version = body.get("format") if isinstance(body, dict) else None
    if version != FORMAT:
        is_later = isinstance(version, int) and version > FORMAT
        way_out = " Update torchtap to read it." if is_later else ""
        known = f"this torchtap reads format {FORMAT}"
        raise OtherFormatError(f"{path} has format {version!r}; {known}.{way_out}")
    expected = body.pop("crc32", None)
    if expected != _checksum(body):
        raise RunError(f"{path} is damaged: it does not have its checksum.")
    return dict(body)


def _checksum(body: dict[str, Any]) -> int:
    """Return the checksum of the JSON text, which is the same when it is read and written again."""
    return crc32(json.dumps(body).encode("ascii"))
