"""Measures statistics inside compiled graphs: ratios of watched to plain, both compiled.

    python benchmarks/compiled.py [--threads 1] [--rounds 25] [--markdown FILE]

Five models under ``torch.compile``, and the first of them in eager mode. A step is forward,
backward and AdamW. Each row alternates blocks of plain and watched steps, see ``report.compare``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchtap as tt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent))
from report import HOW, Result, Step, begin, compare, parser, show

VALUES = "*:output,grad_output"
ALL = "*:input,output,grad_input,grad_output,param,param_grad,update"
Call = Callable[[Any], Tensor]


class Attention(nn.Module):
    """NanoGPT's attention: one matrix for queries, keys, values, and dropout that drops nothing."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(split).transpose(1, 2) for part in self.c_attn(x).split(width, 2))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).reshape(batch, length, width)))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """Four layers, width 128; returns the loss."""

    def __init__(self, vocab: int = 65, width: int = 128, layers: int = 4, length: int = 64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(0.0)
        self.h = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1])))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def gpt() -> tuple[nn.Module, Call]:
    """The nanoGPT-like model, batch 8 of 64 tokens."""
    tokens = torch.randint(0, 65, (8, 64))
    return NanoGPT(), lambda model: model(tokens)


def conv() -> tuple[nn.Module, Call]:
    """A small ConvNet with BatchNorm, batch 16 of 32 px."""
    widths = (3, 32, 64, 64)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    images = torch.randn(16, 3, 32, 32)
    return nn.Sequential(*layers), lambda model: model(images).square().mean()


def mlp() -> tuple[nn.Module, Call]:
    """4 x Linear(512) and ReLU, batch 128."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(512, 512), nn.ReLU())]
    batch = torch.randn(128, 512)
    return nn.Sequential(*layers), lambda model: model(batch).square().mean()


def gpt2() -> tuple[nn.Module, Call]:
    """GPT-2 of transformers with random weights: 2 layers, width 128, batch 4 of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 256}
    config = GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0)
    tokens = torch.randint(0, 256, (4, 64))
    return GPT2LMHeadModel(config), lambda model: model(tokens, labels=tokens).loss


def vit() -> tuple[nn.Module, Call]:
    """ViT of transformers with random weights: 2 layers, width 128, batch 8 of 32 px."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = ViTConfig(**sizes, intermediate_size=512, image_size=32, patch_size=4)
    images = torch.randn(8, 3, 32, 32)
    return ViTForImageClassification(config), lambda model: model(images).logits.square().mean()


def training(model: nn.Module, call: Any, run: Call) -> Step:
    """Forward, backward and AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        run(call).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def row(
    name: str,
    make: Callable[[], tuple[nn.Module, Call]],
    where: str,
    wanted: str,
    *,
    rounds: int,
    every: int = 1,
    is_compiled: bool = True,
) -> Result:
    """One row: a watched step, its closing included, against a plain one."""
    torch.compiler.reset()
    (plain, run), (model, again) = make(), make()
    watch = tt.watch(model, where, to=tt.Stats(), every=every)
    # The watched one first: a graph compiled without hooks would be taken for both.
    compiled: Any = torch.compile(model) if is_compiled else model
    step = training(model, compiled, again)
    step()
    other = training(plain, torch.compile(plain) if is_compiled else plain, run)

    def watched() -> None:
        step()
        watch.step()

    for _ in range(2 * max(every, 3)):
        watched()
        other()
    found = compare(other, watched, rounds=rounds, repeats=every if every > 1 else 4)
    watch.close()
    return found.result(name, wanted)


def main() -> None:
    options = begin(parser(__doc__))
    logging.getLogger("transformers").setLevel(logging.ERROR)
    rounds = options.rounds
    rows = [
        row("nanoGPT-like, eager", gpt, VALUES, "1.15", rounds=rounds, is_compiled=False),
        row("nanoGPT-like", gpt, VALUES, "1.15", rounds=rounds),
        row("nanoGPT-like, every=10", gpt, VALUES, "1.05", rounds=rounds, every=10),
        row("nanoGPT-like, all flow and parameter ports", gpt, ALL, "1.35", rounds=rounds),
        row("the same, every=10", gpt, ALL, "1.05", rounds=rounds, every=10),
    ]
    for name, make in (
        ("ConvNet with BatchNorm", conv),
        ("MLP", mlp),
        ("GPT-2 of transformers", gpt2),
        ("ViT of transformers", vit),
    ):
        rows.append(row(name, make, VALUES, "-", rounds=rounds))
        rows.append(row(f"{name}, every=10", make, VALUES, "-", rounds=rounds, every=10))
    how = (
        "Models under ``torch.compile`` with inductor, but for the first row. All outputs and "
        "their gradients of all modules are measured with the default set, the closing of the "
        f"step included. {HOW}"
    )
    show(rows, options, "What statistics inside compiled graphs cost", __file__, how)


if __name__ == "__main__":
    main()
