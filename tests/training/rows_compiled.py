"""Trainings that compile with ``torch.compile``: models, parts, functions, and whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from networks import ConvNet, Experts, Tied, classes, pictures, tokens, vectors
from probe import COLUMNS, Probe
from row import Rows, Train, refused, said
from rows_plain import NO_BACKWARD, NO_GRADIENT, NOT_CALLED, UNUSED, train
from torch import Tensor, nn
from torch.nn import functional as F

COMPILED = Rows()
IN_GRAPH = "inside torch.compile there are no autograd nodes"
"""Columns whose statistics are measured inside of the graph."""
UNCOMPILED = "compiled, and run uncompiled for this proof"
ABOUT = 1e-4
FULLGRAPH = refused("torchtap: .*fullgraph=False")


def compiled(kind: str, *absent: str, **how: Any) -> Callable[[Train], Train]:
    """A row that compiles."""
    reasons = (IN_GRAPH, UNCOMPILED, *absent)
    return COMPILED(kind, compiles=True, tolerance=ABOUT, warns=True, absent=reasons, **how)


def mlp() -> nn.Sequential:
    """An in-place activation, and BatchNorm."""
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.BatchNorm1d(8), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """With momentum, so that it has a state."""
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


# ---------------------------------------------------------------------- the whole model


@compiled("compiled model", edited="inner")
def model_compiled_and_attached_to_the_inner_one(probe: Probe) -> None:
    model = ConvNet()
    call = probe.compile(model)
    probe.attach(model, pictures(0))
    train(probe, model, sgd(model), lambda k: F.cross_entropy(call(pictures(k)), classes(k)))


@compiled("compiled model", edited="inner")
def model_compiled_and_attached_to_the_wrapper(probe: Probe) -> None:
    model = ConvNet()
    call = probe.compile(model)
    probe.attach(call, pictures(0))
    train(probe, model, sgd(model), lambda k: F.cross_entropy(call(pictures(k)), classes(k)))


@compiled("compiled model", edited="inner")
def model_attached_and_then_compiled(probe: Probe) -> None:
    model = ConvNet()
    probe.attach(model, pictures(0))
    call = probe.compile(model)
    train(probe, model, sgd(model), lambda k: F.cross_entropy(call(pictures(k)), classes(k)))


@compiled("compiled model", UNUSED, edited="blocks.0.up")
def model_compiled_in_place_with_tied_weights(probe: Probe) -> None:
    model = Tied()
    for block in model.blocks:
        block.drop.p = 0.0  # The compiler draws other numbers than eager mode.
    probe.compile_in_place(model)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, sgd(model), lambda k: model(tokens(k), tokens(k + 1))[1])


@compiled(
    "compiled model, attached late",
    "no call of the model was seen before the optimizer's step",
    cells={
        name: said("compiled before it was watched.*torch.compiler.reset")
        for name in ("Memory", "Stats", "together")
    }
    | {"edit": said("compile.*before.*torch.compiler.reset")},
    edited="0",
)
def model_compiled_and_called_before_it_is_attached(probe: Probe) -> None:
    model = mlp()
    call = probe.compile(model)
    call(vectors(9)).sum().backward()
    probe.attach(call, vectors(0))
    train(probe, model, sgd(model), lambda k: call(vectors(k)).square().mean())


@compiled("compiled model, dynamic shapes", edited="0")
def model_compiled_for_dynamic_shapes(probe: Probe) -> None:
    model = mlp()
    call = probe.compile(model, dynamic=True)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: call(vectors(k, num=3 + 2 * k)).square().mean())


@compiled("compiled model, dynamic shapes", edited="0")
def model_whose_shapes_change(probe: Probe) -> None:
    model = mlp()
    call = probe.compile(model)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: call(vectors(k, num=3 + 2 * k)).square().mean())


@compiled(
    "compiled model, fullgraph=True",
    cells=dict.fromkeys(("Memory", "edit", "offload", "together"), FULLGRAPH),
    edited="0",
)
def model_compiled_as_one_graph(probe: Probe) -> None:
    model = mlp()
    call = probe.compile(model, fullgraph=True)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: call(vectors(k)).square().mean())


@compiled("compiled model, autocast", edited="inner")
def model_compiled_under_autocast(probe: Probe) -> None:
    model = ConvNet()
    model.drop.p = 0.0
    call = probe.compile(model)
    probe.attach(model, pictures(0))

    def compute(k: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(call(pictures(k)).float(), classes(k))

    train(probe, model, sgd(model), compute)


@compiled("compiled model, checkpoint", UNUSED, edited="blocks.0")
def model_compiled_with_checkpoints_inside(probe: Probe) -> None:
    model = Tied(how={"use_reentrant": False})
    for block in model.blocks:
        block.drop.p = 0.0
    call = probe.compile(model)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, sgd(model), lambda k: call(tokens(k), tokens(k + 1))[1])


@compiled("compiled model, inductor", edited="0")
def model_compiled_by_inductor(probe: Probe) -> None:
    model = mlp()
    call = probe.compile(model, backend="inductor", mode="reduce-overhead")
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: call(vectors(k)).square().mean())


# ---------------------------------------------------------------------- parts of it


@compiled("compiled parts", UNUSED, edited="blocks.1.up")
def parts_compiled_in_place(probe: Probe) -> None:
    model = Tied()
    for block in model.blocks:
        block.drop.p = 0.0
        probe.compile_in_place(block)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, sgd(model), lambda k: model(tokens(k), tokens(k + 1))[1])


@compiled("compiled parts", UNUSED, edited="blocks.1.up")
def parts_compiled_in_place_after_attaching(probe: Probe) -> None:
    model = Tied()
    probe.attach(model, tokens(0), tokens(1))
    for block in model.blocks:
        block.drop.p = 0.0
        probe.compile_in_place(block)
    train(probe, model, sgd(model), lambda k: model(tokens(k), tokens(k + 1))[1])


@compiled("compiled parts", NOT_CALLED, NO_GRADIENT, NO_BACKWARD, edited="shared.0")
def parts_replaced_by_compiled_ones(probe: Probe) -> None:
    model = Experts()
    for number, expert in enumerate(model.experts):
        model.experts[number] = probe.compile(expert)
    probe.attach(model, vectors(0))
    train(probe, model, sgd(model), lambda k: model(vectors(k), chosen=k % 2).square().mean())


@compiled(
    "compiled parts, fullgraph=True",
    UNUSED,
    cells=dict.fromkeys(("Memory", "edit", "offload", "together"), FULLGRAPH),
    edited="blocks.1.up",
)
def parts_compiled_as_one_graph_each(probe: Probe) -> None:
    model = Tied()
    for block in model.blocks:
        block.drop.p = 0.0
        probe.compile_in_place(block, fullgraph=True)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, sgd(model), lambda k: model(tokens(k), tokens(k + 1))[1])


# ---------------------------------------------------------------------- functions


def _train_by_function(probe: Probe, **options: Any) -> None:
    model = mlp()
    probe.attach(model, vectors(0))

    def compute(x: Tensor) -> Tensor:
        return model(x).square().mean()

    call = probe.compile(compute, **options)
    train(probe, model, sgd(model), lambda k: call(vectors(k)))


@compiled("compiled function: forward and loss", edited="0")
def forward_and_loss_compiled(probe: Probe) -> None:
    _train_by_function(probe)


@compiled(
    "compiled function: forward and loss, fullgraph=True",
    cells=dict.fromkeys(("Memory", "edit", "offload", "together"), FULLGRAPH),
    edited="0",
)
def forward_and_loss_compiled_as_one_graph(probe: Probe) -> None:
    _train_by_function(probe, fullgraph=True)


def _train_by_step(
    probe: Probe, model: nn.Module, optimizer: Any, batch: Any = vectors, **options: Any
) -> None:
    probe.attach(model, batch(0))
    probe.optimizes(optimizer)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    call = probe.compile(step, **options)
    for k in range(3):
        probe.step(call(batch(k)))


@compiled("compiled step: forward, backward, optimizer", edited="0")
def whole_step_compiled(probe: Probe) -> None:
    model = mlp()
    _train_by_step(probe, model, sgd(model))


@compiled("compiled step: forward, backward, optimizer", edited="inner")
def whole_step_of_a_conv_net_compiled(probe: Probe) -> None:
    model = ConvNet()
    model.drop.p = 0.0
    _train_by_step(probe, model, torch.optim.AdamW(model.parameters(), 0.01), pictures)


@compiled("compiled step: forward, backward, optimizer", edited="0")
def whole_step_compiled_by_inductor(probe: Probe) -> None:
    model = mlp()
    _train_by_step(probe, model, sgd(model), backend="inductor")


@compiled(
    "compiled step: forward, backward, optimizer, fullgraph=True",
    cells={name: refused("Optimizer.zero_grad") for name in COLUMNS},
    edited="0",
)
def whole_step_compiled_as_one_graph(probe: Probe) -> None:
    model = mlp()
    _train_by_step(probe, model, sgd(model), fullgraph=True)


@compiled("compiled step: forward, backward, optimizer", edited="0")
def whole_step_compiled_with_clipping_and_accumulation(probe: Probe) -> None:
    model = mlp()
    optimizer = sgd(model)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)

    def step(one: Tensor, other: Tensor) -> Tensor:
        optimizer.zero_grad()
        first = model(one).square().mean()
        first.backward()
        second = model(other).square().mean()
        second.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return first.detach() + second.detach()

    call = probe.compile(step)
    for k in range(3):
        probe.step(call(vectors(k), vectors(10 + k)))


@compiled("compiled optimizer", edited="0")
def optimizer_step_compiled(probe: Probe) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    update = probe.compile(optimizer.step)
    for k in range(3):
        optimizer.zero_grad()
        loss = model(vectors(k)).square().mean()
        loss.backward()
        update()
        probe.step(loss)


@compiled(
    "compiled autograd",
    cells={name: said("compiled autograd is on") for name in ("Memory", "Stats", "together")},
    edited="0",
)
def backward_compiled_by_compiled_autograd(probe: Probe) -> None:
    model = mlp()
    optimizer = sgd(model)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    call = probe.compile(model)

    def step(x: Tensor) -> Tensor:
        loss = call(x).square().mean()
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=not probe.is_eager):
        run = probe.compile(step)
        for k in range(3):
            optimizer.zero_grad()
            loss = run(vectors(k))
            optimizer.step()
            probe.step(loss)


@compiled("compiled GAN", edited="generator.0")
def gan_whose_parts_are_compiled(probe: Probe) -> None:
    generator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
    first, second = sgd(generator), sgd(critic)
    make, judge = probe.compile(generator), probe.compile(critic)
    probe.attach(nn.ModuleDict({"generator": generator, "critic": critic}))
    probe.proves(critic, vectors(0))
    probe.optimizes(first, second)
    for k in range(3):
        second.zero_grad()
        fake = make(vectors(k))
        wrong = judge(fake.detach()).exp().mean() + judge(vectors(50 + k)).square().mean()
        wrong.backward()
        second.step()
        first.zero_grad()
        loss = judge(fake).square().mean()
        loss.backward()
        first.step()
        probe.step((loss, wrong))
