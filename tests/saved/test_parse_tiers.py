"""Folders that a tier may be given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchtap as tt
from torchtap.core.errors import InputError
from torchtap.saved.spill_file import folder_for, is_in_memory


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        tt.offload("disk", dir=tmp_path / "missing")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is no folder"):
        tt.offload("disk", dir=tmp_path / "file")


def test_a_folder_where_no_file_can_be_made_is_refused() -> None:
    with pytest.raises(InputError, match=r"'/proc'"):
        tt.offload("disk", dir="/proc")


@pytest.mark.skipif(not is_in_memory(Path("/dev/shm")), reason="no tmpfs here")
def test_a_folder_in_memory_is_refused_unless_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is in memory"):
        tt.offload("disk", dir="/dev/shm")
    (tmp_path / "link").symlink_to("/dev/shm")
    with pytest.raises(InputError, match="is in memory"):
        tt.offload("disk", dir=tmp_path / "link")
    assert folder_for("/dev/shm", allow_memory=True) == Path("/dev/shm")
    tt.offload("disk", dir="/dev/shm", allow_tmpfs=True, missing="ignore").close()


def test_a_codec_without_a_name_is_refused() -> None:
    class Nameless:
        def accepts(self, dtype: torch.dtype) -> bool:
            return False

        def encode(self, elements: Tensor) -> list[Tensor]:
            return [elements]

        def decode(self, parts: list[Tensor], length: int, dtype: torch.dtype) -> Tensor:
            return parts[0]

    with pytest.raises(tt.InputError, match="Nameless, without name; a codec has"):
        tt.offload(Nameless())  # type: ignore[arg-type]
