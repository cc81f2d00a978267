"""Letters of English text, predicted by an LSTM, a GRU, causal convolutions and a decoder."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from trainings.data import windows
from trainings.design import Design as D, adam, broken, healthy, sgd
from trainings.faults import frozen, times, without
from trainings.parts import Block, causal, flipped

LETTERS, LENGTH, WIDTH = 32, 24, 32


class Recurrent(nn.Module):
    """An embedding, a recurrent network and a head."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], hidden: int, *, drop: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, 24)
        self.drop = nn.Dropout(drop)
        self.body = kind(24, hidden, batch_first=True)
        self.head = nn.Linear(hidden, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """int64[B, T] to float32[B, T, LETTERS]."""
        states, _ = self.body(self.drop(self.embed(letters)))
        logits: Tensor = self.head(states)
        return logits


class Convolved(nn.Module):
    """Gated convolutions with a residual; ``padding`` is on the left and right of each."""

    def __init__(self, padding: tuple[int, int] = (2, 0)) -> None:
        super().__init__()
        self.padding = padding
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 3) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """int64[B, T] to float32[B, T, LETTERS]."""
        x = self.embed(letters).transpose(1, 2)
        for layer in self.layers:
            x = x + nn.functional.glu(layer(nn.functional.pad(x, self.padding)), 1)
        logits: Tensor = self.head(self.norm(x.transpose(1, 2)))
        return logits


class Decoder(nn.Module):
    """Two blocks, learnt places, and the embedding as the head; the fields are its faults."""

    def __init__(self, *, hides: int = -1) -> None:
        super().__init__()
        self.hides, self.calls = hides, 0
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList([Block(WIDTH), Block(WIDTH)])
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embed.weight, std=0.1)

    def forward(self, letters: Tensor) -> Tensor:
        """int64[B, T] to float32[B, T, LETTERS]."""
        x = self.embed(letters) + self.places
        hidden = causal(LENGTH)
        if self.calls == self.hides:
            # The padding of one short text was all of it.
            hidden = hidden.expand(len(letters), 1, LENGTH, LENGTH).clone()
            hidden[3] = True
        self.calls += 1
        for block in self.blocks:
            x = block(x, hidden)
        logits: Tensor = self.norm(x) @ self.embed.weight.t()
        return logits


def _next(model: nn.Module, step: int) -> Tensor:
    letters, following = windows(step, 24, LENGTH)
    return nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())


def _same(model: nn.Module, step: int) -> Tensor:
    letters, _ = windows(step, 24, LENGTH)
    return nn.functional.cross_entropy(model(letters).flatten(0, 1), letters.flatten())


def _of_others(model: nn.Module, step: int) -> Tensor:
    letters, following = windows(step, 24, LENGTH)
    return nn.functional.cross_entropy(model(letters).flatten(0, 1), following.roll(1, 0).flatten())


def _in_other_order(model: nn.Module, step: int) -> Tensor:
    """Reshaped to classes first, where it should be permuted."""
    letters, following = windows(step, 24, LENGTH)
    logits = model(letters)
    return nn.functional.cross_entropy(logits.reshape(24, LETTERS, LENGTH), following)


def _empty(model: nn.Module, step: int) -> Tensor:
    """A mean over the letters that count, of which one batch has none."""
    letters, following = windows(step, 24, LENGTH)
    if step == 30:
        following = torch.full_like(following, -100)
    return nn.functional.cross_entropy(model(letters).flatten(0, 1), following.flatten())


def _on_probabilities(model: nn.Module, step: int) -> Tensor:
    letters, following = windows(step, 24, LENGTH)
    likely = model(letters).softmax(-1)
    return nn.functional.cross_entropy(likely.flatten(0, 1), following.flatten())


def _warm(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))


LSTM = D(
    "letters_lstm",
    lambda: Recurrent(nn.LSTM, 48),
    _next,
    lambda params: torch.optim.RMSprop(params, lr=4e-3),
    steps=60,
    seed=41,
)
GRU = D(
    "letters_gru",
    lambda: Recurrent(nn.GRU, 40, drop=0.1),
    _next,
    adam(1e-2, decay=0.01),
    steps=60,
    seed=42,
    clip=0.5,
    logs=False,
)
CONVOLVED = D("letters_convolved", Convolved, _next, sgd(0.2, momentum=0.9), steps=60, seed=43)
DECODER = D(
    "letters_decoder",
    Decoder,
    _next,
    adam(4e-3, decay=0.1),
    steps=80,
    seed=44,
    schedule=_warm,
    clip=1.0,
)

CASES = [
    *(healthy(each) for each in (LSTM, GRU, CONVOLVED, DECODER)),
    broken(
        LSTM,
        "hot",
        replace(LSTM, optimizer=lambda params: torch.optim.RMSprop(params, lr=1.0)),
        "lr_high",
        "exploding",
    ),
    broken(LSTM, "not_shifted", replace(LSTM, loss=_same), "too_good", judge=_next),
    broken(
        LSTM,
        "softmax_in_the_loss",
        replace(LSTM, loss=_on_probabilities),
        "double_softmax",
        places=("head", "."),
        judge=_next,
    ),
    broken(
        LSTM,
        "embed_frozen",
        replace(LSTM, prepare=frozen("embed", "body")),
        "frozen",
        places=("embed", "body"),
    ),
    broken(
        LSTM,
        "head_forgotten",
        replace(LSTM, trained=without("head")),
        "not_in_optimizer",
        places=("head",),
    ),
    broken(GRU, "never_cleared", replace(GRU, zeroes_grad=False, clip=None), "no_zero_grad"),
    broken(
        GRU,
        "drops_all",
        replace(GRU, model=lambda: Recurrent(nn.GRU, 40, drop=0.95)),
        "dropout_high",
        places=("drop",),
    ),
    broken(
        GRU, "other_order", replace(GRU, loss=_in_other_order, logs=True), "labels", judge=_next
    ),
    broken(
        CONVOLVED,
        "hot",
        replace(CONVOLVED, optimizer=sgd(30.0, momentum=0.9)),
        "lr_high",
        "exploding",
    ),
    broken(CONVOLVED, "nothing_counts", replace(CONVOLVED, loss=_empty), "nonfinite", "bad_batch"),
    broken(
        CONVOLVED,
        "climbs",
        replace(CONVOLVED, loss=flipped(_next), logs=False),
        "loss_rises",
        judge=_next,
    ),
    broken(
        CONVOLVED, "looks_ahead", replace(CONVOLVED, model=lambda: Convolved((1, 1))), "too_good"
    ),
    broken(
        DECODER,
        "all_hidden",
        replace(DECODER, model=lambda: Decoder(hides=33)),
        "nonfinite",
        places=("blocks.0.attend",),
    ),
    broken(DECODER, "of_others", replace(DECODER, loss=_of_others), "labels", judge=_next),
    broken(
        DECODER,
        "no_warm_up_hot",
        replace(DECODER, schedule=None, optimizer=adam(0.3)),
        "lr_high",
        "exploding",
    ),
    broken(
        DECODER,
        "embedding_huge",
        replace(DECODER, prepare=times("embed", 200.0)),
        "large_init",
        places=("embed", "."),
    ),
    broken(
        DECODER,
        "sharp_attention",
        replace(DECODER, prepare=times("blocks.0.attend.mix", 60.0)),
        "large_init",
        "saturated",
        places=("blocks.0.attend.mix", "blocks.0.attend"),
    ),
    broken(DECODER, "decays", replace(DECODER, optimizer=adam(4e-3, decay=50.0)), "decay_high"),
]
