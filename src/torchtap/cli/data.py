"""The data set that ``torchtap record --data`` names: pictures, an array, a table, or code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtap.cli.batch import image_tensor, read_image
from torchtap.cli.model import existing_file, load_object
from torchtap.core.errors import InputError, MissingExtraError

_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")


def load_data(target: str, how: Mapping[str, Any]) -> Any:
    """Return a data set with a length, whose items have a place.

    Args:
        target: a folder of pictures, a .npy or .parquet file, or ``package.module:name`` of a data
            set, or of a function or class that makes one.
        how: ``size``, ``mean`` and ``std`` for pictures.

    Raises:
        InputError: there is none, or it does not read as what it should be.
    """
    path = Path(target)
    if path.is_dir():
        return Pictures(path, how)
    if path.suffix == ".npy":
        return _array(existing_file(path))
    if path.suffix == ".parquet":
        return _table(existing_file(path))
    if ":" not in target:
        raise InputError(
            f"--data is {target}; expected a folder of pictures, a .npy or .parquet file, or "
            f"package.module:name."
        )
    data = load_object(target, what="--data")
    made = data() if isinstance(data, type) or not _has_items(data) else data
    if not _has_items(made):
        raise InputError(
            f"{target} is a {type(made).__name__}; expected a data set with a length and items."
        )
    return made


def _has_items(value: object) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


class Pictures:
    """The pictures of a folder and of the folders in it, by name.

    Args:
        folder: where.
        how: ``size``, ``mean`` and ``std``, as for one picture.
    """

    def __init__(self, folder: Path, how: Mapping[str, Any]) -> None:
        self.files = sorted(
            one for one in folder.rglob("*") if one.suffix.lower() in _PICTURES and one.is_file()
        )
        if not self.files:
            raise InputError(f"{folder} has no picture in it ({', '.join(_PICTURES)}).")
        self._how = dict(how)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> Any:
        return image_tensor(read_image(self.files[place]), **self._how)[0]


class Rows:
    """The rows of an array or of a table, as tensors.

    Args:
        array: what has them; its memory may be that of a file.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, place: int) -> Any:
        import numpy
        import torch

        return torch.from_numpy(numpy.array(self._array[place]))


def _array(file: Path) -> Rows:
    import numpy

    try:
        array = numpy.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{file} cannot be read as an array of numbers: {error}.") from error
    if not array.ndim:
        raise InputError(f"{file} holds one number; expected an array with a row for each sample.")
    return Rows(array)


def _table(file: Path) -> Rows:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError(
            "Reading Parquet needs pyarrow. Install it: pip install 'torchtap[store]'."
        ) from error
    import numpy

    try:
        table = pyarrow.parquet.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file} cannot be read as a Parquet file: {error}.") from error
    columns = [_numbers(file, name, table.column(name)) for name in table.column_names]
    if not columns:
        raise InputError(f"{file} has no column.")
    if len(columns) == 1:
        return Rows(columns[0])
    if any(column.ndim > 1 for column in columns):
        raise InputError(
            f"{file} has {len(columns)} columns, of which some are lists; expected one column of "
            f"lists, or columns of numbers."
        )
    return Rows(numpy.stack(columns, axis=1))


def _numbers(file: Path, name: str, column: Any) -> Any:
    """Return a column as an array: of numbers, or of lists of equal length."""
    import numpy

    numbers = numpy.array(column.to_pylist())
    if numbers.dtype.kind not in "biufc":
        raise InputError(
            f"The column {name!r} of {file} is {column.type}; expected numbers, or lists of "
            f"equally many."
        )
    is_wide = numbers.dtype == numpy.float64 and "double" not in str(column.type)
    return numbers.astype(numpy.float32) if is_wide else numbers
