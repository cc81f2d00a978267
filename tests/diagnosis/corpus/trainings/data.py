"""Data that come with scikit-learn and scikit-image, loaded once."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from trainings.design import UNSEEN, pick


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


@cache
def digits() -> tuple[Tensor, Tensor]:
    """1797 handwritten digits, float32[1797, 1, 8, 8] from 0 to 1, and 10 classes."""
    from sklearn.datasets import load_digits

    x, y = _tensors(load_digits())
    return x.reshape(-1, 1, 8, 8) / 16, y


@cache
def iris() -> tuple[Tensor, Tensor]:
    """150 flowers of 4 raw features, sorted by their 3 classes."""
    from sklearn.datasets import load_iris

    return _tensors(load_iris())


@cache
def text() -> Tensor:
    """English text as numbers of its letters, below 32: int64[N]."""
    from sklearn import datasets

    loaders = (datasets.load_iris, datasets.load_wine, datasets.load_diabetes)
    words = " ".join(" ".join(load().DESCR.lower().split()) for load in loaders)
    letters = " abcdefghijklmnopqrstuvwxyz.,-:"
    return torch.tensor([letters.find(letter) + 1 for letter in words])


def windows(step: int, num: int, length: int) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and the letters after each: int64[num, length] twice."""
    start = pick(step, len(text()) - length - 1, num)
    places = start[:, None] + torch.arange(length + 1)
    pieces = text()[places]
    return pieces[:, :-1], pieces[:, 1:]


def kept_apart(step: int, num: int, *tensors: Tensor) -> list[Tensor]:
    """Random rows of four fifths of the data; of the last fifth for the steps of the score."""
    total = len(tensors[0])
    order = torch.randperm(total, generator=torch.Generator().manual_seed(12))
    cut = total * 4 // 5
    rows = order[:cut] if step < UNSEEN.start else order[cut:]
    return [tensor[rows[pick(step, len(rows), num)]] for tensor in tensors]
