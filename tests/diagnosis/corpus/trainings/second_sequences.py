"""Elman networks, a tagger of packed sequences, and an encoder with a norm after each layer."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim import lr_scheduler
from trainings.design import Design as D, adam, broken, draw, healthy, pick
from trainings.faults import shuffled, times, without
from trainings.parts import fit, flipped, mse, on_inputs

cross_entropy = nn.functional.cross_entropy


class Elman(nn.Module):
    """A recurrent network written as a loop over its cell."""

    def __init__(self, act: nn.Module, width: int = 24, gain: float = 0.9) -> None:
        super().__init__()
        self.enter, self.again = nn.Linear(1, width), nn.Linear(width, width, bias=False)
        self.act, self.head = act, nn.Linear(width, 1)
        nn.init.orthogonal_(self.again.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, T, 1] to the next values, float32[B, T, 1]."""
        state = torch.zeros(len(x), self.again.in_features)
        states = []
        for each in x.unbind(1):
            state = self.act(self.enter(each) + self.again(state))
            states.append(state)
        predicted: Tensor = self.head(torch.stack(states, 1))
        return predicted


class Tagger(nn.Module):
    """A bidirectional GRU over packed sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(12, 16, padding_idx=0)
        self.body = nn.GRU(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 3))

    def forward(self, words: Tensor) -> Tensor:
        """int64[B, T] to float32[B, T, 3]."""
        packed = pack_padded_sequence(
            self.embed(words), (words > 0).sum(1), batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(
            self.body(packed)[0], batch_first=True, total_length=words.shape[1]
        )
        logits: Tensor = self.head(states)
        return logits


class Encoder(nn.Module):
    """PyTorch's encoder, with a norm after each layer; does the first word come again?"""

    def __init__(self, *, batch_first: bool = True, eps: float = 1e-5) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 32)
        self.places = nn.Parameter(0.1 * torch.randn(12, 32))
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=batch_first),
            2,
            enable_nested_tensor=False,
        )
        self.head = nn.Linear(32, 2)

    def forward(self, words: Tensor) -> Tensor:
        """int64[B, 12] to float32[B, 2]."""
        states = self.body(self.embed(words) + self.places)
        logits: Tensor = self.head(states[:, 0])
        return logits


def _waves(step: int) -> tuple[Tensor, Tensor]:
    time = torch.arange(26)[None, :, None] * 0.35
    wave = torch.sin(time * (1 + 0.3 * draw(step, 24, 1, 1)) + draw(step + 1, 24, 1, 1) * 3)
    wave = wave + 0.02 * draw(step + 2, 24, 26, 1)
    return wave[:, :-1], wave[:, 1:]


def _words(step: int) -> tuple[Tensor, Tensor]:
    """Each word is tagged by whether it is more than the word before it; -100 where it ends."""
    words = pick(step, 11, 24, 10) + 1
    lengths = pick(step + 5, 6, 24) + 5
    after = torch.arange(10) >= lengths[:, None]
    before = words.roll(1, 1)
    tags = torch.where(words > before, 1, torch.where(words < before, 2, 0))
    return words.masked_fill(after, 0), tags.masked_fill(after, -100)


def _tags(model: nn.Module, step: int) -> Tensor:
    words, tags = _words(step)
    return cross_entropy(model(words).flatten(0, 1), tags.flatten())


def _own_mean(model: nn.Module, step: int) -> Tensor:
    """The mean of the logs of probabilities, some of which are 0."""
    words, tags = _words(step)
    likely = model(words).softmax(-1)
    hits = nn.functional.one_hot(tags.clamp(min=0), 3) * (tags >= 0)[..., None]
    return -((likely * 40 - 39).clamp(min=0).log() * hits).sum() / hits.sum()


def _other_tags(model: nn.Module, step: int) -> Tensor:
    words, tags = _words(step)
    return cross_entropy(model(words).flatten(0, 1), shuffled(step, tags.flatten()))


def _again(step: int) -> tuple[Tensor, Tensor]:
    words = pick(step, 10, 48, 12)
    count = (words[:, 1:] == words[:, :1]).sum(1)
    return words, (count > 0).long()


def _warm(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 25))


WAVES = D("waves_elman", lambda: Elman(nn.Tanh()), fit(_waves, mse), adam(5e-3), steps=60, seed=51)
RELU = D(
    "waves_relu",
    lambda: Elman(nn.ReLU(), gain=0.8),
    fit(_waves, nn.functional.smooth_l1_loss),
    lambda params: torch.optim.RMSprop(params, lr=2e-3, momentum=0.5),
    steps=60,
    seed=52,
    clip=1.0,
)
TAGGER = D("tagger", Tagger, _tags, adam(1e-2), steps=80, seed=53)
ENCODER = D(
    "encoder_norm_after", Encoder, fit(_again), adam(3e-3), steps=100, seed=54, schedule=_warm
)


def _elman(act: nn.Module, gain: float) -> object:
    return lambda: Elman(act, gain=gain)


CASES = [
    *(healthy(each) for each in (WAVES, RELU, TAGGER, ENCODER)),
    broken(
        WAVES,
        "sigmoid_fades",
        replace(WAVES, model=lambda: Elman(nn.Sigmoid(), gain=0.1)),
        "vanishing",
        "collapsed",
        places=("again", "act", "enter", "."),
    ),
    broken(
        WAVES,
        "state_blows_up",
        replace(WAVES, model=lambda: Elman(nn.Identity(), gain=2.5)),
        "exploding",
        "large_init",
        "no_activation",
        places=("again", "enter", "act", "."),
    ),
    broken(
        WAVES,
        "saturates",
        replace(WAVES, prepare=times("enter", 300.0)),
        "large_init",
        "saturated",
        places=("enter", "act"),
    ),
    broken(WAVES, "hot", replace(WAVES, optimizer=adam(1.0)), "lr_high", "exploding"),
    broken(
        WAVES, "climbs", replace(WAVES, loss=flipped(WAVES.loss)), "loss_rises", judge=WAVES.loss
    ),
    broken(
        RELU,
        "recurrence_too_large",
        replace(RELU, model=lambda: Elman(nn.ReLU(), gain=3.0), clip=None),
        "exploding",
        "large_init",
        places=("again", "enter", "act", "."),
    ),
    broken(
        RELU,
        "one_wave_in_volts",
        replace(
            RELU,
            clip=None,
            loss=fit(
                on_inputs(_waves, lambda step, x: x * (3e4 if step == 22 else 1)),
                nn.functional.smooth_l1_loss,
            ),
        ),
        "bad_batch",
        judge=RELU.loss,
    ),
    broken(
        RELU,
        "inputs_in_microvolts",
        replace(
            RELU,
            loss=fit(on_inputs(_waves, lambda step, x: x * 1e-6), nn.functional.smooth_l1_loss),
        ),
        "data_scale",
        places=("enter", "."),
    ),
    broken(TAGGER, "log_of_zero", replace(TAGGER, loss=_own_mean), "nonfinite", judge=_tags),
    broken(TAGGER, "other_tags", replace(TAGGER, loss=_other_tags), "labels", judge=_tags),
    broken(
        TAGGER,
        "body_left_out",
        replace(TAGGER, trained=without("body", "embed")),
        "not_in_optimizer",
        places=("body", "embed"),
    ),
    broken(
        ENCODER, "hot", replace(ENCODER, optimizer=adam(0.2), schedule=None), "lr_high", "exploding"
    ),
    broken(
        ENCODER,
        "across_the_batch",
        replace(ENCODER, model=lambda: Encoder(batch_first=False)),
        "labels",
    ),
    broken(
        ENCODER,
        "starts_large",
        replace(ENCODER, prepare=times("embed", 500.0)),
        "large_init",
        places=("embed",),
    ),
]
