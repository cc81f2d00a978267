"""A vector-quantised autoencoder of picture patches, with a straight-through estimator."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from trainings.data import patches
from trainings.design import Design as D, adam, broken, healthy
from trainings.faults import filled, times


class Codes(nn.Module):
    """Each patch as one of 32 codes: float32[B, 1, 12, 12] to the same, and a loss."""

    def __init__(self, straight: bool = True, linear: bool = False) -> None:
        super().__init__()
        self.straight = straight
        inner: list[nn.Module] = [nn.Linear(144, 64), nn.GELU(), nn.Linear(64, 8)]
        if linear:
            inner = [nn.Linear(144, 160), nn.Linear(160, 160), nn.Linear(160, 8)]
        self.encode = nn.Sequential(nn.Flatten(), *inner)
        self.book = nn.Embedding(32, 8)
        self.decode = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 144))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest code, and how far it is."""
        z = self.encode(x)
        code = self.book(torch.cdist(z.detach(), self.book.weight.detach()).argmin(-1))
        far = (code - z.detach()).square().mean()
        if self.straight:
            far = far + 0.25 * (z - code.detach()).square().mean()
            code = z + (code - z).detach()
        return self.decode(code).view_as(x), far


def _pictures(step: int) -> Tensor:
    return (patches(step, "coins", 32, 24)[..., ::2, ::2] - 0.38) * 4


def _loss(model: nn.Module, step: int) -> Tensor:
    x = _pictures(step)
    found, far = model(x)
    return nn.functional.mse_loss(found, x) + far


def _edges(model: nn.Module, step: int) -> Tensor:
    x = _pictures(step)
    return nn.functional.mse_loss(model(x), (x - x.roll(1, -1)).abs())


def _bytes(model: nn.Module, step: int) -> Tensor:
    x = _pictures(step)
    return nn.functional.mse_loss(model((x / 4 + 0.38) * 255), (x - x.roll(1, -1)).abs())


def _edge_net(linear: bool = False) -> nn.Module:
    act = [] if linear else [nn.ELU()]
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, padding_mode="circular"),
        *act,
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU6(),
        nn.Conv2d(16, 1, 1),
    )


CODES = D("codes", Codes, _loss, adam(3e-3), steps=80)
EDGES = D("edges", _edge_net, _edges, adam(1e-2), steps=50, seed=1)

CASES = [
    healthy(CODES),
    healthy(EDGES),
    broken(
        CODES,
        "encoder_cut",
        replace(CODES, model=lambda: Codes(straight=False)),
        "detached",
        places=("encode", "encode.1", "encode.3"),
    ),
    broken(
        CODES,
        "decoder_alike",
        replace(CODES, prepare=filled(0.02, "decode.0", "decode.2")),
        "symmetric",
        places=("decode.0", "decode.2"),
    ),
    broken(
        CODES,
        "encoder_linear",
        replace(CODES, model=lambda: Codes(linear=True)),
        "no_activation",
        places=("encode.1", "encode.2"),
    ),
    broken(EDGES, "bytes", replace(EDGES, loss=_bytes), "data_scale", judge=_bytes),
    broken(
        EDGES,
        "linear",
        replace(EDGES, model=lambda: _edge_net(True)),
        "no_activation",
        places=("0",),
    ),
    broken(
        CODES,
        "decoder_large",
        replace(CODES, prepare=times("decode.0", 500.0)),
        "large_init",
        "exploding",
        places=("decode.0",),
    ),
]
