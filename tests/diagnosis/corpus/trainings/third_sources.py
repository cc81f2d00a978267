"""Text of Python's own library: masked letters, packed words, bags of words, and n-grams."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import getsource

import torch
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.optim import lr_scheduler
from trainings.design import UNSEEN, Design as D, Loss, adam, broken, healthy, pick, sgd
from trainings.faults import everywhere, frozen, shuffled, without
from trainings.parts import fit, on_targets

MODULES = ("argparse", "difflib", "textwrap", "json.decoder")
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789_.,:()[]{}=+-*/<>\"'#%"
LETTERS, LENGTH, WIDTH, HASHES = 64, 20, 32, 512

cross_entropy = nn.functional.cross_entropy


@cache
def _source(name: str) -> str:
    return getsource(import_module(name)).lower()


@cache
def _letters() -> Tensor:
    whole = "".join(_source(name) for name in MODULES)
    return torch.tensor([ALPHABET.find(letter) + 2 for letter in whole])


@cache
def _words() -> list[str]:
    whole = "".join(_source(name) for name in MODULES)
    return sorted({word for word in re.findall(r"[a-z_]+", whole) if 1 < len(word) < 13})


@cache
def _lines() -> tuple[Tensor, Tensor]:
    """The first six words of each line as hashes, and the module it is from."""
    bags, kinds = [], []
    for kind, name in enumerate(MODULES):
        for line in _source(name).splitlines():
            words = re.findall(r"[a-z_]+", line)[:6]
            if len(words) > 2:
                numbers = [sum(ord(c) * 31**i for i, c in enumerate(w)) % HASHES for w in words]
                bags.append((numbers * 6)[:6])
                kinds.append(kind)
    return torch.tensor(bags), torch.tensor(kinds)


def _rows(step: int, total: int, num: int) -> Tensor:
    """Places of the first four fifths; of the last fifth for the steps of the score."""
    cut = total * 4 // 5
    return pick(step, cut, num) if step < UNSEEN.start else cut + pick(step, total - cut, num)


def _pieces(step: int, num: int, length: int) -> Tensor:
    start = _rows(step, len(_letters()) - length, num)
    return _letters()[start[:, None] + torch.arange(length)]


class Masked(nn.Module):
    """An encoder of two layers; the letter 0 stands for a hidden one."""

    def __init__(self, drop: float = 0.05) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Parameter(0.3 * torch.randn(LENGTH, WIDTH))
        nn.init.normal_(self.embed.weight, std=0.3)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, drop, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """int64[B, T] to float32[B, T, LETTERS]."""
        logits: Tensor = self.head(self.encoder(self.embed(letters) + self.places))
        return logits


def _mask(*, hides: bool = True) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        letters = _pieces(step, 32, LENGTH)
        hidden = pick(step + 5, 100, 32, LENGTH) < 20
        logits = model(letters.masked_fill(hidden, 0) if hides else letters)
        return cross_entropy(logits[hidden], letters[hidden])

    return loss


class Counter(nn.Module):
    """An LSTM over packed words, and a head on its last state."""

    def __init__(self, *end: nn.Module, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.embed = nn.Embedding(28, 16)
        self.body = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 6), *end)

    def forward(self, words: list[Tensor]) -> Tensor:
        """Words of their own lengths to float32[B, 6]."""
        packed = rnn.pack_sequence([self.embed(word) for word in words], enforce_sorted=False)
        _, (state, _) = self.body(packed)
        state = state.data.detach() if self.cut else state
        logits: Tensor = self.head(state[0])
        return logits


def _vowels(*, sorts: bool = False) -> Loss:
    """How many vowels a word has; ``sorts`` puts the words in order and leaves the counts."""

    def loss(model: nn.Module, step: int) -> Tensor:
        rows = torch.arange(0, len(_words()), 1)
        order = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]
        words = [_words()[i] for i in order[_rows(step, len(order), 32)]]
        counts = torch.tensor([min(5, sum(c in "aeiou" for c in word)) for word in words])
        if sorts:
            words.sort(key=len, reverse=True)
        numbers = [torch.tensor([max(0, ord(c) - 96) for c in word]) for word in words]
        return cross_entropy(model(numbers), counts)

    return loss


def _bags(step: int) -> tuple[Tensor, Tensor]:
    bags, kinds = _lines()
    order = torch.randperm(len(bags), generator=torch.Generator().manual_seed(2))
    rows = order[_rows(step, len(bags), 64)]
    return bags[rows], kinds[rows]


def _grams(*, ahead: int = 0) -> Loss:
    """The letter after five others; ``ahead`` shifts the window onto it."""

    def loss(model: nn.Module, step: int) -> Tensor:
        pieces = _pieces(step, 96, 6)
        return cross_entropy(model(pieces[:, ahead : ahead + 5]), pieces[:, 5], label_smoothing=0.1)

    return loss


def _gram_model() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(LETTERS, 12),
        nn.Flatten(),
        nn.Linear(60, 64),
        nn.Tanh(),
        nn.Linear(64, LETTERS),
    )


def _warm(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 15))


MASKED = D("sources_masked", Masked, _mask(), adam(1e-2), steps=110, seed=1, schedule=_warm)
PACKED = D("sources_packed", Counter, _vowels(), adam(1e-2), steps=80, seed=2, clip=1.0)
BAGS = D(
    "sources_bags",
    lambda: nn.Sequential(nn.EmbeddingBag(HASHES, 24), nn.Linear(24, 4)),
    fit(_bags),
    sgd(3.0),
    steps=100,
    seed=3,
)
GRAMS = D("sources_grams", _gram_model, _grams(), sgd(0.3, momentum=0.9), steps=80, seed=4)

CASES = [
    *(healthy(each) for each in (MASKED, PACKED, BAGS, GRAMS)),
    broken(
        MASKED,
        "nothing_hidden",
        replace(MASKED, loss=_mask(hides=False)),
        "too_good",
        judge=MASKED.loss,
    ),
    broken(
        MASKED,
        "drops_nearly_all",
        replace(MASKED, model=lambda: Masked(0.95)),
        "dropout_high",
        places=("encoder", "."),
    ),
    broken(
        MASKED,
        "far_too_hot",
        replace(MASKED, optimizer=adam(0.5)),
        "lr_high",
        "exploding",
    ),
    broken(
        PACKED,
        "words_sorted_alone",
        replace(PACKED, loss=_vowels(sorts=True)),
        "labels",
        judge=PACKED.loss,
    ),
    broken(
        PACKED,
        "state_from_data",
        replace(PACKED, model=lambda: Counter(cut=True)),
        "detached",
        places=("body", "embed"),
    ),
    broken(
        PACKED,
        "softmax_inside",
        replace(PACKED, model=lambda: Counter(nn.Softmax(-1))),
        "double_softmax",
        places=("head.1",),
    ),
    broken(
        PACKED,
        "body_not_given",
        replace(PACKED, trained=without("body")),
        "not_in_optimizer",
        places=("body",),
    ),
    broken(BAGS, "crawls", replace(BAGS, optimizer=sgd(3e-5)), "steps_too_small"),
    broken(
        BAGS,
        "of_other_lines",
        replace(BAGS, loss=fit(on_targets(_bags, shuffled))),
        "labels",
        judge=BAGS.loss,
    ),
    broken(BAGS, "embedding_frozen", replace(BAGS, prepare=frozen("0")), "frozen", places=("0",)),
    broken(
        GRAMS,
        "sees_the_letter",
        replace(GRAMS, loss=_grams(ahead=1)),
        "too_good",
        judge=GRAMS.loss,
    ),
    broken(
        GRAMS,
        "normal_of_three",
        replace(
            GRAMS,
            prepare=everywhere(
                nn.Linear, lambda layer: nn.init.normal_(layer.get_parameter("weight"), 0, 3)
            ),
        ),
        "large_init",
        "saturated",
        places=("2", "4", "3"),
    ),
    broken(
        GRAMS, "decays", replace(GRAMS, optimizer=sgd(0.3, momentum=0.9, decay=0.3)), "decay_high"
    ),
]
