"""``why_no_grad`` against the gradient that a backward gives; inputs, and blocks in a row."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torchtap as tt

GIVES = "a backward gives it a gradient"
PERHAPS = "whose own backward decides whether it gets a gradient"
ZEROS = "a backward gives it zeros"
HOOKED = "a backward gives it a gradient, which a hook on"
RAISES = "a backward raises at"
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


def inference(h: Tensor) -> Tensor:
    with torch.inference_mode():
        out = h * 2
    return out.clone()


def grad_again(h: Tensor) -> Tensor:
    with torch.no_grad(), torch.enable_grad():
        return h * 2


def data_given(h: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    out.data = h.data
    return out


def data_copied_into(h: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    out.data.copy_(h)
    return out


def memory_set(h: Tensor) -> Tensor:
    out = torch.zeros(2, 4)
    with torch.no_grad():
        out.set_(h)  # type: ignore[call-overload]
    return out


def view_without_grad(h: Tensor) -> Tensor:
    with torch.no_grad():
        flat = h.view(-1)
    return flat.view(2, 4)


def saved_and_loaded(h: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(h.detach(), file)
    file.seek(0)
    loaded: Tensor = torch.load(file)
    return loaded


def tensor_hook(h: Tensor) -> Tensor:
    h = h * 1
    h.register_hook(torch.zeros_like)
    return h


def node_hook(h: Tensor) -> Tensor:
    h = h * 1
    assert h.grad_fn is not None
    h.grad_fn.register_prehook(lambda grads: tuple(grad * 0 for grad in grads))
    return h


def retained(h: Tensor) -> Tensor:
    h = h * 1
    h.retain_grad()
    return h


def gradients(h: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(h.pow(3).sum(), h)
    return found


def gradients_with_a_graph(h: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(h.pow(3).sum(), h, create_graph=True)
    return found


class TwoResults(Double):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        marked = x * 3
        ctx.mark_non_differentiable(marked)
        return x * 2, marked

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *others: Tensor) -> Any:
        return grad * 2


inner = nn.Linear(4, 4)


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
    "inference mode": (inference, CUT),
    "grad mode again": (grad_again, GIVES),
    "detach": (lambda h: h.detach(), CUT),
    "a leaf made of it": (lambda h: h.detach().requires_grad_(), CUT),
    "requires_grad_(True) of a result": (lambda h: (h * 1).requires_grad_(), GIVES),
    "data given to another": (data_given, CUT),
    "data of another copied into": (data_copied_into, CUT),
    "set_": (memory_set, CUT),
    "a view under no_grad": (view_without_grad, CUT),
    "nn.Parameter": (lambda h: nn.Parameter(h), CUT),
    "torch.tensor": (lambda h: torch.tensor(h), CUT),
    "new_tensor": (lambda h: h.new_tensor(h), CUT),
    "as_tensor": (lambda h: torch.as_tensor(h), GIVES),
    "item": (lambda h: torch.full((2, 4), h.sum().item()), CUT),
    "float": (lambda h: torch.ones(2, 4) * float(h.sum()), CUT),
    "numpy by force": (lambda h: torch.from_numpy(h.numpy(force=True)), CUT),
    "dlpack": (lambda h: torch.utils.dlpack.from_dlpack(h.detach()), CUT),
    "saved and loaded": (saved_and_loaded, CUT),
    "indices of topk": (lambda h: h.topk(4).indices.float(), CUT),
    "values of topk": (lambda h: h.topk(4).values, GIVES),
    "argsort": (lambda h: h.argsort(1).float(), CUT),
    "bucketize": (lambda h: torch.bucketize(h, torch.linspace(-1, 1, 5)).float(), CUT),
    "where of a comparison": (lambda h: torch.where(h > 0, 1.0, 0.0), CUT),
    "logical_and": (lambda h: torch.logical_and(h, h).float(), CUT),
    "histc": (lambda h: torch.histc(h, 4).expand(2, 4), CUT),
    "multinomial": (lambda h: torch.multinomial(h.softmax(1), 4).float(), CUT),
    "sample": (lambda h: torch.distributions.Normal(h, 1.0).sample(), CUT),
    "rsample": (lambda h: torch.distributions.Normal(h, 1.0).rsample(), GIVES),
    "bernoulli": (lambda h: torch.bernoulli(h.sigmoid()), ZEROS),
    "poisson": (lambda h: torch.poisson(h.abs()), ZEROS),
    "normal": (lambda h: torch.normal(h, torch.ones(2, 4)), ZEROS),
    "sgn": (lambda h: h.sgn(), ZEROS),
    "floor": (lambda h: h.floor(), ZEROS),
    "ceil": (lambda h: h.ceil(), ZEROS),
    "trunc": (lambda h: h.trunc(), ZEROS),
    "copysign": (lambda h: torch.copysign(torch.ones(2, 4), h), ZEROS),
    "uniform_": (lambda h: (h * 1).uniform_(), ZEROS),
    "frac": (lambda h: h.frac(), GIVES),
    "remainder": (lambda h: h % 0.3, GIVES),
    "floor division": (lambda h: h // 0.1, RAISES),
    "heaviside": (lambda h: torch.heaviside(h, torch.zeros(())), RAISES),
    "unique": (lambda h: h.unique().sum().expand(2, 4), RAISES),
    "a result that is marked": (lambda h: TwoResults.apply(h)[1], CUT),
    "a result beside one that is marked": (lambda h: TwoResults.apply(h)[0], PERHAPS),
    "a reentrant checkpoint": (lambda h: checkpoint(torch.sin, h, use_reentrant=True), GIVES),
    "a checkpoint": (lambda h: checkpoint(torch.sin, h, use_reentrant=False), GIVES),
    "a checkpoint of a detached input": (
        lambda h: checkpoint(inner, h.detach(), use_reentrant=True),
        CUT,
    ),
    "a hook on a tensor": (tensor_hook, HOOKED),
    "a hook on a node": (node_hook, HOOKED),
    "retain_grad": (retained, GIVES),
    "autograd.grad": (gradients, CUT),
    "autograd.grad with a graph": (gradients_with_a_graph, GIVES),
    "func.grad": (lambda h: torch.func.grad(lambda t: t.pow(3).sum())(h), GIVES),
    "vmap": (lambda h: torch.vmap(lambda t: t * 2)(h), GIVES),
    "a gumbel softmax": (lambda h: nn.functional.gumbel_softmax(h, hard=True), GIVES),
}


@pytest.mark.filterwarnings("ignore")  # PyTorch warns of some of the cuts.
@pytest.mark.parametrize("autograd", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_what_a_backward_gives(case: str, autograd: bool) -> None:
    between, answer = CASES[case]
    torch.manual_seed(0)
    model, x = Net(between), torch.rand(2, 4)
    said = tt.graph(model, x, autograd=autograd).why_no_grad("enc.weight")
    assert answer in said
    if answer == RAISES:
        with pytest.raises((RuntimeError, NotImplementedError), match="not implemented"):
            model(x).sum().backward()
        return
    model(x).sum().backward()
    grad = model.enc.weight.grad
    if answer == GIVES:
        assert HOOKED not in said
    if answer == HOOKED:
        assert grad is not None and not grad.any()
    elif answer != PERHAPS:
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


@pytest.mark.slow
@pytest.mark.parametrize("autograd", [False, True])
@pytest.mark.parametrize("takes_cache", [False, True])
def test_the_blocks_of_a_gpt2_with_a_cache_are_twelve(autograd: bool, takes_cache: bool) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32, n_layer=12, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    model, tokens = transformers.GPT2LMHeadModel(config).eval(), torch.zeros(1, 4, dtype=torch.long)
    cache = None
    if takes_cache:
        with torch.no_grad():
            cache = model(tokens).past_key_values
    found = tt.graph(model, tokens, past_key_values=cache, autograd=autograd)
    root, _ = found._tree
    (times,) = {
        part.times
        for outer in root.children
        for part in outer.children
        if part.call is not None and part.call.path == "transformer.h.0"
    }
    assert times == 12
    assert "h.0 to h.11" in found.mermaid(depth=1) or "x12" in found.mermaid(depth=1)
