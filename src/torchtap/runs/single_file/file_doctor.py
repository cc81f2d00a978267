"""Check a run in a file: every checksum is compared. Knows nothing of torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtap.core.errors import RunError
from torchtap.core.printed import Printed
from torchtap.core.printed_page import BLANK, Line, Page
from torchtap.core.text import clean, plural, size
from torchtap.runs.single_file.header import Header, Value, read_header
from torchtap.runs.store.checksum import crc32

_CHUNK = 4 << 20
_UNPROTECTED = (
    "The file has no checksums, as those of earlier versions: what it holds can be read, and "
    "whether it is what was written cannot be said. tt.open(FILE).save(FILE) writes them."
)


@dataclass(frozen=True, slots=True)
class FileDiagnosis(Printed):
    """The result of :func:`examine_file`.

    Attributes:
        path: of the file.
        is_protected: whether it has checksums.
        num_steps: how many steps have values.
        num_values: how many values are in it.
        nbytes: of these values.
        num_tensors: how many tensors are in it: of values, statistics and the run itself.
        problems: what is not whole.
    """

    path: Path
    is_protected: bool
    num_steps: int
    num_values: int
    nbytes: int
    num_tensors: int
    problems: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Return whether all that was written is there, to the bit; ``False`` if unknown."""
        return self.is_protected and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "is_whole": self.is_whole,
            "file": str(self.path),
            "is_protected": self.is_protected,
            "num_steps": self.num_steps,
            "num_values": self.num_values,
            "nbytes": self.nbytes,
            "num_tensors": self.num_tensors,
            "problems": list(self.problems),
        }

    def _page(self) -> Page:
        if self.is_whole:
            total = Line("Whole: every checksum is right.", "good")
        elif self.problems:
            total = Line("Not whole.", "bad")
        else:
            total = Line(_UNPROTECTED, "bad")
        if self.num_values:
            values = f"{plural(self.num_values, 'value')}, {size(self.nbytes)}"
            what = f"{plural(self.num_steps, 'step')}, {values}"
        else:  # A run of statistics, say.
            what = f"no values, {plural(self.num_tensors, 'other tensor')}"
        said = Line(f"{self.path.name}: {what}")
        return Page(total, BLANK, said, *(Line(f"  {clean(why)}", "bad") for why in self.problems))


def examine_file(path: Path) -> FileDiagnosis:
    """Look through a run in a file.

    Raises:
        RunError: it is no run, or so damaged that it has no header.
    """
    header = read_header(path, verify=False)
    problems = [header.problem] if header.problem else []
    values: list[Value] = []
    try:
        values = header.values(header.body())
    except RunError as error:
        problems.append(str(error))
    problems += _wrong_tensors(header, {value.name: value for value in values})
    return FileDiagnosis(
        path,
        header.crc32 is not None,
        len({value.step for value in values}),
        len(values),
        sum(header.tensors[value.name].nbytes for value in values),
        len(header.tensors),
        tuple(problems),
    )


def _wrong_tensors(header: Header, values: dict[str, Value]) -> Iterator[str]:
    """Tensors that do not have their checksum, by what they are of."""
    if header.crc32 is None:
        return
    with header.path.open("rb") as stream:
        for name, expected in header.crc32.items():
            tensor, found = header.tensors[name], 0
            stream.seek(tensor.start)
            left = tensor.nbytes
            while left and (data := stream.read(min(_CHUNK, left))):
                found, left = crc32(data, found), left - len(data)
            if left or found != expected:
                yield _said(name, values.get(name))


def _said(name: str, value: Value | None) -> str:
    if value is None:
        return f"the tensor {name!r}, which is no value but belongs to the whole run, is damaged"
    return f"the value of {value.site} in step {value.step}, call {value.call}, is damaged"
