"""Writes a held call into a folder, as JSON and safetensors, and reads it again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchtap.core.errors import InputError
from torchtap.diagnosis.calls.call import Call
from torchtap.diagnosis.calls.call_as_json import Nodes, as_json
from torchtap.diagnosis.calls.flat_tensors import FlatTensors
from torchtap.diagnosis.calls.node_kinds import WRITERS
from torchtap.diagnosis.calls.standalone.read_call import FORMAT, UnreadableError, read_call
from torchtap.diagnosis.calls.standalone.run_again import Result, tensors_in

JSON, TENSORS = "call.json", "call.safetensors"
_WAY = "Give a folder that call.save(folder) wrote, where the module's class can be imported."
_RESULT = ("output", "buffers", "arriving", "inputs", "parameters")


def save_call(call: Call, folder: Path) -> Path:
    """Write a call into a folder; see :meth:`Call.save`."""
    text, tensors = written(call)
    folder.mkdir(parents=True, exist_ok=True)
    write_both(folder / JSON, text, folder / TENSORS, tensors)
    return folder


def write_both(
    path: Path,
    text: str,
    beside: Path,
    tensors: dict[str, Tensor],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write a text and tensors, in the place of an earlier pair once both are whole."""
    halves = [one.with_name(f".{one.name}.part") for one in (path, beside)]
    try:
        halves[0].write_text(text, encoding="utf-8")
        save_file(tensors, halves[1], metadata=metadata)
        path.unlink(missing_ok=True)  # A new one never stands beside old tensors.
        halves[1].replace(beside)
        halves[0].replace(path)
    finally:
        for half in halves:
            half.unlink(missing_ok=True)


def written(call: Call) -> tuple[str, dict[str, Tensor]]:
    """Return a call as text and flat tensors.

    Raises:
        InputError: something cannot be written; it is named with its place.
    """
    flat = FlatTensors()
    flat.note(_every_tensor(call))
    nodes = Nodes(flat, WRITERS)
    where = call.path or "."
    body: dict[str, Any] = {
        "format": FORMAT,
        "path": call.path,
        "call": call.call,
        "module": nodes.write(call.module, f"module {where}"),
        "args": nodes.write(call.args, "argument "),
        "kwargs": nodes.write(call.kwargs, "argument "),
        "around": nodes.write(call.around, "around"),
    }
    for name in _RESULT:
        body[name] = nodes.write(getattr(call.result, name), name)
    body["notes"] = ["tuple", [*call.notes, *nodes.notes]]
    return as_json(body), flat.tensors()


def _every_tensor(call: Call) -> Iterator[Tensor]:
    for table in call.tensors().values():
        yield from table.values()
    yield from tensors_in(call.around).values()


def _files(path: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the text and the flat tensors of a folder, or of an exported script."""
    if path.suffix in (".py", ".safetensors") and path.is_file():
        tensors = path.with_suffix(".safetensors")
        if not tensors.is_file():
            raise InputError(f"There is no {tensors} beside {path}. Export the call again.")
        with safe_open(tensors, "pt") as opened:
            return (opened.metadata() or {}).get("call", ""), load_file(tensors)
    text, tensors = path / JSON, path / TENSORS
    if not text.is_file() or not tensors.is_file():
        raise InputError(f"{path} holds no call: there is no {JSON} with {TENSORS}. {_WAY}")
    return text.read_text(encoding="utf-8"), load_file(tensors)


def load_call(folder: Path) -> Call:
    """Read a call that was saved or exported.

    Raises:
        InputError: the folder holds none, or names a class that cannot be imported.
    """
    try:
        body = read_call(*_files(folder))
    except (UnreadableError, SafetensorError, UnicodeDecodeError, KeyError) as error:
        raise InputError(f"{folder} cannot be read: {error}. {_WAY}") from error
    return Call(
        path=body["path"],
        call=body["call"],
        module=body["module"],
        args=body["args"],
        kwargs=body["kwargs"],
        around=body["around"],
        result=Result(**{name: body[name] for name in _RESULT}),
        notes=body["notes"],
    )
