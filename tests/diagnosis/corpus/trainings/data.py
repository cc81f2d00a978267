"""Data that come with scikit-learn and scikit-image, loaded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from trainings.design import pick


def _tensors(bunch: Any) -> tuple[Tensor, Tensor]:
    return torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target)


@cache
def cancer() -> tuple[Tensor, Tensor]:
    """569 cells of 30 raw features, and 2 classes."""
    from sklearn.datasets import load_breast_cancer

    return _tensors(load_breast_cancer())


@cache
def wine() -> tuple[Tensor, Tensor]:
    """178 wines of 13 raw features, and 3 classes."""
    from sklearn.datasets import load_wine

    return _tensors(load_wine())


@cache
def diabetes() -> tuple[Tensor, Tensor]:
    """442 persons of 10 raw features, and a number to predict (25 to 346)."""
    from sklearn.datasets import load_diabetes

    x, y = _tensors(load_diabetes(scaled=False))
    return x, y.float()


@cache
def picture(name: str) -> Tensor:
    """A grey picture from 0 to 1: float32[H, W]."""
    from skimage import data

    found = torch.tensor(getattr(data, name)(), dtype=torch.float32) / 255
    return found.mean(-1) if found.ndim == 3 else found


def scaled(x: Tensor) -> Tensor:
    """Columns of mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / x.std(0)


def rows_of(step: int, num: int, *tensors: Tensor) -> list[Tensor]:
    """Pick one set of random rows from each tensor."""
    index = pick(step, len(tensors[0]), num)
    return [tensor[index] for tensor in tensors]


def patches(step: int, name: str, num: int, size: int) -> Tensor:
    """Random squares of a picture: float32[num, 1, size, size]."""
    whole = picture(name)
    tops = pick(step, whole.shape[0] - size, num)
    lefts = pick(step + 500, whole.shape[1] - size, num)
    squares = [whole[t : t + size, s : s + size] for t, s in zip(tops, lefts, strict=True)]
    return torch.stack(squares)[:, None]
