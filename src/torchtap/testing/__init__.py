"""Public helpers for tests: the zoo of small models, each with one trap."""

from torchtap.testing.zoo import Net, Specimen, default_loss, zoo

__all__ = ["Net", "Specimen", "default_loss", "zoo"]
