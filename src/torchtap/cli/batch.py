"""The batch that a model is run on: from a picture, an array, or random numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtap.cli.model import existing_file
from torchtap.core.did_you_mean import did_you_mean
from torchtap.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor


IMAGENET_MEAN = (0.485, 0.456, 0.406)


IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments that a model is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, model: Callable[..., Any]) -> Any:
        """Call the model."""
        return model(*self.args, **self.kwargs)


def load_batch(
    *,
    image: str | Path | None = None,
    file: str | Path | None = None,
    shape: str | None = None,
    size: int = 224,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    dtype: str = "float32",
    high: int | None = None,
    seed: int = 0,
) -> Batch:
    """Return the one batch that was asked for: a picture, a file, or random numbers of a shape.

    Raises:
        InputError: none or several were given, or the one does not read as what it should be.
        MissingExtraError: a picture was given and Pillow is not installed.
    """
    named = {"--image": image, "--input": file, "--shape": shape}
    given = [name for name, value in named.items() if value is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise InputError(f"Give one of --image, --input and --shape; found {found}.")
    if image is not None:
        return Batch((image_tensor(read_image(image), size=size, mean=mean, std=std),))
    if file is not None:
        return _batch_of(existing_file(file))
    assert shape is not None
    return Batch((random_tensor(parse_shape(shape), dtype=dtype, high=high, seed=seed),))


def read_image(path: str | Path) -> Any:
    """Return a picture in RGB, turned as its EXIF data say."""
    image, ops = _pillow()
    file = existing_file(path)
    try:
        with image.open(file) as opened:
            return ops.exif_transpose(opened).convert("RGB")
    except image.UnidentifiedImageError as error:
        raise InputError(f"{file} is not a picture that Pillow can read.") from error
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise InputError(f"{file} cannot be read as a picture: {error}.") from error


def square(picture: Any, size: int) -> Any:
    """Return the middle square of a picture, resized (bicubic) to ``size`` pixels."""
    if size < 1:
        raise InputError(f"--size is {size}; expected a number of pixels from 1.")
    image, _ = _pillow()
    width, height = picture.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    middle = picture.crop((left, top, left + side, top + side))
    return middle.resize((size, size), image.Resampling.BICUBIC)


def image_tensor(picture: Any, *, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """A picture as ``float32[1, 3, size, size]``: values 0 to 1, less ``mean``, over ``std``."""
    import numpy
    import torch

    for name, values in (("--mean", mean), ("--std", std)):
        if len(values) not in (1, 3):
            raise InputError(f"{name} has {len(values)} numbers; expected 1 or 3.")
    if not all(std):
        raise InputError("--std has a zero; the picture is divided by it.")
    pixels = torch.from_numpy(numpy.array(square(picture, size), dtype="float32") / 255)
    shifted = (pixels - torch.tensor(mean)) / torch.tensor(std)
    return shifted.permute(2, 0, 1)[None].contiguous()


def parse_shape(text: str) -> tuple[int, ...]:
    """Return ``1,3,224,224`` as a shape.

    Example:
        >>> parse_shape("1,3,8,8")
        (1, 3, 8, 8)
    """
    words = [word.strip() for word in re.split(r"[,x]", text.strip("()[] "))]
    if not all(word.isdecimal() for word in words):
        raise InputError(
            f"--shape is {text!r}; expected whole numbers with commas, such as 1,3,224,224."
        )
    return tuple(map(int, words))


def random_tensor(
    shape: Sequence[int], *, dtype: str = "float32", high: int | None = None, seed: int = 0
) -> Tensor:
    """Numbers from a generator of their own: normal ones, or whole ones from 0 to ``high - 1``."""
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        # dir(torch) has more, such as int6, which no kernel fills.
        known = [name for name in dir(torch) if re.fullmatch(r"[a-z]+(8|16|32|64|128)|bool", name)]
        raise InputError(f"There is no dtype {dtype!r}{did_you_mean(dtype, known)}")
    generator = torch.Generator().manual_seed(seed)
    try:
        if kind.is_floating_point or kind.is_complex:
            wide = kind if kind in (torch.float64, torch.complex128) else torch.float32
            wide = torch.complex64 if kind is torch.complex64 else wide
            return torch.randn(tuple(shape), generator=generator, dtype=wide).to(kind)
        if kind is torch.bool:
            high = 2
        if high is None or high < 1:
            raise InputError(
                f"--dtype {dtype} needs --high N with N from 1, for numbers from 0 to N - 1 (the "
                f"size of the vocabulary)."
            )
        return torch.randint(high, tuple(shape), generator=generator).to(kind)
    except RuntimeError as error:
        raise InputError(f"A tensor {dtype}{list(shape)} cannot be made: {error}.") from error


def _batch_of(file: Path) -> Batch:
    if file.suffix == ".npy":
        return Batch((_read_npy(file),))
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(file)
        except SafetensorError as error:
            raise InputError(f"{file} is not a safetensors file: {error}.") from error
        if not tensors:
            raise InputError(f"{file} holds no tensor.")
        return Batch(tuple(tensors.values())) if len(tensors) == 1 else Batch((), tensors)
    raise InputError(f"--input is {file}; expected a .npy or a .safetensors file.")


def _read_npy(file: Path) -> Tensor:
    import numpy
    import torch

    try:
        array = numpy.load(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(
            f"{file} cannot be read as an array of numbers: {error}. Arrays of Python objects are "
            f"refused, because reading them runs code."
        ) from error
    try:
        return torch.from_numpy(
            numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
        )
    except TypeError as error:
        raise InputError(
            f"{file} is an array of {array.dtype}; expected numbers that torch has."
        ) from error


def _pillow() -> tuple[Any, Any]:
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtraError(
            "Reading pictures needs Pillow. Install it: pip install 'torchtap[plot]'."
        ) from error
    return Image, ImageOps
