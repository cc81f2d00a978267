"""Maps in files: as a picture, as an array, and whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtap.core.errors import InputError

if TYPE_CHECKING:
    from torchtap.explain.maps.map_values import MapValues

ENDINGS = (".png", ".npy", ".safetensors")
_KEY = "torchtap.map"
_TEXTS = ("method", "layer", "target_text")
_LISTS = ("target", "notes", "size", "names")


def write_array(map_: MapValues, path: Path) -> None:
    """Write the raw values as ``.npy``."""
    import numpy

    with _whole(path) as half, half.open("wb") as file:
        numpy.save(file, map_.numpy(), allow_pickle=False)


def write_map(map_: MapValues, path: Path) -> None:
    """Write everything but how it is made anew, as ``.safetensors``."""
    from safetensors.torch import save

    tensors = {"values": map_.values.contiguous(), "scores": map_.scores.contiguous()}
    if map_.gap is not None:
        tensors["gap"] = map_.gap.contiguous()
    body: dict[str, Any] = {name: getattr(map_, name) for name in (*_TEXTS, *_LISTS, "tokens")}
    with _whole(path) as half:
        half.write_bytes(save(tensors, {_KEY: json.dumps(body)}))


def read_map(path: str | Path) -> dict[str, Any]:
    """Return the fields of a map that :func:`write_map` wrote.

    Raises:
        InputError: there is no such file, or it is something else.
    """
    from safetensors import SafetensorError, safe_open

    file = Path(path)
    if not file.is_file():
        raise InputError(f"There is no file {file}.")
    try:
        with safe_open(file, framework="pt") as opened:
            meta = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        body = json.loads(meta[_KEY])
        texts = {name: body[name] for name in _TEXTS}
        texts |= {name: _tupled(body[name]) for name in (*_LISTS, "tokens")}
        texts |= {"values": tensors["values"], "scores": tensors["scores"]}
    except SafetensorError as error:
        raise InputError(f"{file} is not a safetensors file: {error}.") from error
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{file} holds no map of torchtap; expected one that Map.save wrote, with the ending "
            f".safetensors."
        ) from error
    return {**texts, "gap": tensors.get("gap")}


class _whole:
    """A file that appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._half = path.with_name(f".{path.name}.{os.getpid()}")

    def __enter__(self) -> Path:
        return self._half

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._half.replace(self._path)
        else:
            self._half.unlink(missing_ok=True)


def _tupled(value: Any) -> Any:
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
