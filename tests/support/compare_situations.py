"""Pairs of models with one planted difference each, and what a comparison must name first."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Situation:
    """A reference and a candidate with one difference.

    Args:
        name: of the situation.
        make: returns both, and what they are called with.
        path: of the row that must come first; empty where there must be none.
        cause: of that row.
        text: a part of its text.
        other: its path in the candidate, where that is another.
        options: of ``tt.compare``.
        note: a part of one of the notes.
    """

    name: str
    make: Callable[[], tuple[nn.Module, nn.Module, tuple[Any, ...]]]
    path: str = ""
    cause: str = ""
    text: str = ""
    other: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return self.name


class Attention(nn.Module):
    """Causal attention, by a fused kernel or written out."""

    def __init__(self, width: int = 16, heads: int = 2, *, eager: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.eager = eager
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        q, k, v = (one(x).view(shape).transpose(1, 2) for one in (self.q, self.k, self.v))
        if self.eager:
            scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block before its residuals."""

    def __init__(self, width: int = 16, *, residual: bool = True, eager: bool = False) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, eager=eager)
        self.fc, self.act, self.proj = nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)
        self.drop = nn.Dropout(0.1)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.drop(self.attn(self.ln1(x)))
        x = x + mixed if self.residual else mixed
        return x + self.drop(self.proj(self.act(self.fc(self.ln2(x)))))


class GPT(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList([Block(**options) for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Port(nn.Module):
    """The network under other names, with its blocks one level further in."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict(
            {"wte": nn.Embedding(32, 16), "layers": nn.ModuleList([_Layer() for _ in range(2)])}
        )
        self.final = nn.LayerNorm(16)
        self.lm = nn.Linear(16, 32)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.body["wte"](tokens)
        layers: Any = self.body["layers"]
        for layer in layers:
            x = layer(x)
        return self.lm(self.final(x))


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(16)
        self.self_attention = Attention()
        self.post_norm = nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


NAMES = {
    "embed": "body.wte",
    r"blocks\.(\d+)": r"body.layers.\1",
    "attn": "self_attention",
    "ln1": "input_norm",
    "ln2": "post_norm",
    "fc": "mlp.0",
    "act": "mlp.1",
    "proj": "mlp.2",
    "norm": "final",
    "head": "lm",
}


def gpt(**options: Any) -> GPT:
    """A small GPT in eval mode, whose norms are not all alike."""
    torch.manual_seed(0)
    model = GPT(**options)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.weight.normal_(1.0, 0.2)
                module.bias.normal_(0.0, 0.1)
    return model.eval()


def port_of(model: GPT) -> Port:
    """The port with the weights of a model."""
    port = Port().eval()
    own = iter(model.state_dict().values())
    port.load_state_dict({name: next(own) for name in _port_order()})
    return port


def _port_order() -> list[str]:
    """Names of the port's parameters in the order of the model's."""
    names = ["body.wte.weight"]
    for place in range(2):
        for part in ("input_norm", "post_norm", *(f"self_attention.{p}" for p in ("q", "k", "v")),
                     "self_attention.out", "mlp.0", "mlp.2"):  # fmt: skip
            names += [f"body.layers.{place}.{part}.{leaf}" for leaf in ("weight", "bias")]
    return [*names, *(f"{part}.{leaf}" for part in ("final", "lm") for leaf in ("weight", "bias"))]


def tokens() -> Tensor:
    return torch.arange(24).reshape(2, 12) % 32


def changed(change: Callable[[GPT], object], **options: Any) -> Any:
    """A situation of a GPT and its copy, which a function changes."""

    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        one = gpt(**options)
        two = copy.deepcopy(one)
        with torch.no_grad():
            change(two)
        return one, two, (tokens(),)

    return make


def ported(change: Callable[[Port], object] = lambda port: None) -> Any:
    """A situation of a GPT and its port, which a function changes."""

    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        one = gpt()
        two = port_of(one)
        with torch.no_grad():
            change(two)
        return one, two, (tokens(),)

    return make


def conv_net(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    )
    net(torch.randn(16, 1, 8, 8))  # Running statistics that are not the first ones.
    return net


def images() -> tuple[Tensor]:
    torch.manual_seed(1)
    return (torch.randn(6, 1, 8, 8),)


def two_nets(change: Callable[[nn.Sequential], object], *, train: bool) -> Any:
    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        one = conv_net().train(train)
        two = copy.deepcopy(one)
        with torch.no_grad():
            change(two)
        return one, two, images()

    return make


def _set(module: Any, **attributes: Any) -> None:
    for name, value in attributes.items():
        setattr(module, name, value)


class Conv1D(nn.Module):
    """A linear layer that keeps its weight transposed, as that of GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width))
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def conv1d(*, transposed: bool) -> Any:
    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        torch.manual_seed(0)
        own, other = Conv1D(6), nn.Linear(6, 6)
        with torch.no_grad():
            other.weight.copy_(own.weight.t() if transposed else own.weight)
            other.bias.copy_(own.bias)
        sequences = (nn.Sequential(each, nn.Tanh()) for each in (own, other))
        return next(sequences), next(sequences), (torch.randn(3, 6),)

    return make


class Fused(nn.Module):
    """Query, key and value from one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v)


class Separate(nn.Module):
    """Query, key and value from three weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def fused(*, flipped: bool) -> Any:
    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        torch.manual_seed(0)
        one, two = nn.Sequential(Fused()), nn.Sequential(Separate())
        with torch.no_grad():
            for place, part in enumerate((two[0].q, two[0].k, two[0].v)):
                part.weight.copy_(one[0].qkv.weight[8 * place : 8 * place + 8])
                part.bias.copy_(one[0].qkv.bias[8 * place : 8 * place + 8])
            if flipped:
                two[0].q.weight.copy_(two[0].q.weight.flip(0))
        return one, two, (torch.randn(2, 5, 8),)

    return make


class Order(nn.Module):
    """Two layers whose order is an argument."""

    def __init__(self, *, norm_first: bool) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(6), nn.Linear(6, 6)
        self.norm_first = norm_first

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(x)) if self.norm_first else self.norm(self.fc(x))


def order() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    one, two = Order(norm_first=True), Order(norm_first=False)
    two.load_state_dict(one.state_dict())
    return nn.Sequential(one), nn.Sequential(two), (torch.randn(3, 6),)


class Random(nn.Module):
    """Draws a number before its dropout, or not."""

    def __init__(self, *, draws: bool) -> None:
        super().__init__()
        self.drop, self.draws = nn.Dropout(0.5), draws

    def forward(self, x: Tensor) -> Tensor:
        if self.draws:
            torch.rand(1)
        return self.drop(x)


class Held(nn.Module):
    """Adds numbers from a generator of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.generator)


class Wrong(torch.autograd.Function):
    """The sine with the wrong derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0].cos() * 0.5


class Sine(nn.Module):
    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        return Wrong.apply(x) if self.wrong else x.sin()


def wrong_backward() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(4, 4), Sine(), nn.Linear(4, 2))
    two = copy.deepcopy(one)
    _set(two[1], wrong=True)
    return one, two, (torch.randn(3, 4),)


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def layers(one: list[nn.Module], two: list[nn.Module]) -> Any:
    """Two sequences, of which the weights are those of the reference where shapes allow it."""

    def make() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        torch.manual_seed(0)
        first, second = (
            nn.Sequential(*map(copy.deepcopy, one)),
            nn.Sequential(*map(copy.deepcopy, two)),
        )
        for parameters in (first.parameters(), second.parameters()):
            generator = torch.Generator().manual_seed(0)
            for parameter in parameters:
                parameter.data.normal_(generator=generator)
        return first, second, (torch.randn(3, 6),)

    return make


def _bf16(change: Callable[[GPT], object] = lambda model: None) -> Any:
    make = changed(change)

    def cast() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
        one, two, args = make()
        return one, two.bfloat16(), args

    return cast


def compiled() -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
    one = gpt()
    two: Any = torch.compile(copy.deepcopy(one), backend="eager")
    return one, two, (tokens(),)


def flipped(weight: Any) -> None:
    weight.copy_(weight.flip(0))


def linear() -> nn.Linear:
    return nn.Linear(6, 6)


SITUATIONS = [
    Situation("the same", changed(lambda m: None)),
    Situation("bf16", _bf16(), note="Rounding of bfloat16"),
    Situation("bf16, asked to fp32", _bf16(), "embed", "dtype", options={"tolerance": 1e-6}),
    Situation("sdpa and eager", lambda: (gpt(), gpt(eager=True), (tokens(),))),
    Situation("port", ported(), note="by order"),
    Situation("port with a map", ported(), options={"map": NAMES}, note="by map"),
    Situation("compiled", compiled, note="ran uncompiled"),
    Situation("fused and separate", fused(flipped=False)),
    Situation("Conv1D and Linear", conv1d(transposed=True)),
    Situation(
        "wrapped model", lambda: (gpt(), Wrapper(gpt()), (tokens(),)), note="by order"
    ),
    Situation(
        "weights +50 %", changed(lambda m: m.blocks[1].fc.weight.mul_(1.5)), "blocks.1.fc",
        "weights", "weight",
    ),
    Situation(
        "one weight by 1e-3", changed(lambda m: m.blocks[0].attn.k.weight[3, 5].add_(1e-3)),
        "blocks.0.attn.k", "weights",
    ),
    Situation(
        "flipped q", changed(lambda m: flipped(m.blocks[1].attn.q.weight)), "blocks.1.attn.q",
        "weights",
    ),
    Situation(
        "bias of the head", changed(lambda m: m.head.bias.add_(0.01)), "head", "weights", "bias"
    ),
    Situation(
        "tanh GELU", changed(lambda m: _set(m.blocks[0].act, approximate="tanh")), "blocks.0.act",
        "computation",
    ),
    Situation(
        "another eps", changed(lambda m: _set(m.blocks[1].ln2, eps=1e-3)), "blocks.1.ln2",
        "computation",
    ),
    Situation(
        "no residual", changed(lambda m: _set(m.blocks[1], residual=False)), "blocks.1",
        "computation", "input of blocks.1.ln2",
    ),
    Situation(
        "dropout in training mode", changed(lambda m: m.blocks[0].drop.train()), "blocks.0.drop",
        "mode", "training",
    ),
    Situation(
        "dropout left on", lambda: (gpt(), gpt().train(), (tokens(),)), "blocks.0.drop", "mode"
    ),
    Situation(
        "another activation", changed(lambda m: _set(m.blocks[1], act=nn.ReLU())), "blocks.1.act",
        "computation", "GELU against ReLU",
    ),
    Situation(
        "no mask", changed(lambda m: _set(m.blocks[0].attn, heads=4)), "blocks.0.attn",
        "computation",
    ),
    Situation(
        "bf16 and weights", _bf16(lambda m: m.blocks[1].fc.weight.mul_(1.5)), "blocks.1.fc",
        "weights",
    ),
    Situation(
        "bf16 and eps", _bf16(lambda m: _set(m.blocks[0].ln1, eps=1.0)), "blocks.0.ln1",
        "computation",
    ),
    Situation(
        "port with eps", ported(lambda m: _set(m.final, eps=1e-2)), "norm", "computation",
        other="final",
    ),
    Situation(
        "port with tanh", ported(lambda m: _set(m.body["layers"][1].mlp[1], approximate="tanh")),
        "blocks.1.act", "computation", other="body.layers.1.mlp.1",
    ),
    Situation(
        "port with flipped q",
        ported(lambda m: flipped(m.body["layers"][0].self_attention.q.weight)), "blocks.0.attn.q",
        "weights", other="body.layers.0.self_attention.q",
    ),
    Situation(
        "batch norm in eval mode", two_nets(lambda m: m.eval(), train=True), "1", "mode"
    ),
    Situation(
        "running mean", two_nets(lambda m: m[1].running_mean.add_(0.5), train=False), "1",
        "buffers", "running_mean",
    ),
    Situation(
        "momentum", two_nets(lambda m: _set(m[1], momentum=0.5), train=True),
    ),
    Situation("wrong transpose", conv1d(transposed=False), "0", "weights", "transposed"),
    Situation("fused and flipped", fused(flipped=True), "0", "weights", "q.weight"),
    Situation("order", order, "0", "order", "before"),
    Situation(
        "random", lambda: (Random(draws=False), Random(draws=True), (torch.ones(4, 8),)), "drop",
        "random",
    ),
    Situation("another seed", lambda: (Held(0), Held(1), (torch.ones(4, 8),)), ".", "random"),
    Situation("wrong backward", wrong_backward, "1", "computation", "gradient"),
    Situation(
        "an activation more",
        layers([linear(), linear()], [linear(), nn.ReLU(), linear()]), ".", "missing", "ReLU",
    ),
    Situation(
        "a layer less", layers([linear(), nn.Tanh(), linear()], [linear(), linear()]), ".",
        "missing", "Tanh",
    ),
    Situation(
        "half the width", layers([linear(), nn.Linear(6, 8)], [linear(), nn.Linear(6, 4)]), "1",
        "weights", "float32[3, 8]",
    ),
]  # fmt: skip
