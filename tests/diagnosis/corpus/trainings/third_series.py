"""Time series and sounds: forecasts by attention, stacks and dilations, and spoken-like vowels."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import lr_scheduler
from trainings.design import Design as D, Loss, adam, broken, draw, healthy, pick, sgd
from trainings.faults import Call, frozen, shuffled, times, without
from trainings.parts import Block, Criterion, fit, flipped, mse, on_inputs, on_targets, perceptron

PAST, AHEAD = 24, 6
huber: Criterion = nn.functional.huber_loss


def _waves(step: int, num: int = 48) -> Tensor:
    """A season, a slope and a wandering: float32[num, PAST + AHEAD]."""
    time = torch.arange(PAST + AHEAD)
    phase = 6 * torch.rand(num, 1, generator=torch.Generator().manual_seed(step))
    season = torch.sin(2 * math.pi * time / 8 + phase) * (1 + 0.3 * draw(step + 1, num, 1))
    slope = 0.05 * draw(step + 2, num, 1) * time
    return season + slope + 0.1 * draw(step + 3, num, PAST + AHEAD).cumsum(1)


def _forecast(step: int) -> tuple[Tensor, Tensor]:
    whole = _waves(step)
    return whole[:, :PAST], whole[:, PAST:]


def _overlapping(step: int) -> tuple[Tensor, Tensor]:
    """The window of the past ends where that of the future does."""
    whole = _waves(step)
    return whole[:, AHEAD:], whole[:, PAST:]


def _walk(step: int) -> tuple[Tensor, Tensor]:
    """A series that is nearly noise: four fifths of the next value cannot be known."""
    x = draw(step, 64, PAST)
    return x, (0.3 * x[:, -1:] - 0.25 * x[:, -2:-1] + 0.2 * x[:, -3:-2]) + draw(step + 5, 64, 1)


class Looking(nn.Module):
    """Attention over the past, and a head on its last places."""

    def __init__(self, *, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.enter = nn.Linear(1, 24)
        self.places = nn.Parameter(0.2 * torch.randn(PAST, 24))
        self.block = Block(24)
        self.out = nn.Linear(24 * PAST, AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, PAST] to float32[B, AHEAD]."""
        inner = self.block(self.enter(x[..., None]) + self.places)
        inner = inner.detach() if self.cut else inner
        done: Tensor = self.out(inner.flatten(1))
        return done


class Stack(nn.Module):
    """Parts that explain the past are taken off it, and what they say of the future added up."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(perceptron(PAST, 32, 32, PAST + AHEAD) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, PAST] to float32[B, AHEAD]."""
        total = torch.zeros(len(x), AHEAD)
        for part in self.parts:
            past, ahead = part(x).split([PAST, AHEAD], 1)
            x, total = x - past, total + ahead
        return total


def _dilated() -> nn.Module:
    layers: list[nn.Module] = [nn.Unflatten(1, (1, PAST))]
    for inputs, dilation in ((1, 1), (16, 2), (16, 4)):
        layers += [weight_norm(nn.Conv1d(inputs, 16, 3, dilation=dilation)), nn.SiLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 10, AHEAD))


class Cells(nn.Module):
    """A GRU cell reads the past and then its own forecasts, with the truth at times."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(1, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, PAST] to float32[B, AHEAD]."""
        state, found = torch.zeros(len(x), 32), []
        for each in x.unbind(1):
            state = self.cell(each[:, None], state)
        for _ in range(AHEAD):
            found.append(self.out(state))
            state = self.cell(found[-1], state)
        return torch.cat(found, 1)


def _vowels(step: int) -> tuple[Tensor, Tensor]:
    """Five sounds of two formants each, with a pitch and noise; a part of each is silent."""
    kind = pick(step, 5, 32)
    time = torch.arange(400) / 4000
    formants = torch.tensor([[300, 900], [450, 1600], [650, 1200], [300, 1700], [500, 800]])
    bend = 1 + 0.05 * draw(step, 32, 1)
    low, high = (formants[kind, i][:, None] * bend for i in (0, 1))
    sound = torch.sin(2 * math.pi * low * time) + 0.6 * torch.sin(2 * math.pi * high * time)
    sound = sound + 0.3 * draw(step + 1, 32, 400)
    return torch.where(time < 0.02, 0.0, sound), kind


def _spectrum(floor: float = 1e-3) -> Call:
    """Logarithms of 32 frequencies in frames of 64 samples: float32[B, 32, T]."""

    def log_power(x: Tensor) -> Tensor:
        power = torch.fft.rfft(x.unfold(1, 64, 32) * torch.hann_window(64)).abs().square()
        return (power[..., 1:] + floor).log().transpose(1, 2) / 3

    return Call(log_power)


class Ear(nn.Module):
    """A spectrum, convolutions over its frames, and a recurrent network."""

    def __init__(self, floor: float = 1e-3, *end: nn.Module) -> None:
        super().__init__()
        self.spectrum = _spectrum(floor)
        self.conv = nn.Sequential(nn.Conv1d(32, 24, 3, padding=1), nn.BatchNorm1d(24), nn.ReLU())
        self.body = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(48, 5), *end)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, 400] to logits [B, 5]."""
        states, _ = self.body(self.conv(self.spectrum(x)).transpose(1, 2))
        logits: Tensor = self.head(states.mean(1))
        return logits


def _smoothed(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, label_smoothing=0.1)


def _restarts(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 30)


def _spike_at(at: int) -> Loss:
    """One batch in which a sensor was off by far."""

    def change(step: int, x: Tensor) -> Tensor:
        return x * 2e4 if step == at else x

    return fit(on_inputs(_forecast, change), mse)


def _wrong_end(step: int, y: Tensor) -> Tensor:
    """Batches of another order than the inputs, by a sort that was done on one of them."""
    return y[y[:, 0].argsort()]


def _yen(step: int) -> tuple[Tensor, Tensor]:
    x, y = _forecast(step)
    return 1e5 * x + 4e6, 1e5 * y + 4e6


LOOKING = D("series_looking", Looking, fit(_forecast, mse), adam(3e-3), steps=90, seed=71)
STACK = D(
    "series_stack", Stack, fit(_forecast, huber), adam(4e-3), steps=80, seed=72, schedule=_restarts
)
DILATED = D(
    "series_dilated",
    _dilated,
    fit(_forecast, mse),
    lambda params: torch.optim.RAdam(params, lr=1e-2),
    steps=90,
    seed=73,
)
CELLS = D("series_cells", Cells, fit(_forecast, mse), adam(1e-2), steps=60, seed=74, clip=1.0)
WALK = D(
    "series_nearly_noise",
    lambda: nn.Sequential(nn.LayerNorm(PAST), nn.Linear(PAST, 1)),
    fit(_walk, mse),
    sgd(0.02, momentum=0.9),
    steps=120,
    seed=75,
)
EAR = D("vowels_heard", Ear, fit(_vowels, _smoothed), adam(4e-3, decay=0.05), steps=60, seed=76)

CASES = [
    *(healthy(each) for each in (LOOKING, STACK, DILATED, CELLS, WALK, EAR)),
    broken(
        LOOKING,
        "windows_overlap",
        replace(LOOKING, loss=fit(_overlapping, mse)),
        "too_good",
        judge=LOOKING.loss,
    ),
    broken(
        LOOKING,
        "block_cut_off",
        replace(LOOKING, model=lambda: Looking(cut=True)),
        "detached",
        places=("block", "enter"),
    ),
    broken(
        LOOKING,
        "sensor_off_once",
        replace(LOOKING, loss=_spike_at(80)),
        "bad_batch",
        "data_scale",
        judge=LOOKING.loss,
    ),
    broken(
        LOOKING,
        "scores_too_sharp",
        replace(LOOKING, prepare=times("block.attend.mix", 80.0)),
        "large_init",
        "saturated",
        places=("block.attend.mix", "block.attend"),
    ),
    broken(
        STACK,
        "all_parts_frozen_but_last",
        replace(STACK, prepare=frozen("parts.0", "parts.1", "parts.2.0", "parts.2.2")),
        "frozen",
        places=("parts.0", "parts.1", "parts.2.0", "parts.2.2", "parts.0.0"),
    ),
    broken(
        STACK,
        "sorted_targets",
        replace(STACK, loss=fit(on_targets(_forecast, _wrong_end), huber)),
        "labels",
        judge=STACK.loss,
    ),
    broken(DILATED, "gradient_added_up", replace(DILATED, zeroes_grad=False), "no_zero_grad"),
    broken(
        DILATED,
        "prices_in_yen",
        replace(DILATED, loss=fit(_yen, mse)),
        "data_scale",
        places=("1", ".", "0"),
        judge=fit(_yen, lambda out, y: mse(out / 1e5, y / 1e5)),
    ),
    broken(
        DILATED,
        "rate_of_three",
        replace(DILATED, optimizer=lambda params: torch.optim.RAdam(params, lr=3.0)),
        "lr_high",
        "exploding",
    ),
    broken(
        CELLS,
        "hidden_far_too_large",
        replace(CELLS, prepare=lambda model: [p.data.mul_(40) for p in model.cell.parameters()]),
        "saturated",
        "large_init",
        places=("cell",),
    ),
    broken(
        CELLS,
        "cell_left_out",
        replace(CELLS, trained=without("cell")),
        "not_in_optimizer",
        places=("cell",),
    ),
    broken(
        CELLS, "climbs", replace(CELLS, loss=flipped(CELLS.loss)), "loss_rises", judge=CELLS.loss
    ),
    broken(WALK, "slow", replace(WALK, optimizer=sgd(2e-7, momentum=0.9)), "steps_too_small"),
    broken(
        EAR,
        "silence_has_no_log",
        replace(EAR, model=lambda: Ear(0.0)),
        "nonfinite",
        places=("spectrum", "conv.0", "conv", "."),
    ),
    broken(
        EAR,
        "sigmoid_before_entropy",
        replace(EAR, model=lambda: Ear(1e-3, nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("head.2",),
    ),
    broken(
        EAR,
        "of_other_sounds",
        replace(EAR, loss=fit(on_targets(_vowels, shuffled), _smoothed)),
        "labels",
        judge=EAR.loss,
    ),
    broken(EAR, "decays_to_nothing", replace(EAR, optimizer=adam(4e-3, decay=60.0)), "decay_high"),
]
