"""Public helpers for tests: the zoo of small models, each with one trap, and fake streams."""

from torchtap.testing.fake_streams import FakeStreams
from torchtap.testing.loss import default_loss
from torchtap.testing.net import Net
from torchtap.testing.zoo import Specimen, zoo

__all__ = ["FakeStreams", "Net", "Specimen", "default_loss", "zoo"]
