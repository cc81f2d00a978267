"""Activation checkpoints, of both kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import linear, rows
from torchtap.testing.zoo.specimen import Specimen, specimen


def _checkpointed(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    out = checkpoint(m.block, hidden, use_reentrant=m.reentrant)
    return m.last(out)


def _checkpointed_thrice(m: Any, x: Tensor) -> Any:
    hidden = m.first(x)
    for _ in range(3):
        hidden = checkpoint(m.block, hidden, use_reentrant=m.reentrant)
    return m.last(hidden)


def _checkpoint_net(body: Callable[..., Any], *, reentrant: bool, dropout: bool) -> Net:
    middle = nn.Dropout(0.5) if dropout else nn.Tanh()
    block = nn.Sequential(linear(), middle, linear(), nn.ReLU(inplace=True))
    net = Net(body, first=linear(), block=block, last=linear())
    net.reentrant = reentrant  # type: ignore[assignment]  # A flag, not a part.
    return net


def specimens() -> list[Specimen]:
    def made(name: str, reentrant: bool, body: Callable[..., Any], dropout: bool) -> Specimen:
        kind = "reentrant" if reentrant else "non_reentrant"
        return specimen(
            f"checkpoint_{kind}{name}",
            lambda: _checkpoint_net(body, reentrant=reentrant, dropout=dropout),
            rows,
            f"{kind} checkpoint{name.replace('_', ' ')}: the forward runs again",
            random=dropout,
            recomputes=True,
            reentrant=reentrant,
        )

    return [
        made(name, reentrant, body, dropout)
        for reentrant in (False, True)
        for name, body, dropout in (
            ("", _checkpointed, False),
            ("_dropout", _checkpointed, True),
            ("_thrice", _checkpointed_thrice, False),
            ("_thrice_dropout", _checkpointed_thrice, True),
        )
    ]
