"""Digits again, without their labels: variational, sparse and masked autoregressive models."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import digits, kept_apart
from trainings.design import Design as D, Loss, adam, broken, healthy
from trainings.faults import biased, frozen, shuffled, times
from trainings.parts import flipped

bce = nn.functional.binary_cross_entropy_with_logits


class Variational(nn.Module):
    """Encoder, two heads and a decoder; ``cut`` detaches the code."""

    def __init__(self, *end: nn.Module, cut: bool = False) -> None:
        super().__init__()
        self.cut = cut
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
        self.mean, self.spread = nn.Linear(48, 6), nn.Linear(48, 6)
        self.decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64), *end)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of the pixels, and mean and log variance of the code."""
        inner = self.encoder(x)
        mean, spread = self.mean(inner), self.spread(inner)
        code = mean
        if self.training:
            code = mean + (spread / 2).exp() * torch.randn_like(mean)
        return self.decoder(code.detach() if self.cut else code), mean, spread


class Sparse(nn.Module):
    """An autoencoder of few active units, whose decoder is the encoder turned."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.encode = nn.Linear(64, 96)
        self.act = act or nn.ReLU()
        self.offset = nn.Parameter(torch.zeros(64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The pixels again, and the code."""
        code = self.act(self.encode(x))
        return code @ self.encode.weight + self.offset, code


class Masked(nn.Linear):
    """A layer that sees only what its mask lets through."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """float32[B, in] to float32[B, out]."""
        return nn.functional.linear(x, self.weight * self.get_buffer("mask"), self.bias)


def _made(*, leaks: bool = False) -> nn.Module:
    """Each pixel from those before it; with ``leaks`` from itself as well."""
    order, inner = torch.arange(64), torch.arange(128) % 63
    first = inner[:, None] >= order[None]
    last = order[:, None] > inner[None]
    if leaks:
        last = order[:, None] >= inner[None]
    return nn.Sequential(Masked(first.float()), nn.ReLU(), Masked(last.float()))


def _pixels(step: int) -> Tensor:
    x, _ = kept_apart(step, 48, *digits())
    return x.flatten(1)


def _elbo(weight: float = 1.0) -> Loss:
    def loss(model: nn.Module, step: int) -> Tensor:
        x = _pixels(step)
        logits, mean, spread = model(x)
        kept = bce(logits, x, reduction="sum") / len(x)
        apart = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum() / len(x)
        return kept + weight * apart

    return loss


def _other_pixels(model: nn.Module, step: int) -> Tensor:
    x = _pixels(step)
    logits, mean, spread = model(x)
    apart = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum() / len(x)
    return bce(logits, shuffled(step, x), reduction="sum") / len(x) + apart


def _logs(model: nn.Module, step: int) -> Tensor:
    """The cross-entropy by hand, of probabilities that may be 0 or 1."""
    x = (_pixels(step) > 0.5).float()
    likely, mean, spread = model(x)
    apart = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum() / len(x)
    return -(x * likely.log() + (1 - x) * (1 - likely).log()).sum() / len(x) + apart


def _distance(model: nn.Module, step: int) -> Tensor:
    x = _pixels(step)
    again, code = model(x)
    return ((again - x) ** 2).mean() + 1e-3 * code.abs().mean()


def _standardised(model: nn.Module, step: int) -> Tensor:
    """Each pixel by its spread, also where it is always black."""
    x = _pixels(step)
    x = (x - x.mean(0)) / x.std(0)
    again, code = model(x)
    return ((again - x) ** 2).mean() + 1e-3 * code.abs().mean()


def _bits(model: nn.Module, step: int) -> Tensor:
    x = (_pixels(step) > 0.5).float()
    return bce(model(x), x, reduction="sum") / len(x)


VARIATIONAL = D("digit_variational", Variational, _elbo(), adam(4e-3), steps=100, seed=61)
BETA = D(
    "digit_beta",
    Variational,
    _elbo(0.3),
    lambda params: torch.optim.NAdam(params, lr=4e-3),
    steps=80,
    seed=62,
)
SPARSE = D(
    "digit_sparse",
    Sparse,
    _distance,
    lambda params: torch.optim.Adagrad(params, lr=0.02),
    steps=80,
    seed=63,
)
MADE = D("digit_masked", _made, _bits, adam(1e-2, decay=0.01), steps=160, seed=64)

CASES = [
    *(healthy(each) for each in (VARIATIONAL, BETA, SPARSE, MADE)),
    broken(
        VARIATIONAL,
        "prior_too_strong",
        replace(VARIATIONAL, loss=_elbo(300.0)),
        "collapsed",
        "vanishing",
        places=("mean", "decoder", "encoder", "."),
        judge=_elbo(),
    ),
    broken(
        VARIATIONAL,
        "spread_overflows",
        replace(VARIATIONAL, prepare=biased("spread", 90.0)),
        "nonfinite",
        "exploding",
        "large_init",
        "lr_high",
    ),
    broken(
        VARIATIONAL,
        "code_cut",
        replace(VARIATIONAL, model=lambda: Variational(cut=True)),
        "detached",
        "collapsed",
        places=("mean", "encoder", "spread"),
    ),
    broken(
        VARIATIONAL,
        "sigmoid_twice",
        replace(VARIATIONAL, model=lambda: Variational(nn.Sigmoid())),
        "final_activation",
        "double_softmax",
        places=("decoder.3",),
    ),
    broken(
        VARIATIONAL,
        "other_pixels",
        replace(VARIATIONAL, loss=_other_pixels),
        "labels",
        "collapsed",
        judge=_elbo(),
    ),
    broken(
        BETA,
        "log_of_probabilities",
        replace(
            BETA,
            model=lambda: Variational(nn.Sigmoid()),
            loss=_logs,
            prepare=times("decoder.2", 800.0),
        ),
        "nonfinite",
        "large_init",
        "saturated",
    ),
    broken(
        BETA,
        "hot",
        replace(BETA, optimizer=lambda params: torch.optim.NAdam(params, lr=0.5)),
        "lr_high",
        "exploding",
    ),
    broken(
        BETA,
        "decoder_frozen",
        replace(BETA, prepare=frozen("decoder")),
        "frozen",
        places=("decoder",),
    ),
    broken(
        SPARSE,
        "black_pixels",
        replace(SPARSE, loss=_standardised),
        "nonfinite",
        places=(".", "encode"),
        judge=_distance,
    ),
    broken(
        SPARSE,
        "born_dead",
        replace(SPARSE, prepare=biased("encode", -8.0)),
        "dead",
        places=("act", "encode"),
    ),
    broken(
        SPARSE, "climbs", replace(SPARSE, loss=flipped(_distance)), "loss_rises", judge=_distance
    ),
    broken(MADE, "sees_itself", replace(MADE, model=lambda: _made(leaks=True)), "too_good"),
    broken(MADE, "never_cleared", replace(MADE, zeroes_grad=False), "no_zero_grad"),
]
