"""Sequences: letters by a transformer, connectionist labels, translation, and noise taken off."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart, windows
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick
from trainings.faults import filled, shuffled, times, without
from trainings.parts import Block, causal, flipped, mse

functional = nn.functional


class Writer(nn.Module):
    """A small decoder of letters; ``ahead`` lets it look ahead."""

    def __init__(self, *, ahead: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(33, 32)
        self.places = nn.Parameter(0.02 * torch.randn(24, 32))
        self.blocks = nn.ModuleList([Block(32), Block(32)])
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 33)
        self.ahead = ahead

    def forward(self, words: Tensor) -> Tensor:
        """int64[B, 24] to float32[B, 24, 33]."""
        x = self.embed(words) + self.places
        for block in self.blocks:
            x = block(x, None if self.ahead else causal(24))
        logits: Tensor = self.head(self.norm(x))
        return logits


class Listener(nn.Module):
    """Frames to letters, by a GRU of both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(8, 24, 3, padding=1)
        self.body = nn.GRU(24, 24, bidirectional=True)
        self.head = nn.Linear(48, 7)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 8, T] to float32[T, B, 7]."""
        inner = self.enter(x).relu().permute(2, 0, 1)
        logits: Tensor = self.head(self.body(inner)[0])
        return logits


class Translator(nn.Module):
    """An encoder, and a decoder that attends to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.read = nn.GRU(24, 24, batch_first=True)
        self.write = nn.GRU(24, 24, batch_first=True)
        self.mix = nn.Linear(48, 24)
        self.head = nn.Linear(24, 12)

    def forward(self, words: Tensor, before: Tensor) -> Tensor:
        """int64[B, T], int64[B, T] to float32[B, T, 12]."""
        seen, state = self.read(self.embed(words))
        states, _ = self.write(self.embed(before), state)
        weights = (states @ seen.transpose(1, 2) / 5).softmax(-1)
        logits: Tensor = self.head(self.mix(torch.cat([states, weights @ seen], -1)).tanh())
        return logits


class Cleaner(nn.Module):
    """Takes noise off a digit, given how much there is."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Linear(1, 24)
        self.enter, self.middle = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.norm, self.leave = nn.GroupNorm(4, 24), nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        """float32[B, 1, 8, 8], float32[B, 1] to the noise in it."""
        inner = self.enter(x) + self.level(level)[:, :, None, None]
        noise: Tensor = self.leave(functional.silu(self.norm(self.middle(functional.silu(inner)))))
        return noise


def _letters(model: nn.Module, step: int) -> Tensor:
    words, after = windows(step, 12, 24)
    return functional.cross_entropy(model(words).flatten(0, 1), after.flatten())


def _letters_of_others(model: nn.Module, step: int) -> Tensor:
    words, after = windows(step, 12, 24)
    other = shuffled(step, after.flatten())
    return functional.cross_entropy(model(words).flatten(0, 1), other)


def _letters_twice(model: nn.Module, step: int) -> Tensor:
    words, after = windows(step, 12, 24)
    likely = model(words).softmax(-1)
    return functional.cross_entropy(likely.flatten(0, 1), after.flatten())


def _letters_over_time(model: nn.Module, step: int) -> Tensor:
    words, after = windows(step, 12, 24)
    likely = model(words).log_softmax(1)
    return functional.nll_loss(likely.flatten(0, 1), after.flatten())


def _frames(step: int) -> tuple[Tensor, Tensor]:
    """Four letters, each for five frames in a tone of its own."""
    letters = pick(step, 6, 16, 4) + 1
    tones = torch.randn(7, 8, generator=torch.Generator().manual_seed(8))
    x = tones[letters].repeat_interleave(5, 1).transpose(1, 2)
    return x + 0.2 * draw(step, *x.shape), letters


def _heard(of_others: bool = False) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, letters = _frames(step)
        if of_others:
            letters = pick(step + 999, 6, 16, 4) + 1
        logs = model(x).log_softmax(-1)
        lengths = torch.full((16,), 20), torch.full((16,), 4)
        return functional.ctc_loss(logs, letters, *lengths)

    return loss


def _turned(of_others: bool = False) -> Loss:
    """Words the other way round."""

    def loss(model: nn.Module, step: int) -> Tensor:
        words = pick(step, 10, 32, 6) + 2
        after = words.flip(1) if not of_others else shuffled(step, words.flip(1))
        before = torch.cat([torch.ones(32, 1, dtype=torch.long), after[:, :-1]], 1)
        if of_others:
            before = torch.ones_like(before)
        logits = model(words, before)
        return functional.cross_entropy(logits.transpose(1, 2), after)

    return loss


def _cleaned(others: bool = False) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x, _ = kept_apart(step, 24, *digits())
        level = torch.rand(24, 1, generator=torch.Generator().manual_seed(step))
        noise = draw(step, *x.shape)
        blend = (1 - level)[..., None, None] * (2 * x - 1) + level[..., None, None] * noise
        wanted = draw(step + 31, *x.shape) if others else noise
        return mse(model(blend, level), wanted)

    return loss


WRITER = D("speech_writer", Writer, _letters, adam(3e-3), steps=80, seed=661)
LISTENER = D("speech_listener", Listener, _heard(), adam(1e-2), steps=60, seed=662, clip=5.0)
TRANSLATOR = D("speech_translator", Translator, _turned(), adam(1e-2), steps=80, seed=663)
CLEANER = D("speech_cleaner", Cleaner, _cleaned(), adam(4e-3), steps=60, seed=664)

CASES = [
    *(healthy(each) for each in (WRITER, LISTENER, TRANSLATOR, CLEANER)),
    broken(WRITER, "of_others", replace(WRITER, loss=_letters_of_others), "labels", judge=_letters),
    broken(WRITER, "twice", replace(WRITER, loss=_letters_twice), "double_softmax", judge=_letters),
    broken(
        WRITER,
        "over_time",
        replace(WRITER, loss=_letters_over_time),
        "double_softmax",
        "final_activation",
        "labels",
        judge=_letters,
    ),
    broken(WRITER, "climbs", replace(WRITER, loss=flipped(_letters)), "loss_rises", judge=_letters),
    broken(
        WRITER,
        "blocks_left_out",
        replace(WRITER, trained=without("blocks")),
        "not_in_optimizer",
        places=("blocks",),
    ),
    broken(
        WRITER,
        "embeds_huge",
        replace(WRITER, prepare=times("embed", 200.0)),
        "large_init",
        places=("embed",),
    ),
    broken(
        LISTENER, "of_others", replace(LISTENER, loss=_heard(True)), "labels", judge=LISTENER.loss
    ),
    broken(
        LISTENER, "never_cleared", replace(LISTENER, zeroes_grad=False, clip=None), "no_zero_grad"
    ),
    broken(
        TRANSLATOR,
        "of_others",
        replace(TRANSLATOR, loss=_turned(True)),
        "labels",
        judge=TRANSLATOR.loss,
    ),
    broken(TRANSLATOR, "hot", replace(TRANSLATOR, optimizer=adam(1.0)), "lr_high", "exploding"),
    broken(
        CLEANER, "of_others", replace(CLEANER, loss=_cleaned(True)), "labels", judge=CLEANER.loss
    ),
    broken(
        CLEANER,
        "alike",
        replace(CLEANER, prepare=filled(0.03, "middle")),
        "symmetric",
        places=("middle",),
    ),
    broken(
        CLEANER,
        "climbs",
        replace(CLEANER, loss=flipped(CLEANER.loss)),
        "loss_rises",
        judge=CLEANER.loss,
    ),
]
