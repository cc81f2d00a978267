"""Makes the tiers that ``to`` asks for, and refuses those that could never hold a tensor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from torchtap.core.errors import InputError
from torchtap.saved.codecs import Codec
from torchtap.saved.copy_streams import streams_in_use
from torchtap.saved.spill_file import aligned, folder_for
from torchtap.saved.tiers import CodecTier, DiskTier, HostTier, Tier

OneTo = Literal["cpu", "disk"] | str | Codec
To = OneTo | Sequence[OneTo | tuple[OneTo, int | None]]
Folder = str | os.PathLike[str] | None

_EXPECTED = "expected 'cpu', 'disk', or one of tt.codecs, e.g. tt.codecs.bf16()."
_METHODS = ("accepts", "encode", "decode")


def make_tiers(to: Any, folder: Folder, *, allow_tmpfs: bool, min_bytes: int) -> list[Tier]:
    """Make the tiers.

    Raises:
        InputError: ``to`` names none, or none has space for a tensor, or an argument belongs to
            a tier that is not asked for.
    """
    chain = list(to) if isinstance(to, list | tuple) else [to]
    if not chain:
        raise InputError("to is an empty list; expected 'cpu', 'disk', a codec, or several.")
    pairs = [_with_budget(item) for item in chain]
    for one, _ in pairs:
        _check_kind(one)
    _check_belongs([one for one, _ in pairs], folder, allow_tmpfs=allow_tmpfs)
    _check_space(pairs, min_bytes)
    return [_tier(one, capacity, folder, allow_tmpfs=allow_tmpfs) for one, capacity in pairs]


def _with_budget(item: Any) -> tuple[Any, int | None]:
    if not isinstance(item, tuple):
        return item, None
    if len(item) == 2 and (item[1] is None or is_number(item[1])):
        return item
    raise InputError(f"to holds {item!r}; expected a pair, of where to and a number of bytes.")


def is_number(value: object) -> bool:
    """Return whether a value is a number of bytes."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_kind(one: Any) -> None:
    if one in ("cpu", "disk"):
        return
    has = [name for name in _METHODS if callable(getattr(one, name, None))]
    if not has or isinstance(one, str | type):
        raise InputError(f"to holds {one!r}; {_EXPECTED}")
    missing = [name for name in _METHODS if name not in has]
    if not isinstance(getattr(one, "name", None), str):
        missing.append("name")
    if missing:
        raise InputError(
            f"to holds a codec, {type(one).__name__}, without {' and '.join(missing)}; a codec has "
            f"a name, accepts(dtype), encode(elements) and decode(parts, length, dtype)."
        )


def _check_belongs(kinds: Sequence[Any], folder: Folder, *, allow_tmpfs: bool) -> None:
    for name, is_given in (("dir", folder is not None), ("allow_tmpfs", allow_tmpfs)):
        if is_given and "disk" not in kinds:
            raise InputError(
                f"{name} is given, and only 'disk' uses it, which is not among to. Leave it out, "
                f"or pass to='disk'."
            )


def _check_space(pairs: Sequence[tuple[Any, int | None]], min_bytes: int) -> None:
    """Some tier must have space for the smallest tensor that is moved."""
    least = max(1, min_bytes)
    for one, capacity in pairs:
        if capacity is None or capacity >= (aligned(least) if one == "disk" else least):
            return
    budgets = ", ".join(
        f"{one if isinstance(one, str) else one.name} {capacity:,}" for one, capacity in pairs
    )
    raise InputError(
        f"to gives budgets in which no tensor has room (bytes: {budgets}): the smallest that "
        f"leaves has {least:,} bytes (min_bytes={min_bytes:,}), and takes {aligned(least):,} on a "
        f"disk. Give more, or a smaller min_bytes."
    )


def _tier(one: Any, capacity: int | None, folder: Folder, *, allow_tmpfs: bool) -> Tier:
    if one == "disk":
        return _disk(folder, capacity, allow_tmpfs=allow_tmpfs)
    return HostTier(streams_in_use(), capacity) if one == "cpu" else CodecTier(one, capacity)


def _disk(folder: Folder, capacity: int | None, *, allow_tmpfs: bool) -> DiskTier:
    where = folder_for(folder, allow_memory=allow_tmpfs)
    try:
        return DiskTier(where, capacity)
    except OSError as error:
        raise InputError(
            f"dir is {str(where)!r}, where no file can be made ({error.strerror}). Give another "
            f"folder."
        ) from error
