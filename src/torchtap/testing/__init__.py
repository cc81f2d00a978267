"""Public helpers for tests and examples: the zoo of small models, whole networks, fake streams."""

from torchtap.testing.fake_streams import FakeStreams
from torchtap.testing.loss import default_loss
from torchtap.testing.net import Net
from torchtap.testing.networks import TinyGPT, resnet18, resnet34
from torchtap.testing.zoo import Specimen, zoo

__all__ = [
    "FakeStreams",
    "Net",
    "Specimen",
    "TinyGPT",
    "default_loss",
    "resnet18",
    "resnet34",
    "zoo",
]
