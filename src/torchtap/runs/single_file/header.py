"""The header of a run in a file: what it says of its tensors, and whether that can be believed.

Beside the tensors stands :data:`CHECKSUMS`, a tensor with the checksum of the header and of each of
the others, so that every byte of the file is under a checksum. Knows nothing of torch.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torchtap.core.did_you_mean import nearest, one_of
from torchtap.core.errors import RunError
from torchtap.core.ports import PORTS
from torchtap.core.record import PHASES
from torchtap.core.site import Site
from torchtap.runs.store.checksum import crc32
from torchtap.runs.store.dtypes import STORED
from torchtap.runs.store.layout import is_run_folder

T = TypeVar("T")
FORMAT = 2
"""The format of a file's metadata; files of another one are refused."""
CHECKSUMS = "torchtap.crc32"
"""The tensor of checksums, ``uint32[n + 2]`` beside ``n`` others: of the header with its length, of
each other tensor in the order in which they stand in the file, and of all these numbers."""
PREFIX = "torchtap.stats"
"""Names of what was measured begin so; no record's can, since it has a colon before a hash."""
EVALUATION = "torchtap.evaluation"
"""Names of the tensors of what was measured in evaluation forwards begin so."""
SCALARS = "torchtap.scalars"
"""Names of the tensors of what was logged begin so."""
NOTES = "torchtap.notes"
"""Names of the tensors of what is known of each step begin so. Under this very name stand ids and
labels, as JSON in UTF-8: they grow with the samples, and a header may not."""
MOST_HEADER_BYTES = 100_000_000
"""The limit that safetensors itself sets."""
UNPROTECTED = (
    "the file that it was read from has no checksums, as those of earlier versions, so damage "
    "in it cannot be noticed; run.save writes them"
)
_NOT_AS_WRITTEN = (
    "its header, which says which value is of which step and site, does not have its checksum: it "
    "was damaged, or written again by another program"
)

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""Names of dtypes in a header, and in PyTorch."""
CODES = {name: code for code, name in DTYPES.items()}


class FlatTensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        code: its dtype as the header has it.
        shape: of it.
        start: where its bytes begin, from the start of the file.
        nbytes: how many they are.
    """

    code: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class Value(NamedTuple):
    """A value of the run, as the header describes it.

    Attributes:
        site: where it was recorded.
        step: the user's counter.
        call: within the step.
        phase: of the call.
        backward: which of the step, -1 for values of the forward.
        labels: what else is to be known of it.
        dtype: of the value, without ``torch.``.
        shape: of the value.
        name: of its tensor in the file.
    """

    site: Site
    step: int
    call: int
    phase: str
    backward: int
    labels: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a header.

    Attributes:
        path: of the file.
        text: the description of the run, as JSON.
        tensors: by name, without that of the checksums.
        crc32: of each tensor, by its name; ``None`` of a file that has no checksums.
        problem: why what the header says cannot be believed, if so.
    """

    path: Path
    text: str
    tensors: Mapping[str, FlatTensor]
    crc32: Mapping[str, int] | None
    problem: str

    def body(self) -> dict[str, Any]:
        """The description of the run.

        Raises:
            RunError: it is none, or of another format.
        """
        with describing(self.path):
            parsed = json.loads(self.text)
            check_format(self.path, parsed)
            if self.crc32 is None and "checksums" in parsed:
                raise RunError(
                    f"{self.path} is damaged: its header says that it has checksums, and there is "
                    f"no tensor {parsed['checksums']!r}. Copy it again, or save the run again."
                )
            return dict(parsed)

    def values(self, body: Mapping[str, Any]) -> list[Value]:
        """The values that a description names.

        Raises:
            RunError: the file has no such tensor, or one of another dtype or shape.
        """
        with describing(self.path):
            return [self._value(entry) for entry in body["records"]]

    def _value(self, entry: Mapping[str, Any]) -> Value:
        site, name = Site(*entry["site"]), entry["name"]
        step, call, backward = (_whole(entry[key]) for key in ("step", "call", "backward"))
        tensor = self.tensors.get(name)
        if tensor is None:
            raise RunError(
                f"{self.path} is damaged: its header names {name!r} as the value of "
                f"{_said(site, step, call)}, and has no such tensor. Copy the file again, or save "
                f"the run again."
            )
        if site.port not in PORTS or entry["phase"] not in PHASES:
            raise ValueError(f"{_said(site, step, call)} in phase {entry['phase']!r}")
        dtype = entry.get("dtype") or _unnamed_dtype(tensor, is_real_view=entry["real_view"])
        shape = tensor.shape if STORED[dtype].width != 2 else tensor.shape[:-1]
        nbytes = math.prod(shape) * STORED[dtype].itemsize
        if STORED[dtype].is_sparse:
            shape, nbytes = tuple(map(_whole, entry["shape"])), tensor.nbytes
        if not _can_be(dtype, tensor) or nbytes != tensor.nbytes or min(shape, default=0) < 0:
            raise RunError(
                f"{self.path} is damaged: its header says that the value of "
                f"{_said(site, step, call)} is {dtype}, and the file holds it as "
                f"{tensor.code}{list(tensor.shape)}. Copy the file again, or save the run again."
            )
        labels = tuple(map(str, entry["labels"]))
        # Without names, which take a tenth of the time of reading a large header.
        return Value(site, step, call, entry["phase"], backward, labels, dtype, shape, name)


def _said(site: Site, step: int, call: int) -> str:
    return f"{site} (step {step}, call {call})"


def renamed(by_name: Mapping[str, T], prefix: str, other: str) -> dict[str, T]:
    """Return what has names that begin with a prefix by names that begin with another."""
    return {f"{other}{name.removeprefix(prefix)}": value for name, value in by_name.items()}


@contextmanager
def describing(path: Path) -> Iterator[None]:
    """Say of which file it is that what stands in it means nothing.

    Raises:
        RunError: in place of what reading it raised.
    """
    try:
        yield
    except RunError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise RunError(
            f"{path} has the name of a run of torchtap in its header and none there that can be "
            f"read ({type(error).__name__}: {error}). Write it again with run.save."
        ) from error
    except RecursionError as error:
        raise RunError(f"{path} is damaged: its header is nested without end.") from error


def check_format(file: Path, body: Mapping[str, Any]) -> None:
    """Raise ``RunError`` for a file that another torchtap wrote in another format."""
    version = body["format"]
    if version != FORMAT:
        is_later = isinstance(version, int) and version > FORMAT
        way_out = "Update it." if is_later else "Write it again with run.save."
        raise RunError(
            f"{file} has format {version!r}; this torchtap reads format {FORMAT}. {way_out}"
        )


# ---------------------------------------------------------------------- read


def read_header(path: str | Path, *, verify: bool = True) -> Header:
    """Read the header of a run in a file, and compare it with its checksum.

    Args:
        path: of the file.
        verify: raise where it does not have its checksum; else ``problem`` says so.

    Raises:
        FileNotFoundError: there is no such file.
        RunError: it is not a run of torchtap, or is damaged.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"There is no run at {file}{_others(file)}")
    if file.is_dir():
        raise RunError(f"{file} is a directory; expected a file{_others(file / 'run')}")
    if not file.is_file():  # To open a pipe would wait for who writes into it.
        raise RunError(f"{file} is a device or a pipe; expected a file.")
    try:
        with file.open("rb") as stream:
            header = _read(file, stream)
    except RunError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OSError) as error:
        raise RunError(f"{file} {_no_safetensors(file, error)}") from error
    if header.problem and verify:
        raise RunError(
            f"{file} is damaged: {header.problem}. Copy it again; torchtap doctor {file} says what "
            f"is whole, and tt.open(..., verify=False) reads what it can."
        )
    return header


def _read(file: Path, stream: Any) -> Header:
    """Read a header; raise an exception of any type where the file is no safetensors file."""
    start = stream.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= MOST_HEADER_BYTES:
        raise ValueError("it does not begin with the length of a header, as one does")
    raw = stream.read(length)
    header = json.loads(raw)
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    metadata = header.pop("__metadata__", None) or {}
    text = metadata.get("torchtap")
    if text in ("lane", "index"):
        raise _part_of_folder(file, text)
    # seek() returns the place, which at the end is the size of the file.
    tensors = _tensors(header, 8 + length, stream.seek(0, 2))
    if text is None:
        raise _of_others(file, sorted(tensors))
    # Files of the first versions have none.
    table = tensors.pop(CHECKSUMS, None)
    if table is None:
        return Header(file, text, tensors, None, "")
    stream.seek(table.start)
    data = stream.read(table.nbytes)
    numbers = struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])
    in_order = sorted(tensors, key=lambda name: (tensors[name].start, tensors[name].nbytes))
    # The last number is the checksum of the others: only then is it worth comparing with them.
    if len(numbers) != len(tensors) + 2 or crc32(data[:-4]) != numbers[-1]:
        problem = f"its checksums, the tensor {CHECKSUMS!r}, are damaged themselves"
        return Header(file, text, tensors, {}, problem)
    of_each = dict(zip(in_order, numbers[1:-1], strict=True))
    problem = "" if crc32(raw, crc32(start)) == numbers[0] else _NOT_AS_WRITTEN
    return Header(file, text, tensors, of_each, problem)


def _tensors(header: Mapping[str, Any], start: int, end: int) -> dict[str, FlatTensor]:
    """The tensors of a file, which fill it without holes."""
    tensors: dict[str, FlatTensor] = {}
    for name, entry in header.items():
        first, last = map(_whole, entry["data_offsets"])
        shape = tuple(map(_whole, entry["shape"]))
        if min(first, *shape, 0) < 0 or last < first:
            raise ValueError(f"{name!r} has a place or a size below 0")
        code = entry["dtype"]
        if code in DTYPES and math.prod(shape) * STORED[DTYPES[code]].itemsize != last - first:
            raise ValueError(f"{name!r} is {code}{list(shape)} and has {last - first:,} bytes")
        tensors[name] = FlatTensor(str(code), shape, start + first, last - first)
    there = start
    # By size too: an empty tensor begins where the next one does.
    for one in sorted(tensors.values(), key=lambda one: (one.start, one.nbytes)):
        if one.start != there:
            raise ValueError("its tensors overlap, or leave a hole")
        there += one.nbytes
    if there != end:
        raise ValueError(f"its tensors need {there:,} bytes")
    return tensors


def _whole(number: Any) -> int:
    # True is an int to isinstance(), and sums of two such numbers must fit into 64 bits.
    if type(number) is not int or abs(number) >= 1 << 62:
        raise TypeError(f"{number!r} is no whole number that can be meant")
    return number


def _unnamed_dtype(tensor: FlatTensor, *, is_real_view: bool) -> str:
    """The dtype of a value in one of the first files, which say only whether it was complex."""
    if is_real_view:
        return {"F16": "complex32"}.get(tensor.code, "complex128")
    return DTYPES[tensor.code]


def _can_be(dtype: str, tensor: FlatTensor) -> bool:
    """Return whether a value of a dtype can stand in a file as that tensor."""
    stored = STORED[dtype]
    if stored.width == 2 and tensor.shape[-1:] != (2,):
        return False
    return tensor.code in (CODES.get(dtype, stored.code), stored.code)


# ---------------------------------------------------------------------- what else it may be


def _others(file: Path) -> str:
    """The end of a sentence: what a file in the same directory may have been meant."""
    home = file.parent
    if not home.is_dir():
        return f": there is no directory {home} either."
    names = sorted(one.name for one in home.glob("*.safetensors") if one.is_file())
    return one_of([str(home / name) for name in nearest(file.name, names) or names[:3]])


def _of_others(file: Path, names: list[str]) -> RunError:
    first = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return RunError(
        f"{file} is a safetensors file, but torchtap did not write it as a run: it holds "
        f"{first or 'nothing'}. "
        f"Its tensors are read by safetensors.torch.load_file({str(file)!r})."
    )


def _part_of_folder(file: Path, kind: str) -> RunError:
    """A file of a folder that was given in place of the folder."""
    whole = next((parent for parent in file.absolute().parents[:5] if is_run_folder(parent)), None)
    what = "the values of one site" if kind == "lane" else "which values are in it"
    where = "its folder" if whole is None else f"the folder {whole}"
    return RunError(
        f"{file} is a part of a run in a folder ({what}), and no run: sites, steps and checksums "
        f"stand in the files beside it. Give {where}."
    )


def _no_safetensors(file: Path, error: Exception) -> str:
    """Describe what is wrong with a file that is no safetensors file."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}."
    nbytes = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(16)
    if not nbytes:
        return "is not a safetensors file: it is empty. Expected one that run.save wrote."
    if start.startswith((b"PK", b"\x80")):
        return (
            f"is not a safetensors file but a pickle or a zip, as torch.save writes them. Weights "
            f"are read by torch.load({str(file)!r})."
        )
    if start[8:].startswith(b"{"):
        return (
            f"is not a safetensors file that can be read: it breaks off or was damaged, with "
            f"{nbytes:,} bytes left ({error}). Copy it again, or save the run again."
        )
    return f"is not a safetensors file: {error}. Expected one that run.save wrote."
