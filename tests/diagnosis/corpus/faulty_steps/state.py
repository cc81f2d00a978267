"""State from outside: data, parameters, and models that are called in unusual ways."""

from __future__ import annotations

import torch
from faulty_steps.planted import Op, Planted, Training, sequence, training
from torch import Tensor, nn

BATCH_NORM = ("native_batch_norm", "_native_batch_norm_legit_no_training")
NAN, INF = float("nan"), float("inf")


def _data() -> Training:
    made = sequence(lambda x: x.tanh())
    bad = made.batch[0].clone()
    bad[2, 1] = INF
    return made._replace(batch=(bad,))


def _weight() -> Training:
    made = sequence(lambda x: x.tanh())
    with torch.no_grad():
        made.model.get_parameter("2.weight")[0, 3] = NAN
    return made


class _Words(nn.Module):
    """Words, a layer, and the embedding again at the end."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.body = nn.Linear(6, 6)
        self.out = nn.Linear(6, 9, bias=False)
        if tied:
            self.out.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        """Scores of words."""
        return self.out(self.body(self.embed(words)).tanh())


def _words(tied: bool) -> Training:
    torch.manual_seed(0)
    made = training(_Words(tied), torch.tensor([[1, 2, 3], [4, 5, 7]]))
    with torch.no_grad():
        made.model.get_parameter("embed.weight")[5, 2] = NAN
    return made


def _buffer() -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)).eval()
    model.get_buffer("1.running_var")[2] = -1.0
    return training(model, torch.randn(5, 4))


def _micro_batches() -> Training:
    made = sequence(lambda x: (x + 5).log())  # here: third_micro_batch
    optimizer = torch.optim.SGD(made.model.parameters(), 0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        for part in x.chunk(4):
            (made.model(part).square().mean() / 4).backward()
        optimizer.step()

    x = 0.1 * torch.randn(8, 4)
    x[5] = -1e3 * made.model.get_parameter("0.weight")[0].detach()
    return Training(made.model, step, (x,))


class _Two(nn.Module):
    """Two halves, each with an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        root = Op(lambda x: (x - 9).sqrt())  # here: two_optimizers
        self.judge = nn.Sequential(nn.Linear(6, 6), root)

    def forward(self, x: Tensor) -> Tensor:
        """The second half of the first."""
        return self.judge(self.make(x))


def _two() -> Training:
    torch.manual_seed(0)
    model = _Two()
    first = torch.optim.SGD(model.make.parameters(), 0.01)
    second = torch.optim.Adam(model.judge.parameters(), 0.01)

    def step(x: Tensor) -> None:
        first.zero_grad()
        model.make(x).square().mean().backward()
        first.step()
        second.zero_grad()
        model(x).mean().backward()
        second.step()

    return Training(model, step, (torch.randn(5, 4),))


def _functional() -> Training:
    made = sequence(lambda x: (x - 50).log())  # here: functional_call
    optimizer = torch.optim.SGD(made.model.parameters(), 0.01)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        scaled = {name: 2 * param for name, param in made.model.named_parameters()}
        torch.func.functional_call(made.model, scaled, (x,)).mean().backward()
        optimizer.step()

    return Training(made.model, step, made.batch)


class _Keywords(nn.Module):
    """Called with keywords, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.rate = Op(lambda x, y: x / (y - y))  # here: keywords_and_dicts

    def forward(self, *, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """A ratio."""
        return {"ratio": self.rate(self.layer(x), y), "plain": self.layer(x)}


def _keywords() -> Training:
    torch.manual_seed(0)
    model = _Keywords()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        model(x=x, y=y)["ratio"].mean().backward()
        optimizer.step()

    return Training(model, step, (torch.randn(5, 4), torch.randn(5, 6)))


def _expression() -> Training:
    """In the forward of the model itself, between its modules."""
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b((self.a(x) - 9).log())  # here: between_modules

    return training(Model(), torch.randn(5, 4))


FAULTS = [
    Planted("inf_in_data", _data, ("input",), module=".", rows=(2,)),
    Planted("nan_weight", _weight, ("parameter",), module="2"),
    Planted("nan_row_of_embedding", lambda: _words(False), ("parameter",), module="embed"),
    Planted("nan_in_tied_weight", lambda: _words(True), ("parameter",), module="embed"),
    Planted("negative_variance", _buffer, operations=BATCH_NORM, module="1"),
    Planted("third_micro_batch", _micro_batches, operations=("log",), call=2),
    Planted("two_optimizers", _two, operations=("sqrt",), module="judge.1"),
    Planted("functional_call", _functional, operations=("log",)),
    Planted("keywords_and_dicts", _keywords, operations=("div",), module="rate"),
    Planted("between_modules", _expression, operations=("log",), module="."),
]
