"""``why_no_grad`` against the gradient that a backward gives; inputs, and blocks in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtap as tt

GIVES = "a backward gives it a gradient"
PERHAPS = "whose own backward decides whether it gets a gradient"
ZEROS = "a backward gives it zeros"
CUT = "is cut off"


class Net(nn.Module):
    """An encoder, what a case does with its output, and a head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.enc, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.enc(x)))


class Double(torch.autograd.Function):
    """Twice its input; what is made of it is for those below to say."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * 2


class Unmarked(Double):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2 + 1
        ctx.mark_non_differentiable(y)
        return y


class NoneBack(Double):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None


def detach_in_place(h: Tensor) -> Tensor:
    h = h * 1
    h.detach_()
    return h


def data_read(h: Tensor) -> Tensor:
    return h.data * 2


def data_written(h: Tensor) -> Tensor:
    h.data = torch.ones_like(h)  # The graph stays.
    return h


def copied_without_grad(h: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    with torch.no_grad():
        out.copy_(h)
    return out


def written_without_grad(h: Tensor) -> Tensor:
    """The graph of what was written into goes on, without the write."""
    other = h.detach().requires_grad_() * 1
    with torch.no_grad():
        other.add_(h)
    return other


def copied_over(h: Tensor) -> Tensor:
    h = h * 1
    h.copy_(torch.ones(2, 4))
    return h


def filled_in(h: Tensor) -> Tensor:
    return torch.zeros(2, 4).copy_(h)


def part_written(h: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    out[:, 1] = h[:, 1]
    return out


def under_no_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        return Double.apply(h)


def off(h: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    out = h * 2
    torch.set_grad_enabled(True)
    return out


CASES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "kept": (lambda h: h.relu() + 1, GIVES),
    "detach_": (detach_in_place, CUT),
    "data": (data_read, CUT),
    "data written": (data_written, GIVES),
    "a custom function": (Double.apply, PERHAPS),
    "one of two ways": (lambda h: NoneBack.apply(h) + h, GIVES),
    "mark_non_differentiable": (Unmarked.apply, CUT),
    "a backward of None": (NoneBack.apply, PERHAPS),
    "copy_ without grad mode": (copied_without_grad, CUT),
    "add_ without grad mode": (written_without_grad, CUT),
    "overwritten whole": (copied_over, ZEROS),
    "copied": (filled_in, GIVES),
    "a part written": (part_written, GIVES),
    "a function under no_grad": (under_no_grad, CUT),
    "set_grad_enabled": (off, CUT),
    "a cast": (lambda h: h.long().float(), CUT),
    "argmax": (lambda h: nn.functional.one_hot(h.argmax(-1), 4).float(), CUT),
    "a comparison": (lambda h: (h > 0).float(), CUT),
    "numbers": (lambda h: torch.tensor(h.tolist()), CUT),
    "numpy": (lambda h: torch.from_numpy(h.detach().numpy()), CUT),
    "round": (lambda h: h.round(), ZEROS),
    "rounded division": (lambda h: h.div(0.1, rounding_mode="floor"), ZEROS),
    "sign": (lambda h: h.sign(), ZEROS),
    "straight through": (lambda h: h + (h.round() - h).detach(), GIVES),
    "fill_": (lambda h: (h * 1).fill_(2.0), ZEROS),
}


@pytest.mark.parametrize("autograd", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_a_backward_gives(case: str, autograd: bool) -> None:
    between, answer = CASES[case]
    torch.manual_seed(0)
    model, x = Net(between), torch.rand(2, 4)
    said = tt.graph(model, x, autograd=autograd).why_no_grad("enc.weight")
    model(x).sum().backward()
    grad = model.enc.weight.grad
    assert answer in said
    if answer != PERHAPS:
        given = GIVES if grad is not None and bool(grad.any()) else CUT if grad is None else ZEROS
        assert given == answer
    if answer == CUT:  # The line of this file that cuts, or what runs there.
        assert "test_why_no_grad.py" in said


def test_a_graph_of_tensors_hedges_as_one_of_a_model_does() -> None:
    model, x = Net(NoneBack.apply), torch.ones(2, 4)
    assert PERHAPS in tt.graph(model(x).sum(), model=model).why_no_grad("enc.weight")
    assert GIVES in tt.graph(model(x).sum(), model=model).why_no_grad("head.weight")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.d = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.d(tgt) + self.e(src)


def led_to(found: tt.Graph) -> dict[str, list[str]]:
    paths = {node.id: node.path for node in found.nodes}
    return {
        node.path: [paths[edge.target] for edge in found.edges if edge.source == node.id]
        for node in found.nodes
        if node.kind == "input"
    }


def test_one_tensor_for_two_inputs_is_one_input_of_both_names() -> None:
    x = torch.ones(2, 3)
    for found in (tt.graph(Two(), x, x), tt.graph(Two(), x, tgt=x), tt.graph(Two(), src=x, tgt=x)):
        assert led_to(found) == {"src, tgt": ["d", "e"]}
        assert found.find("src") == found.find("tgt") == found.find("src, tgt")
    assert led_to(tt.graph(Two(), x, x[:1])) == {"src": ["e"], "tgt": ["d"]}
    assert led_to(tt.graph(Two(), x[:1], x)) == {"src": ["e"], "tgt": ["d"]}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, old: Tensor | None) -> tuple[Tensor, Tensor]:
        key = self.a(x) if old is None else torch.cat([old, self.a(x)])
        return x + self.b(key[-2:]).relu(), key


class Cached(nn.Module):
    """Returns a key of each block beside the result, as models with a cache do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(5))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Any:
        keys = []
        for number, block in enumerate(self.blocks):
            x, key = block(x, None if cache is None else cache[number])
            keys.append(key)
        return {"logits": self.head(x), "cache": keys}


@pytest.mark.parametrize("has_cache", [False, True])
def test_blocks_that_each_return_or_take_one_more_tensor_are_folded_as_one(has_cache: bool) -> None:
    cache = [torch.ones(3, 4) for _ in range(5)] if has_cache else None
    found = tt.graph(Cached(), torch.ones(2, 4), cache=cache)
    root, _ = found._tree
    assert [part.times for part in root.children if part.call is not None] == [5]
