"""Trainings on one process, as they are written: nothing compiled, nothing distributed."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.utils.prune
from networks import (
    ConvNet,
    Experts,
    Tied,
    Translator,
    classes,
    pictures,
    tokens,
    vectors,
)
from probe import Probe
from row import Rows, said
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

PLAIN = Rows()
UNUSED = "no gradient arrived: no backward was run, the loss does not depend on it"
"""The reason at outputs that the loss does not use."""
NOT_CALLED = "the module was not called: its parent skipped it"
NO_GRADIENT = "no optimizer made a step with it in step .*: it has no gradient"
NO_BACKWARD = "no backward reached the parameter"


def train(probe: Probe, model: nn.Module, optimizer: Any, compute: Any, steps: int = 3) -> None:
    """The loop that most of the rows have."""
    probe.optimizes(optimizer)
    for k in range(steps):
        optimizer.zero_grad()
        loss = compute(k)
        loss.backward()
        optimizer.step()
        probe.step(loss)


@PLAIN("plain", edited="act")
def a_conv_net(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True)
    probe.attach(model, pictures(0))
    train(probe, model, optimizer, lambda k: F.cross_entropy(model(pictures(k)), classes(k)))


@PLAIN("plain", edited="decoder.norm", absent=(UNUSED, f"{NOT_CALLED}.*out_proj"))
def an_encoder_and_a_decoder(probe: Probe) -> None:
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, foreach=True)
    probe.attach(model, tokens(0), tokens(1))

    def compute(k: int) -> Tensor:
        found = model(tokens(k), target=tokens(k + 1))
        return F.cross_entropy(found["logits"].flatten(0, 1), tokens(k + 2).flatten())

    train(probe, model, optimizer, compute)


@PLAIN("plain", edited="shared", absent=(NOT_CALLED, NO_GRADIENT, NO_BACKWARD))
def experts_of_which_some_never_run(probe: Probe) -> None:
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, fused=True)
    probe.attach(model, vectors(0))
    train(probe, model, optimizer, lambda k: model(vectors(k), chosen=k % 2).square().mean())


@PLAIN("plain", edited="blocks.1", absent=(UNUSED,))
def tied_embeddings(probe: Probe) -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, optimizer, lambda k: model(tokens(k), tokens(k + 1))[1])


@PLAIN("attached in the middle", edited="act")
def attached_after_a_step_and_taken_off_before_the_last(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    probe.optimizes(optimizer)
    for k in range(5):
        if k == 1:
            probe.attach(model, pictures(0))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        loss.backward()
        optimizer.step()
        probe.step(loss)
        if k == 3:
            probe.detach()


@PLAIN(
    "attached between forward and backward",
    cells={
        name: said("in step 0 no call of the model was seen before the optimizer's step")
        for name in ("Memory", "Stats", "together")
    },
    edited="act",
)
def attached_between_forward_and_backward(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        if k == 0:
            probe.attach(model, pictures(0))
        loss.backward()
        optimizer.step()
        probe.step(loss)


# ---------------------------------------------------------------------- checkpoints


def _save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    is_product = op is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def _checkpointed(probe: Probe, **how: Any) -> None:
    model = Tied(how=how)
    optimizer = torch.optim.RMSprop(model.parameters(), 0.01, centered=True)
    probe.attach(model, tokens(0), tokens(1))
    train(probe, model, optimizer, lambda k: model(tokens(k), tokens(k + 1))[1])


@PLAIN("checkpoint", edited="blocks.0.up", absent=(UNUSED,))
def checkpoint_non_reentrant(probe: Probe) -> None:
    _checkpointed(probe, use_reentrant=False)


@PLAIN(
    "checkpoint",
    edited="blocks.0.up",
    absent=(UNUSED, "it ran in a backward, as in a reentrant checkpoint"),
    is_reentrant=True,
)
def checkpoint_reentrant(probe: Probe) -> None:
    _checkpointed(probe, use_reentrant=True)


@PLAIN("checkpoint", edited="blocks.0.up", absent=(UNUSED,))
def checkpoint_selective(probe: Probe) -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts(_save_products)

    _checkpointed(probe, use_reentrant=False, context_fn=contexts)


# ---------------------------------------------------------------------- mixed precision


@PLAIN("autocast", edited="inner")
def autocast_bf16(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    probe.attach(model, pictures(0))

    def compute(k: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(pictures(k)).float(), classes(k))

    train(probe, model, optimizer, compute)


@PLAIN("GradScaler", edited="inner")
def autocast_with_a_grad_scaler_and_clipping(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    probe.attach(model, pictures(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(pictures(k)).float(), classes(k))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        probe.step(loss)


@PLAIN(
    "GradScaler",
    edited="inner",
    absent=("no optimizer made a step with it in step 1: GradScaler skipped the step",),
)
def a_grad_scaler_that_skips_a_step(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    probe.attach(model, pictures(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        if k == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        probe.step(loss)


# ---------------------------------------------------------------------- one step in parts


@PLAIN("accumulation and clipping", edited="decoder.norm", absent=(UNUSED, NOT_CALLED))
def accumulation_and_clipping(probe: Probe) -> None:
    model = Translator()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, tokens(0), tokens(1))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        losses = []
        for part in range(3):
            found = model(tokens(3 * k + part), tokens(k))["logits"]
            losses.append(found.logsumexp(-1).mean() / 3)
            losses[-1].backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        probe.step(losses)


@PLAIN("averaged model", edited="act")
def an_averaged_model_beside_it(probe: Probe) -> None:
    model = ConvNet()
    ema = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=3)
    probe.attach(model, pictures(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        loss.backward()
        optimizer.step()
        schedule.step()
        ema.update_parameters(model)
        with torch.no_grad():
            averaged = ema(pictures(k)).sum()
        probe.step((loss, averaged))


@PLAIN("evaluation between steps", edited="act")
def evaluation_between_steps(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    probe.attach(model, pictures(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad(), probe.evaluation():
            right = model(pictures(10)).argmax(1).eq(classes(10)).sum()
        model.train()
        probe.step((loss, right))


@PLAIN("evaluation between steps", edited="act")
def evaluation_after_the_step_was_closed(probe: Probe) -> None:
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    probe.attach(model, pictures(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures(k)), classes(k))
        loss.backward()
        optimizer.step()
        probe.step(loss)
        model.eval()
        with torch.inference_mode(), probe.evaluation():
            model(pictures(10))
        model.train()


@PLAIN("several losses", edited="shared", absent=(NOT_CALLED, NO_GRADIENT, NO_BACKWARD))
def two_backwards_through_one_graph(probe: Probe) -> None:
    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    for k in range(3):
        optimizer.zero_grad()
        found = model(vectors(k))
        one, other = found.square().mean(), found.exp().mean()
        one.backward(retain_graph=True)
        other.backward()
        optimizer.step()
        probe.step((one, other))


@PLAIN(
    "several losses",
    edited="net.1",
    absent=("create_graph",),
)
def a_penalty_of_the_gradient(probe: Probe) -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model = Critic()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    probe.attach(model, vectors(0))

    def compute(k: int) -> Tensor:
        x = vectors(k).requires_grad_()
        value = model(x).sum()
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        return value + (slope.norm(dim=1) - 1).square().mean()

    train(probe, model, optimizer, compute)


# ---------------------------------------------------------------------- optimizers


@PLAIN("LBFGS and other closures", edited="1")
def lbfgs(probe: Probe) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    for k in range(3):

        def closure(k: int = k) -> Tensor:
            optimizer.zero_grad()
            loss = model(vectors(k)).square().mean()
            loss.backward()
            return loss

        probe.step(optimizer.step(closure))


def _train_inside_the_backward(probe: Probe, *, is_first: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers = {param: torch.optim.SGD([param], 0.05) for param in model.parameters()}

    def update(param: Tensor) -> None:
        optimizers[param].step()
        optimizers[param].zero_grad()

    def register() -> None:
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(update)

    if is_first:
        register()
    probe.attach(model, vectors(0))
    for k in range(3):
        loss = model(vectors(k)).square().mean()
        if not is_first and k == 0:
            register()  # Hooks of a watch on parameters are put on with the first call.
        loss.backward()
        probe.step(loss)


@PLAIN(
    "optimizer inside the backward",
    cells={
        name: said("a hook that was on the parameter before ours emptied .grad")
        for name in ("Memory", "Stats", "together")
    },
    edited="1",
)
def an_optimizer_inside_the_backward(probe: Probe) -> None:
    _train_inside_the_backward(probe, is_first=True)


@PLAIN("optimizer inside the backward", edited="1")
def an_optimizer_inside_the_backward_of_a_watched_model(probe: Probe) -> None:
    _train_inside_the_backward(probe, is_first=False)


@PLAIN("GAN", edited="generator.1", where="*:*,param,buffer,param_grad,step_grad,update")
def a_gan_with_two_optimizers(probe: Probe) -> None:
    generator = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 6))
    critic = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    first = torch.optim.Adam(generator.parameters(), 0.01)
    second = torch.optim.Adam(critic.parameters(), 0.01)
    probe.attach(both)
    probe.proves(nn.Sequential(generator, critic), vectors(0))
    probe.optimizes(first, second)
    for k in range(3):
        second.zero_grad()
        fake = generator(vectors(k))
        wrong = (
            F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(vectors(50 + k))).mean()
        )
        wrong.backward()
        second.step()
        first.zero_grad()
        loss = F.softplus(-critic(fake)).mean()
        loss.backward()
        first.step()
        probe.step((loss, wrong))


# ---------------------------------------------------------------------- kinds of tensors


@PLAIN("packed sequences", edited="head", absent=(UNUSED,))
def packed_lstm(probe: Probe) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.1, bidirectional=True)
            self.gru = nn.GRU(10, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
            packed, _ = self.lstm(packed)
            _, last = self.gru(packed)
            return self.head(last[-1])

    model = Packed()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    lengths = torch.tensor([3, 5, 2])
    probe.attach(model, vectors(0, 15).view(5, 3, 6), lengths)
    train(
        probe,
        model,
        optimizer,
        lambda k: model(vectors(k, 15).view(5, 3, 6), lengths).square().mean(),
    )


@PLAIN("sparse gradients", edited="1")
def sparse_embedding_gradients(probe: Probe) -> None:
    model = nn.Sequential(nn.Embedding(11, 6, sparse=True), nn.Linear(6, 3))
    sparse = torch.optim.SparseAdam(model[0].parameters(), 0.01)
    dense = torch.optim.SGD(model[1].parameters(), 0.1)
    probe.attach(model, tokens(0))
    probe.optimizes(sparse, dense)
    for k in range(3):
        sparse.zero_grad()
        dense.zero_grad()
        loss = model(tokens(k)).square().mean()
        loss.backward()
        sparse.step()
        dense.step()
        probe.step(loss)


@PLAIN(
    "nested tensors",
    cells={name: said("another class of tensor") for name in ("offload", "together")},
    edited="1",
    absent=("nested",),
)
def jagged_nested_tensors(probe: Probe) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def batch(k: int) -> Tensor:
        parts = [vectors(k, 2), vectors(k + 1, 4)]
        return torch.nested.nested_tensor(parts, layout=torch.jagged)

    probe.attach(model, batch(0))
    train(probe, model, optimizer, lambda k: model(batch(k)).values().square().mean())


@PLAIN("parametrized weights", edited="1")
def weight_norm_and_spectral_norm(probe: Probe) -> None:
    one = nn.utils.parametrizations.weight_norm(nn.Linear(6, 8))
    other = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3))
    model = nn.Sequential(one, nn.Tanh(), other)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))
    train(probe, model, optimizer, lambda k: model(vectors(k)).square().mean())


@PLAIN("parametrized weights", edited="1", absent=(NO_GRADIENT, NO_BACKWARD))
def a_frozen_part_and_low_rank_weights_of_ones_own(probe: Probe) -> None:
    class Lora(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, inner.in_features))
            self.b = nn.Parameter(torch.zeros(inner.out_features, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) + x @ self.a.T @ self.b.T

    model = nn.Sequential(Lora(nn.Linear(6, 8)), nn.GELU(), Lora(nn.Linear(8, 3)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)
    probe.attach(model, vectors(0))
    train(probe, model, optimizer, lambda k: model(vectors(k)).square().mean())


@PLAIN("pruned weights", edited="1")
def pruned_weights(probe: Probe) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    nn.utils.prune.l1_unstructured(model[0], "weight", 0.5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))
    train(probe, model, optimizer, lambda k: model(vectors(k)).square().mean())


# ---------------------------------------------------------------------- threads and workers


@PLAIN("threads", edited="0")
def threads_in_turn(probe: Probe) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))

    def compute(k: int) -> Tensor:
        found: list[Tensor] = []
        worker = threading.Thread(target=lambda: found.append(model(vectors(k)).square().mean()))
        worker.start()
        worker.join()
        return found[0]

    train(probe, model, optimizer, compute)


@PLAIN("threads", edited="0")
def threads_at_once(probe: Probe) -> None:
    """Each computes its loss; they are added up in their order, so that the sum is the same."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))

    def compute(k: int) -> Tensor:
        found: dict[int, Tensor] = {}
        # The same rows in each, so that it makes no difference which is which.
        workers = [
            threading.Thread(
                target=lambda n=n: found.update({n: model(vectors(k)).square().mean()})
            )
            for n in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return found[0] + found[1] + found[2]

    train(probe, model, optimizer, compute)


@PLAIN("DataParallel on the CPU", edited="act")
def data_parallel_on_the_cpu(probe: Probe) -> None:
    model = nn.DataParallel(ConvNet())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    probe.attach(model, pictures(0))
    train(probe, model, optimizer, lambda k: F.cross_entropy(model(pictures(k)), classes(k)))


class Numbers(torch.utils.data.Dataset[Tensor]):
    """Six rows."""

    def __getitem__(self, index: int) -> Tensor:
        return vectors(index, 1)[0]

    def __len__(self) -> int:
        return 6


@PLAIN("DataLoader workers", edited="1")
def data_loader_workers(probe: Probe) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    probe.attach(model, vectors(0))
    probe.optimizes(optimizer)
    loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=1)
    for batch in loader:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        probe.step(loss)
