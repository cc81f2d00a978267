"""Whole networks: every gradient of every module is the truth, and training is not changed.

The truth is ``torch.autograd.grad`` on a float64 twin that works out of place (``truth.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import bits
import pytest
import torch
import transformers
from bits import same
from models import TinyGPT, resnet18, resnet34, seeded, small
from random_numbers import fixed_seed
from torch import Tensor, nn
from truth import PORTS, Truth, assert_matches, truth

import torchtap as tt
from torchtap.testing import default_loss

TOLERANCES: dict[torch.dtype, dict[str, Any]] = {
    # The twin sums in another order.
    torch.float64: {"rtol": 1e-9, "atol": 1e-13},
    # The twin is in float64, so this is the model's own rounding error.
    torch.float32: {"rtol": 2e-4, "atol": 1e-7},
}
NUM_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Network:
    """A network, with weights and a batch that are the same every time.

    Args:
        name: unique.
        build: draws no global random numbers.
        batch: keyword or positional arguments.
        loss: of the output.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    loss: Callable[[Any], Tensor | None] = default_loss

    def __str__(self) -> str:
        return self.name


def with_gradient(tensor: Tensor) -> Tensor:
    """The tensor as an argument that requires grad, where it can."""
    return tensor.requires_grad_(tensor.is_floating_point())


def plain(name: str) -> Network:
    build, inputs = small()[name]
    return Network(name, build, lambda: ((with_gradient(inputs()),), {}))


def given(*shapes: tuple[int, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments that require grad."""
    generator = torch.Generator().manual_seed(1)
    return tuple(with_gradient(torch.randn(shape, generator=generator)) for shape in shapes), {}


def tokens(vocab: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def encoder(**how: Any) -> Network:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **how)
        return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False)

    name = "encoder_" + ("norm_first" if how else "norm_last")
    batch = partial(given, (2, 5, 16))
    return Network(name, lambda: seeded(make), batch)


def encoder_decoder() -> Network:
    def make() -> nn.Module:
        return nn.Transformer(16, 2, 1, 1, 32, batch_first=True)

    return Network("encoder_decoder", lambda: seeded(make), partial(given, (2, 5, 16), (2, 3, 16)))


def recurrent(kind: type[nn.Module], **how: Any) -> Network:
    def make() -> nn.Module:
        return kind(8, 6, num_layers=2, batch_first=True, dropout=0.2, **how)

    name = f"{kind.__name__.lower()}_alone"
    return Network(name, lambda: seeded(make), partial(given, (3, 5, 8)))


def gpt2() -> Network:
    def build() -> nn.Module:
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32
        )
        return seeded(lambda: transformers.GPT2LMHeadModel(config))

    def batch() -> Any:
        ids = tokens(64, 2, 9)
        return (), {"input_ids": ids, "labels": ids, "use_cache": False}

    return Network("gpt2", build, batch, lambda output: output.loss)


def t5() -> Network:
    def build() -> nn.Module:
        config = transformers.T5Config(  # type: ignore[call-arg]
            num_layers=2, num_heads=2, d_model=32, d_kv=16, d_ff=48, vocab_size=64,
            decoder_start_token_id=0,
        )  # fmt: skip
        return seeded(lambda: transformers.T5ForConditionalGeneration(config))

    def batch() -> Any:
        labels = tokens(64, 2, 5, seed=2)
        return (), {"input_ids": tokens(64, 2, 9), "labels": labels, "use_cache": False}

    return Network("t5", build, batch, lambda output: output.loss)


NETWORKS = [
    *(plain(name) for name in ("resnet18", "resnet34", "densenet", "mobilenet", "lstm", "gpt")),
    encoder(),
    encoder(norm_first=True, activation="gelu"),
    encoder_decoder(),
    recurrent(nn.LSTM, bidirectional=True),
    recurrent(nn.GRU),
    gpt2(),
    t5(),
]

every_network = pytest.mark.parametrize("network", NETWORKS, ids=str)
every_mode = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def made(network: Network, dtype: torch.dtype, *, training: bool) -> tuple[nn.Module, Any, Any]:
    model = network.build().to(dtype).train(training)
    args, kwargs = network.batch()
    cast = [
        with_gradient(arg.detach().to(dtype)) if arg.is_floating_point() else arg for arg in args
    ]
    return model, tuple(cast), kwargs


def truth_of(network: Network, dtype: torch.dtype, *, training: bool) -> Truth:
    model, args, kwargs = made(network, dtype, training=training)
    return truth(model, args, kwargs, network.loss)


def recorded(network: Network, dtype: torch.dtype, *, training: bool, **how: Any) -> tt.Run:
    """One step of one backward."""
    model, args, kwargs = made(network, dtype, training=training)
    with fixed_seed(), tt.watch(model, "*:*", **how) as watch:
        loss = network.loss(model(*args, **kwargs))
        assert loss is not None
        loss.backward()
    return watch.run


# --- every gradient is the truth --------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])
@every_mode
@every_network
def test_every_gradient_of_every_module_is_that_of_the_twin(
    network: Network, training: bool, dtype: torch.dtype
) -> None:
    right = truth_of(network, dtype, training=training)
    records = list(recorded(network, dtype, training=training).records())
    num_compared = assert_matches(records, right, **TOLERANCES[dtype])
    assert num_compared == len(records)
    # Both ways, and not of a few modules only.
    assert len(right.expected(PORTS[2:])) >= len({key.path for key in right.entries}) > 0


@every_network
def test_the_total_gradient_is_that_over_all_uses(network: Network) -> None:
    right = truth_of(network, torch.float64, training=True)
    run = recorded(network, torch.float64, training=True, grad_input="total")
    totals = [record for record in run.records() if record.site.port == "grad_input"]
    assert totals and all("total" in record.labels for record in totals)
    tolerance = TOLERANCES[torch.float64]
    assert assert_matches(totals, right, **tolerance, ports=["grad_input"]) == len(totals)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet", "t5"])
def test_a_gradient_with_a_small_error_would_be_found(name: str) -> None:
    network = next(network for network in NETWORKS if network.name == name)
    right = truth_of(network, torch.float64, training=True)
    records = list(recorded(network, torch.float64, training=True).records())
    for place, record in list(enumerate(records))[:: len(records) // 10]:
        if not record.site.is_gradient:
            continue
        wrong = record._replace(kept=record.kept * (1 + 1e-7), version=-1)
        with pytest.raises(AssertionError, match="off by"):
            assert_matches(
                [*records[:place], wrong, *records[place + 1 :]],
                right,
                **TOLERANCES[torch.float64],
            )


@pytest.mark.slow
@pytest.mark.parametrize("make", [resnet18, resnet34])
def test_every_gradient_of_a_resnet_of_full_width_is_that_of_the_twin(make: Any) -> None:
    network = Network("full", lambda: seeded(make), partial(given, (2, 3, 64, 64)))
    right = truth_of(network, torch.float64, training=True)
    records = list(recorded(network, torch.float64, training=True).records())
    assert assert_matches(records, right, **TOLERANCES[torch.float64]) == len(records) > 200


# --- training is not changed ------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-3, fused=True),
}


def trained(network: Network, optimizer: str, where: str | None, **how: Any) -> list[bits.Facts]:
    """Everything that each of several optimizer steps leaves behind."""
    model, args, kwargs = made(network, torch.float32, training=True)
    steps = OPTIMIZERS[optimizer](model.parameters())
    found = []
    with fixed_seed():
        watch = None if where is None else tt.watch(model, where, **how)
        for _ in range(NUM_STEPS):
            # Keeping the memory of gradients is the harder case: it is written into again.
            steps.zero_grad(set_to_none=False)
            facts = bits.observe(model, args, kwargs, network.loss)
            steps.step()
            momenta = [
                bits.bits(value)
                for state in steps.state.values()
                for value in state.values()
                if isinstance(value, Tensor)
            ]
            found.append(facts | bits.state(model) | {"state of the optimizer": momenta})
            if watch is not None:
                watch.step()
        if watch is not None:
            watch.close()
            assert watch.run.steps == list(range(NUM_STEPS))
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@every_network
def test_training_watched_and_plain_are_the_same_bit_for_bit(
    network: Network, optimizer: str
) -> None:
    before = trained(network, optimizer, None)
    after = trained(network, optimizer, "*:*,param,param_grad,buffer")
    for step in range(NUM_STEPS):
        assert bits.differences(before[step], after[step]) == [], f"step {step}"


@pytest.mark.parametrize("how", [{"copy": "always"}, {"copy": "never"}, {"grad_input": "total"}])
@every_network
def test_training_watched_in_other_ways_is_the_same_bit_for_bit(
    network: Network, how: dict[str, str]
) -> None:
    before, after = trained(network, "sgd", None), trained(network, "sgd", "*:*", **how)
    for step in range(NUM_STEPS):
        assert bits.differences(before[step], after[step]) == [], f"step {step}"


def test_training_that_is_changed_would_be_found() -> None:
    network = next(network for network in NETWORKS if network.name == "mobilenet")
    before = trained(network, "sgd", None)
    noisy = dataclasses.replace(network, loss=lambda output: default_loss(output) + torch.rand(()))
    assert "random numbers" in bits.differences(before[0], trained(noisy, "sgd", None)[0])
    scaled = dataclasses.replace(network, loss=lambda output: default_loss(output) * (1 + 1e-7))  # type: ignore[arg-type, return-value]
    found = bits.differences(before[2], trained(scaled, "sgd", None)[2])
    assert "loss" in found and "state of the optimizer" in found


# --- the package's own proof ------------------------------------------------------------------


@every_mode
@every_network
def test_verify_holds_for_a_network(network: Network, training: bool) -> None:
    model, args, kwargs = made(network, torch.float32, training=training)
    result = tt.verify(model, *args, loss=network.loss, **kwargs)  # type: ignore[arg-type]
    assert result, repr(result)
    assert not result.unverified
    assert result.num_values > 0 and result.num_gradients > 0


@every_network
def test_verify_holds_for_a_network_without_grad(network: Network) -> None:
    model, args, kwargs = made(network, torch.float32, training=False)
    with torch.no_grad():
        result = tt.verify(model, *args, **kwargs)
    assert result, repr(result)
    assert result.num_values > 0 and result.num_gradients == 0


def test_watching_changes_no_bit_of_a_gpt() -> None:
    model = seeded(lambda: TinyGPT(vocab=11, d=16, layers=2, heads=2, context=8))
    tokens = torch.arange(8).reshape(1, 8)

    def train() -> list[Tensor]:
        model.zero_grad()
        out = model(tokens)
        out.logsumexp(-1).sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    plain = train()
    with tt.watch(model, ["*:*", "*:param,param_grad"]):
        watched = train()
    assert all(same(a, b) for a, b in zip(plain, watched, strict=True))
