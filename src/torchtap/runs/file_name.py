"""Valid names of a run in one file. Knows nothing of torch."""

from __future__ import annotations

import re
from pathlib import Path

from torchtap.core.errors import InputError

ENDING = ".safetensors"
_OTHER_KINDS = re.compile(
    r"\.(bin|ckpt|csv|gz|h5|hdf5|html|jpe?g|jsonl?|md|np[yz]|onnx|parquet|pdf|pickle|pkl|png|pth?"
    r"|py|svg|tar|txt|ya?ml|zip)",
    re.IGNORECASE,
)


def is_of_another_kind(path: Path) -> bool:
    """Return whether a name ends as files of another kind do, which programs would take it for.

    Example:
        >>> is_of_another_kind(Path("x.pt")), is_of_another_kind(Path("model.v2"))
        (True, False)
    """
    return _OTHER_KINDS.fullmatch(path.suffix) is not None


def refuse_other_kind(path: Path) -> None:
    """Refuse a name under which nobody would look for safetensors.

    Raises:
        InputError: it ends as files of another kind do.
    """
    if is_of_another_kind(path):
        raise InputError(
            f"{path} ends in {path.suffix}, and a run is saved as safetensors: give a name that "
            f"ends in {ENDING}, such as {str(path.with_suffix(ENDING))!r}. `torchtap export` "
            f"writes npz, csv and parquet."
        )
