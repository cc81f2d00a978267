"""Modules of PyTorch's own that are more than one operation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from torchtap.testing.net import Net
from torchtap.testing.zoo.parts import image, linear, rows, sequence, tokens
from torchtap.testing.zoo.specimen import Specimen, specimen


def _last_state(m: Any, x: Tensor) -> Any:
    _, (hidden, _) = m.lstm(x)
    return m.head(hidden[-1])


def _encoder_model(*, training: bool, batch_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=batch_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)


def _encoder(training: bool, batch_first: bool) -> Specimen:
    return specimen(
        f"encoder_{'train' if training else 'eval'}{'_batch_first' if batch_first else ''}",
        lambda: _encoder_model(training=training, batch_first=batch_first),
        sequence,
        "a layer with a fast path, self-attention and residuals",
        random=training,
        silent=(
            "layers",
            "layers.0.self_attn.out_proj",
            "layers.1.self_attn.out_proj",
        ),
    )


def specimens() -> list[Specimen]:
    return [
        specimen(
            "lstm",
            lambda: nn.LSTM(8, 4, num_layers=2, batch_first=True, bidirectional=True),
            sequence,
            "a nested tuple comes out of one call",
        ),
        specimen(
            "lstm_last_state",
            lambda: Net(_last_state, lstm=nn.LSTM(8, 4), head=nn.Linear(4, 2)),
            sequence,
            "only the inner tuple is used",
        ),
        _encoder(True, False),
        _encoder(True, True),
        _encoder(False, False),
        _encoder(False, True),
        specimen(
            "dropout_train",
            lambda: nn.Sequential(linear(), nn.Dropout(0.5), linear()),
            rows,
            "the mask must not change because the model is watched",
            random=True,
        ),
        specimen(
            "embedding",
            lambda: nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.LayerNorm(4)),
            tokens,
            "integers come in, no gradient goes out",
        ),
        specimen(
            "convolutions",
            lambda: nn.Sequential(
                nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(inplace=True),
                nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2), nn.LogSoftmax(-1),
            ),
            image,
            "a plain network, to have one",
        ),
    ]  # fmt: skip
