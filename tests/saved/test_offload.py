"""Offloading gives the gradients that plain training gives, to the bit."""

from __future__ import annotations

import functools
import gc
import math
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import bits
import pytest
import torch
from bits import same
from models import chain, gradient_of_chain, seeded, small
from offloads import Keeps, facts, gradients, kept_through, noise, offloads
from random_numbers import fixed_seed
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.core.errors import InputError, OffloadError, SiteError
from torchtap.hooks.saved_pairs import top
from torchtap.saved.copy_streams import use_streams
from torchtap.saved.saved_block import EVICTED, PREFETCHED, RESIDENT
from torchtap.testing import FakeStreams, Net, Specimen, default_loss, zoo

DELAYS = (0, 1, 3, 20)
SPECIMENS = [one for one in zoo() if one.backward and one.raises is None]
NETWORKS = {name: small()[name] for name in ("resnet18", "gpt", "lstm")}
OVERWRITTEN = "modified by an inplace operation"

every_specimen = pytest.mark.parametrize("specimen", SPECIMENS, ids=str)
every_network = pytest.mark.parametrize("name", NETWORKS)
TO = ("disk", "cpu")
every_to = pytest.mark.parametrize("to", TO)


def loss_of(output: Any) -> Tensor:
    loss = default_loss(output)
    assert loss is not None
    return loss


# --- the zoo ----------------------------------------------------------------------------------


def facts_of(specimen: Specimen, off: Callable[[nn.Module], Any] | None) -> bits.Facts:
    model = specimen.build()
    with fixed_seed(), ExitStack() as stack:
        if off is not None:
            stack.enter_context(off(model))
        args, kwargs = specimen.inputs()
        return bits.observe(model, args, kwargs, default_loss)


@every_to
@every_specimen
def test_offloading_changes_nothing(specimen: Specimen, to: str) -> None:
    """Outputs, gradients, buffers, versions and random numbers; in a block and attached."""
    plain = facts_of(specimen, None)
    block = facts_of(specimen, lambda model: offloads(to))
    assert bits.differences(plain, block) == []
    attached = facts_of(specimen, lambda model: offloads(to, model=model, delay=0))
    assert bits.differences(plain, attached) == []


def test_an_attached_offload_leaves_nothing_on_the_model() -> None:
    model = NETWORKS["resnet18"][0]()
    before = bits.hooks(model)
    off = offloads(model=model, missing="ignore")
    assert bits.hooks(model) != before
    off.close()
    off.close()
    assert bits.hooks(model) == before


# --- networks ---------------------------------------------------------------------------------


@functools.cache
def plain_gradients(name: str, kind: str) -> Any:
    return KINDS[kind](*built(name))


def built(name: str) -> tuple[nn.Module, Tensor]:
    build, inputs = NETWORKS[name]
    model = build()
    if name == "lstm":
        model.eval()  # Dropout draws random numbers.
    return model, inputs()


def once(model: nn.Module, x: Tensor) -> Any:
    return gradients(model, loss_of(model(x)))


def retained(model: nn.Module, x: Tensor) -> Any:
    loss = loss_of(model(x))
    return [gradients(model, loss, retain_graph=True) for _ in range(3)] + [gradients(model, loss)]


def twice_differentiated(model: nn.Module, x: Tensor) -> Any:
    """Penalises the gradient; only the plain kernel of attention can be differentiated twice."""
    with sdpa_kernel(SDPBackend.MATH):
        first = gradients(model, loss_of(model(x)), create_graph=True)
        penalty = sum(grad.pow(2).sum() for grad in first if grad is not None)
        return first, gradients(model, penalty)  # type: ignore[arg-type]


def steps_of_training(model: nn.Module, x: Tensor) -> Any:
    found = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(4):
        optimizer.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        found.append(loss.detach())
        optimizer.step()
    return found, list(model.parameters())


def autocast(model: nn.Module, x: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(x))
    return gradients(model, loss)


def many_graphs(model: nn.Module, x: Tensor) -> Any:
    losses = [loss_of(model(x)) * scale for scale in (1, 2, 3, 4)]
    return [gradients(model, losses[place]) for place in (2, 0, 3, 1)]


def many_threads(model: nn.Module, x: Tensor) -> Any:
    losses = [loss_of(model(x)) * scale for scale in (1, 2, 3, 4)]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda loss: gradients(model, loss), losses))


def other_thread(model: nn.Module, x: Tensor) -> Any:
    loss = loss_of(model(x))
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(gradients, model, loss).result()


KINDS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "once": once,
    "retained": retained,
    "twice differentiated": twice_differentiated,
    "steps of training": steps_of_training,
    "autocast": autocast,
    "many graphs": many_graphs,
    "many threads": many_threads,
    "another thread": other_thread,
}


@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
@pytest.mark.parametrize("kind", KINDS)
@every_to
@every_network
def test_gradients_of_a_network(name: str, to: str, kind: str, is_attached: bool) -> None:
    if name == "lstm" and kind == "autocast":
        pytest.skip("no bfloat16 LSTM on this CPU")
    expected = plain_gradients(name, kind)
    model, x = built(name)
    with offloads(to, model=model if is_attached else None) as off:
        found = KINDS[kind](model, x)
    off.flush()
    assert same(found, expected)
    assert off.report().packed_nbytes > 0 and sum(off.report().moved_nbytes.values()) > 0


@pytest.mark.parametrize("delay", DELAYS)
@pytest.mark.parametrize("max_bytes", [None, 0, 20_000, 200_000])
def test_copies_that_end_late_change_nothing(delay: int, max_bytes: int | None) -> None:
    expected = plain_gradients("gpt", "steps of training")
    model, x = built("gpt")
    with offloads("cpu", delay=delay, model=model, max_bytes=max_bytes) as off:
        assert same(steps_of_training(model, x), expected)
    for kind in ("retained", "many graphs", "many threads"):
        model, x = built("gpt")
        with offloads("cpu", delay=delay, max_bytes=max_bytes) as off:
            assert same(KINDS[kind](model, x), plain_gradients("gpt", kind))
    assert (off.report().fetched_nbytes > 0) == (max_bytes != 200_000)  # All fits in that.


def test_replicas_in_threads_are_served_by_one_attached_offload() -> None:
    model, x = built("gpt")
    inputs = [x, x.flip(0), x.flip(1), x + 0]
    expected = [gradients(model, loss_of(model(one))) for one in inputs]
    with offloads(model=model) as off:
        together = threading.Barrier(4)

        def work(one: Tensor) -> Any:
            together.wait()
            loss = loss_of(model(one))
            together.wait()
            return gradients(model, loss)

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(work, inputs))
        rows = off.report().rows
    assert same(found, expected)
    assert sum(row.packed for row in rows) > 0
    single = offloads(model=model)
    model(x)
    single.close()
    assert {row.path: row.count for row in rows} == {
        row.path: 4 * row.count for row in single.report().rows
    }


# --- checkpoints ------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3)
        )
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x.sin()


@every_to
@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "non-reentrant"])
@pytest.mark.parametrize("only", [None, "checkpoint_inputs"])
@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
def test_around_checkpoints_only_their_inputs_are_moved(
    to: str, use_reentrant: bool, only: Any, is_attached: bool
) -> None:
    model = seeded(lambda: Checkpointed(use_reentrant=use_reentrant))
    x = noise(8, 16).requires_grad_()

    def run() -> Any:
        model.zero_grad()
        x.grad = None
        model(x).sum().backward()
        return [param.grad for param in model.parameters()] + [x.grad]

    expected = run()
    with offloads(to, model=model if is_attached else None, only=only) as off:
        found = run()
    assert same(found, expected)
    off.flush()
    report = off.report()
    assert report.packed_nbytes == (3 if only else 4) * x.nbytes  # And what the sine keeps.
    assert not report.notes


def test_inside_a_checkpoint_it_keeps_away_and_says_so() -> None:
    model = seeded(lambda: Checkpointed(use_reentrant=False))
    x = noise(8, 16).requires_grad_()
    expected = gradients(model, model(x).sum())
    with offloads(model=model, where="blocks.*") as off:
        found = gradients(model, model(x).sum())
    assert same(found, expected)
    report = off.report()
    assert report.packed_nbytes == 0
    assert any("non-reentrant checkpoint" in note for note in report.notes)


@every_to
def test_a_block_inside_a_checkpoint_keeps_away_as_well(to: str) -> None:
    x, off = noise(8, 16).requires_grad_(), offloads(to)

    def inside(y: Tensor) -> Tensor:
        with off:
            return y.sin().exp()

    expected = torch.autograd.grad(x.sin().exp().sum(), x)[0]
    loss = checkpoint(inside, x, use_reentrant=False).sum()
    assert same(torch.autograd.grad(loss, x)[0], expected)
    assert off.report().packed_nbytes == 0
    assert any("non-reentrant checkpoint" in note for note in off.report().notes)


# --- kinds of tensors -------------------------------------------------------------------------


def strided() -> dict[str, Tensor]:
    x, z = noise(6, 8, 10), noise(6, 8, dtype=torch.complex64)
    return {
        "contiguous": x,
        "transposed": x.transpose(0, 2),
        "permuted": x.permute(2, 0, 1),
        "cut": x[1:4, ::2, 3:],
        "one column": x[:, :, 3],
        "offset": x[3:],
        "channels last": noise(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": noise(6, 1).expand(6, 50),
        "expanded first": noise(50).expand(6, 50),
        "expanded with gaps": x[:, 0, ::3].unsqueeze(1).expand(6, 9, 4),
        "strided and expanded": noise(300)[::3].expand(2, 100),
        "one number expanded": noise(1).expand(7, 7),
        "windows": noise(100).unfold(0, 7, 2),
        "windows with gaps": noise(200)[::2].unfold(0, 5, 3),
        "odd strides": noise(100).as_strided((3, 4), (7, 1), 5),
        "overlapping": noise(100).as_strided((5, 5), (2, 3)),
        "overlapping with gaps": noise(201).as_strided((3, 3), (50, 50)),
        "conj": z.conj(),
        "conj transposed": z.mH,
        "conj cut": z.conj()[::2, 1:3],
        "neg": z.conj().imag,
        "neg cut": z.conj().imag[::2],
        "real part": z.real,
        "imaginary part": z.imag,
        "as real": torch.view_as_real(z),
        "a one and a gap": x[:1, :1, ::5],
        "unit dimensions": noise(1, 5, 1).transpose(0, 2),
        "single": noise(1),
        "nan": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0]),
        "bits of nan": torch.tensor([0x7FC00001, -0x3FFFFF], dtype=torch.int32).view(torch.float32),
        **{str(dtype): torch.arange(-20, 20).to(dtype) for dtype in DTYPES},
    }


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
    torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


@every_to
@pytest.mark.parametrize("name", strided())
def test_every_bit_comes_back(to: str, name: str) -> None:
    tensor = strided()[name]
    expected = facts(tensor)
    off = offloads(to)
    (found,) = kept_through(off, tensor)
    assert facts(found) == expected
    assert found.data_ptr() != tensor.data_ptr()
    assert sum(off.report().moved_nbytes.values()) <= tensor.untyped_storage().nbytes()


def test_a_view_moves_no_more_than_itself() -> None:
    for tensor in (noise(1000, 100)[:, 3], noise(1000, 100)[:, :1].expand(1000, 50)):
        off = offloads()
        kept_through(off, tensor)
        assert off.report().moved_nbytes == {"disk": 1000 * 4}


def odd_kinds() -> dict[str, Tensor]:
    return {
        "0-d": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "sparse coo": torch.eye(3).to_sparse(),
        "sparse csr": torch.eye(3).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(noise(4, 4), 0.1, 3, torch.quint8),
        "jagged": torch.nested.nested_tensor([noise(2, 3), noise(4, 3)], layout=torch.jagged),
        "meta": torch.empty(4, 4, device="meta"),
        "subclass": noise(4).as_subclass(Labelled),
        "parameter": nn.Parameter(noise(4)),
    }


ODD = (
    "0-d", "empty", "sparse coo", "sparse csr", "quantised", "jagged", "meta", "subclass",
    "parameter",
)  # fmt: skip


class Labelled(Tensor):
    pass


@pytest.mark.filterwarnings("ignore:.*[Ss]parse CSR", "ignore:.*quantize", "ignore:.*nested")
@pytest.mark.parametrize("name", ODD)
def test_what_cannot_be_moved_stays_as_it_is(name: str) -> None:
    tensor = odd_kinds()[name]
    off = offloads()
    (found,) = kept_through(off, tensor)
    assert (found.shape, found.layout, found.dtype) == (tensor.shape, tensor.layout, tensor.dtype)
    if name == "quantised":
        assert same(found.int_repr(), tensor.int_repr())
    elif name == "jagged":
        assert found.offsets() is tensor.offsets()  # type: ignore[attr-defined]
        assert same(found.values(), tensor.values())
    elif name == "sparse csr":
        assert same(found.values(), tensor.values())
    elif name != "meta":
        assert same(found, tensor)
    report = off.report()
    assert report.packed_nbytes == 0 and len(report.kept_nbytes) == 1


@pytest.mark.filterwarnings("ignore:.*nested")
@every_to
def test_nested_tensors_stay_as_they_are(to: str) -> None:
    def run() -> Any:
        y = torch.nested.nested_tensor([noise(2, 3), noise(4, 3)], requires_grad=True)
        torch.nested.to_padded_tensor(y * y.sin(), 0.0).sum().backward()
        assert y.grad is not None
        return y.grad.unbind()

    expected = run()
    with offloads(to) as off:
        assert same(run(), expected)
    assert "sparse, nested or quantised" in off.report().kept_nbytes


@pytest.mark.usefixtures("one_process")
def test_dtensors_stay_as_they_are() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    weight = distribute_tensor(noise(8, 8), mesh, [Shard(0)]).requires_grad_()
    x = distribute_tensor(noise(4, 8), mesh, [Shard(0)])

    def run() -> Tensor:
        return torch.autograd.grad((x @ weight).sin().sum(), weight)[0].full_tensor()  # type: ignore[attr-defined]

    expected = run()
    with offloads() as off:
        assert same(run(), expected)
        (found,) = kept_through(off, x)
    assert isinstance(found, DTensor) and found.device_mesh is mesh
    assert "another class of tensor" in off.report().kept_nbytes


# --- overwritten ------------------------------------------------------------------------------


@contextmanager
def autograds_own_error(plain: Callable[[], object]) -> Iterator[None]:
    """Autograd's own message, as without torchtap."""
    with pytest.raises(RuntimeError, match=OVERWRITTEN) as expected:
        plain()
    with pytest.raises(RuntimeError) as found:
        yield
    start = str(expected.value).partition(", which is output")[0].partition(";")[0]
    assert str(found.value).startswith(start.partition("[")[0])
    assert "is at version" in str(found.value) and "expected version 0" in str(found.value)


WHEN = {
    "kept, small": ({"min_bytes": 1 << 30}, "disk"),
    "kept, latest": ({"keep_last": 1 << 30}, "disk"),
    "leaving": ({}, "cpu"),
    "away": ({}, "disk"),
    "encoded": ({}, tt.codecs.bf16()),
}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("write", ["itself", "a view", "a part", "its base"])
def test_an_overwritten_tensor_raises_as_autograd_does(when: str, write: str) -> None:
    kwargs, to = WHEN[when]

    def run(off: Any) -> None:
        x = noise(32, 32).requires_grad_()
        base = x * 2
        y = base.view(32, 32) if write == "its base" else base
        with off:
            loss = y.sin().sum()
        if when == "away":
            off.flush() if hasattr(off, "flush") else None
        with torch.no_grad():
            target = {"itself": y, "a view": y.t(), "a part": y[3], "its base": base}[write]
            target.mul_(3)
        loss.backward()

    with autograds_own_error(lambda: run(ExitStack())):
        run(
            offloads(to, delay=1000, **kwargs)
            if isinstance(to, str)
            else tt.offload(to, min_bytes=0)  # type: ignore[arg-type]
        )


def test_what_was_overwritten_before_it_was_saved_is_right() -> None:
    x = noise(32, 32).requires_grad_()

    def run() -> Tensor:
        y = x * 2
        first = y.sum()
        y.mul_(3)
        return torch.autograd.grad(y.sin().sum() + first, x)[0]

    expected = run()
    for to in TO:
        with offloads(to):
            assert same(run(), expected)


def test_each_version_of_a_tensor_is_a_tensor_of_its_own() -> None:
    """A function may save what is overwritten later, as long as its backward does not read it."""
    x = torch.ones(1, requires_grad=True)
    buffer = noise(64)
    off = offloads()
    with off:
        first = Keeps.apply(x, buffer)
    off.flush()
    buffer.add_(1)
    with off:
        second = Keeps.apply(x, buffer)
    off.flush()
    second.backward()
    assert same(Keeps.seen[0], buffer)
    with pytest.raises(RuntimeError, match=OVERWRITTEN):
        first.backward()


@pytest.mark.filterwarnings("ignore:.*[Ss]parse CSR", "ignore:.*quantize", "ignore:.*nested")
@pytest.mark.parametrize("kind", ["sparse coo", "0-d", "subclass", "parameter"])
def test_what_is_passed_through_is_watched_as_well(kind: str) -> None:
    tensor = odd_kinds()[kind]
    x = torch.ones(1, requires_grad=True)
    with offloads():
        loss = Keeps.apply(x, tensor)
    with torch.no_grad():
        tensor.mul_(2)
    with pytest.raises(RuntimeError, match=OVERWRITTEN):
        loss.backward()


# --- parameters -------------------------------------------------------------------------------


def param_storages(model: nn.Module) -> set[int]:
    return {param.untyped_storage()._cdata for param in model.parameters()}


@pytest.mark.parametrize("enabled", [False, True], ids=["float32", "autocast"])
def test_parameters_are_never_moved(enabled: bool) -> None:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(32, 4, batch_first=True)
    models: list[tuple[nn.Module, Callable[[], Tensor]]] = [
        (built("gpt")[0], lambda: models[0][0](built("gpt")[1][:1, :7])),
        (mha, lambda: mha(noise(2, 5, 32), noise(2, 7, 32), noise(2, 7, 32))[0]),
        (mha, lambda: mha(*[noise(2, 5, 32)] * 3)[0]),
    ]
    for model, run in models:
        shapes = {tuple(param.shape) for param in model.parameters() if param.dim() == 2}
        shapes |= {shape[::-1] for shape in shapes}
        shapes |= {(32, 64), (64, 32)} if model is mha else set()
        moved: list[Tensor] = []
        off = offloads()
        taken = off._engine._take

        def take(tensor: Tensor, *rest: Any, taken: Any = taken, moved: Any = moved) -> Any:
            moved.append(tensor)
            return taken(tensor, *rest)

        off._engine._take = take  # type: ignore[assignment]
        with off, torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = run().float().sum()
        loss.backward()
        assert off.report().kept_nbytes["parameter"] > 0
        storages = param_storages(model)
        assert all(one.untyped_storage()._cdata not in storages for one in moved)
        assert not [tuple(one.shape) for one in moved if tuple(one.shape) in shapes]


def test_a_recognised_parameter_can_be_overwritten_by_an_optimizer() -> None:
    """The next forward does not see the version of the last."""
    model, x = built("gpt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with offloads(model=model):
        for _ in range(3):
            loss_of(model(x)).backward()
            optimizer.step()


# --- the same storage, or another -------------------------------------------------------------


def test_a_tensor_and_its_transpose_move_once() -> None:
    a = noise(64, 32)
    off = offloads()
    found = kept_through(off, a, a.t(), a.view(-1), a.detach(), a.unsqueeze(0))
    assert all(
        facts(one) == facts(other)
        for one, other in zip(found, (a, a.t(), a.view(-1), a, a.unsqueeze(0)), strict=True)
    )
    report = off.report()
    assert report.moved_nbytes == {"disk": a.nbytes}
    assert report.shared_nbytes == 4 * a.nbytes


def test_views_of_another_dtype_or_offset_come_back_as_they_were() -> None:
    a = noise(64)
    off = offloads()
    kept = (
        a,
        a.view(torch.int32),
        a[:32],
        a[32:],
        a.view(torch.complex64),
        a.view(torch.complex64).conj(),
    )
    found = kept_through(off, *kept)
    assert [facts(one) for one in found] == [facts(one) for one in kept]


@every_to
def test_a_recycled_address_restores_no_other_tensor(to: str) -> None:
    x = torch.ones(1, requires_grad=True)
    losses, contents, addresses = [], [], set()
    off = offloads(to, delay=0)
    with off:
        for number in range(60):
            tensor = torch.full((5000,), float(number))
            addresses.add(tensor.data_ptr())
            losses.append(Keeps.apply(x, tensor))
            contents.append(number)
            del tensor
            off.flush()
    assert to == "cpu" or len(addresses) < 60, "no address was used again, so nothing was tried"
    for loss, number in zip(losses, contents, strict=True):
        loss.backward()
        assert bool((Keeps.seen[0] == number).all())
    Keeps.seen = None


def test_a_graph_that_is_dropped_frees_everything() -> None:
    off = offloads(max_bytes=1 << 20, keep_last=0)
    x = noise(100, 100).requires_grad_()
    with off:
        loss = chain(x)
    off.flush()
    middle = loss.grad_fn.next_functions[0][0]
    torch.autograd.grad(loss, x, retain_graph=True)
    blocks = list(off._engine._known.values())
    assert blocks and middle is not None
    del loss, middle
    gc.collect()
    assert not any(reference() for reference in blocks)
    off.flush()
    assert off._engine.chain.tiers[0].used == 0


def test_what_was_prefetched_is_freed_with_the_graph() -> None:
    x = noise(300, 300).requires_grad_()  # Small ones are not prefetched.
    off = offloads(max_bytes=8 << 20, keep_last=0)
    with off:
        loss = chain(x)
    off.flush()
    loss.grad_fn.next_functions[0][0]._saved_result  # noqa: B018  # Asks for the latest.
    off._engine._workers.finish()
    assert off._engine._ledger.nbytes[PREFETCHED] > 0
    fetched = [ref() for ref in off._engine._prefetch._prefetched.values()]
    received = [weakref.ref(one.block.prefetched.result()[0]) for one in fetched if one is not None]
    del loss, fetched
    gc.collect()
    assert received and not any(reference() for reference in received)
    off.report()
    assert off._engine._ledger.nbytes[PREFETCHED] == 0


# --- blocks -----------------------------------------------------------------------------------


@every_to
def test_backward_may_come_after_closing(to: str) -> None:
    x = noise(64, 64).requires_grad_()
    off = offloads(to, delay=50)
    with off:
        loss = chain(x)
    off.close()
    assert same(torch.autograd.grad(loss, x)[0], gradient_of_chain(x))
    with pytest.raises(OffloadError, match="closed"):
        off.__enter__()
    with pytest.raises(OffloadError, match="closed"):
        off.verify(lambda: chain(x), nn.Identity())


def test_closing_inside_its_block() -> None:
    x = noise(64, 64).requires_grad_()
    with offloads() as off:
        first = chain(x)
        off.close()
        with tt.suspend_offload():
            torch.func.grad(torch.sin)(torch.tensor(0.0))
        second = chain(x)
    assert same(torch.autograd.grad(first + second, x)[0], 2 * gradient_of_chain(x))
    assert off.report().kept_nbytes["after closing"] > 0


def test_the_same_offload_inside_itself() -> None:
    x = noise(64, 64).requires_grad_()
    off, other = offloads(min_bytes=1 << 20), offloads()
    with off, off, other, off:
        loss = chain(x)
        assert top() is not None
    assert same(torch.autograd.grad(loss, x)[0], gradient_of_chain(x))


def test_offloads_inside_each_other_share_the_work() -> None:
    """The outer offload is offered what the inner one keeps."""
    x, i = noise(64, 64).requires_grad_(), torch.randint(64, (64, 64))
    with offloads() as outer, tt.offload(tt.codecs.fp16(), min_bytes=0) as inner:
        loss = x.gather(0, i).sin().sum()
    outer.flush()
    assert inner.report().moved_nbytes == {"fp16": 2 * x.nbytes}
    assert outer.report().moved_nbytes == {"disk": i.nbytes}
    loss.backward()


class Counting:
    """A pair of saved-tensor hooks of the user."""

    def __init__(self) -> None:
        self.packed: list[Tensor] = []
        self.num_unpacked = 0

    def on(self) -> saved_tensors_hooks:
        return saved_tensors_hooks(self._pack, self._unpack)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.packed.append(tensor.detach())
        return tensor.detach()

    def _unpack(self, packed: Tensor) -> Tensor:
        self.num_unpacked += 1
        return packed


@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
def test_saved_tensor_hooks_of_the_user_around_an_offload(is_attached: bool) -> None:
    """They see what the offload leaves in place, and go on afterwards."""
    model, x = built("gpt")
    expected = plain_gradients("gpt", "once")
    theirs = Counting()
    with theirs.on():
        with offloads(model=model if is_attached else None) as off:
            loss = loss_of(model(x))
        before = len(theirs.packed)
        kept = sum(off.report().kept_nbytes.values())
        seen = sum(one.nbytes for one in theirs.packed)
        assert seen >= kept > 0 if is_attached else seen == kept > 0
        torch.ones(3, requires_grad=True).sin()
        assert len(theirs.packed) == before + 1
    assert same(gradients(model, loss), expected)
    assert theirs.num_unpacked == before


@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
def test_saved_tensor_hooks_of_the_user_inside_an_offload(is_attached: bool) -> None:
    theirs = Counting()

    def body(net: Any, x: Tensor) -> Tensor:
        x = net.a(x).sin()
        with theirs.on():
            x = x.exp()
        return net.a(x).cos()

    model = seeded(lambda: Net(body, a=nn.Linear(8, 8)))
    x = noise(4, 8)
    expected = gradients(model, model(x).sum())
    theirs.packed.clear()
    with offloads(model=model if is_attached else None) as off:
        loss = model(x).sum()
    assert len(theirs.packed) == 1
    assert off.report().packed_nbytes > 0
    assert same(gradients(model, loss), expected)


def test_hooks_that_outlive_our_block_survive() -> None:
    theirs = Counting()
    hooks = theirs.on()
    with offloads():
        hooks.__enter__()
    torch.ones(3, requires_grad=True).sin()
    assert len(theirs.packed) == 1
    hooks.__exit__()


class Stumbles(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))
        self.error: BaseException | None = error

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.first(x))
        if self.error is not None:
            raise self.error
        return x.sin()


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_exceptions_leave_nothing_on(error: BaseException) -> None:
    model, x = Stumbles(error), noise(2, 4)
    with pytest.raises(type(error)), offloads():
        model(x)
    assert top() is None
    with pytest.raises(type(error)), offloads(model=model):
        model(x)
    assert top() is None
    off = offloads(model=model)
    for _ in range(2):
        with pytest.raises(type(error)):
            model(x)
    model.error = None
    model(x).sum().backward()  # PyTorch runs no hooks after a KeyboardInterrupt; it is noticed now.
    assert top() is None
    assert {row.path for row in off.report().rows} >= {".", "first", "inner.0"}
    off.close()


def test_a_module_that_calls_itself() -> None:
    def body(net: Any, x: Tensor, depth: int = 3) -> Tensor:
        x = net.a(x).sin()
        return net(x, depth - 1) if depth else x

    model = seeded(lambda: Net(body, a=nn.Linear(4, 4)))
    x = noise(2, 4)
    expected = gradients(model, model(x).sum())
    with offloads(model=model) as off:
        assert same(gradients(model, model(x).sum()), expected)
    assert off.report().packed_nbytes == 8 * x.nbytes


@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
def test_suspended_for_torch_func(is_attached: bool) -> None:
    def body(net: Any, x: Tensor) -> Tensor:
        with tt.suspend_offload():
            extra = torch.func.grad(lambda y: net.a(y).sum())(x.detach())
        return net.a(x).sin() + extra

    model = seeded(lambda: Net(body, a=nn.Linear(4, 4)))
    x = noise(2, 4)
    expected = gradients(model, model(x).sum())
    theirs = Counting()
    with offloads(model=model if is_attached else None) as off:
        assert same(gradients(model, model(x).sum()), expected)
        with tt.suspend_offload(), tt.suspend_offload(), theirs.on():
            plain = model.a(x).sin()
    assert theirs.packed and plain is not None
    assert off.report().packed_nbytes == 2 * x.nbytes


def test_hooks_below_and_above_survive_being_suspended() -> None:
    below, above = Counting(), Counting()
    x = noise(3).requires_grad_()
    with below.on(), offloads(min_bytes=100) as off, above.on():
        with tt.suspend_offload():
            x.sin()
        x.cos()
        assert (len(below.packed), len(above.packed)) == (0, 2)
    assert off.report().seen_nbytes == 0


def test_an_attached_offload_keeps_out_of_torch_func() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    x = noise(2, 4)

    def of(params: Any) -> Tensor:
        return torch.func.functional_call(model, params, (x,)).sum()

    params = dict(model.named_parameters())
    expected = torch.func.grad(of)(params)
    with pytest.raises(OffloadError, match="hooks are forbidden"), offloads(model=model):
        assert same(list(torch.func.grad(of)(params).values()), list(expected.values()))


def test_suspending_in_one_thread_leaves_the_others_alone() -> None:
    model, x = nn.Linear(4, 4), noise(2, 4)
    off = offloads(model=model)
    with tt.suspend_offload(), ThreadPoolExecutor(1) as pool:
        pool.submit(model, x).result()
    off.close()
    assert off.report().packed_nbytes == x.nbytes


# --- budgets ----------------------------------------------------------------------------------


@every_to
@pytest.mark.parametrize("max_bytes", [0, 100_000, 250_000])
@pytest.mark.parametrize("delay", [0, 5])
def test_a_budget_is_kept(to: str, max_bytes: int, delay: int) -> None:
    x = noise(100, 100).requires_grad_()
    expected = gradient_of_chain(x, 20)
    off = offloads(to, max_bytes=max_bytes, delay=delay)
    for _ in range(3):
        with off:
            loss = chain(x, 20)
        assert same(torch.autograd.grad(loss, x)[0], expected)
    report = off.report()
    assert report.peak_nbytes <= max_bytes + x.nbytes
    assert report.plain_peak_nbytes == 21 * x.nbytes  # Each result, and x
    assert "peak" in report.line()


def test_a_budget_is_kept_seen_from_outside() -> None:
    """Few enough of all tensors that were saved are alive."""
    x = noise(100, 100).requires_grad_()
    max_bytes = 5 * x.nbytes
    off = offloads(max_bytes=max_bytes)
    most = 0
    storages: dict[int, Any] = {}
    with off:
        y = x
        for _ in range(40):
            y = y.sin()
            storage = y.untyped_storage()
            storages[len(storages)] = torch.multiprocessing.reductions.StorageWeakRef(storage)
            del storage
            alive = sum(not one.expired() for one in storages.values())
            most = max(most, alive)
    assert 1 < most <= 5 + 2  # One on top, and the latest result, which nothing has saved yet.
    y.sum().backward()


def test_the_latest_are_kept() -> None:
    x = noise(300, 300).requires_grad_()
    off = offloads(keep_last=3 * x.nbytes)
    with off:
        loss = chain(x, 5)
    off.flush()
    blocks = [ref().block for ref in off._engine._known.values()]
    states = [one.state for one in sorted(blocks, key=lambda block: block.number)]
    assert states == [EVICTED] * (len(states) - 3) + [RESIDENT] * 3
    loss.backward()


@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_a_chain_fills_the_first_and_goes_on(capacity: int, monkeypatch: Any) -> None:
    x = noise(64, 64).requires_grad_()  # Four pages of the spill file.
    with use_streams(FakeStreams()):
        disk = tt.offload([("disk", capacity * x.nbytes), ("cpu", 2 * x.nbytes)], min_bytes=0)
    with disk:
        loss = chain(x, 8)
    disk.flush()
    moved = disk.report().moved_nbytes
    assert moved.get("disk", 0) == capacity * x.nbytes
    assert moved["cpu"] == 2 * x.nbytes
    assert [tier.used for tier in disk._engine.chain.tiers] == [capacity * x.nbytes, 2 * x.nbytes]
    assert same(torch.autograd.grad(loss, x)[0], gradient_of_chain(x, 8))
    del loss
    gc.collect()
    disk.flush()
    assert [tier.used for tier in disk._engine.chain.tiers] == [0, 0]


def test_when_it_is_full_it_raises() -> None:
    x = noise(100, 100).requires_grad_()
    with (
        pytest.raises(OffloadError, match="max_bytes="),
        offloads("cpu", delay=1000, max_bytes=2 * x.nbytes, on_full="raise"),
    ):
        chain(x)
    assert top() is None


def test_when_it_is_full_it_keeps() -> None:
    x = noise(100, 100).requires_grad_()
    with offloads("cpu", delay=1000, max_bytes=2 * x.nbytes, on_full="keep") as off:
        loss = chain(x)
    assert off.report().peak_nbytes > 3 * x.nbytes
    assert same(torch.autograd.grad(loss, x)[0], gradient_of_chain(x))


def test_when_it_is_full_it_waits() -> None:
    x = noise(100, 100).requires_grad_()
    with offloads("cpu", delay=1000, max_bytes=2 * x.nbytes, on_full="wait") as off:
        loss = chain(x)
    assert off.report().peak_nbytes <= 3 * x.nbytes
    assert same(torch.autograd.grad(loss, x)[0], gradient_of_chain(x))


# --- verify -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_attached", [False, True], ids=["block", "attached"])
def test_verify_finds_no_difference(is_attached: bool) -> None:
    model, x = built("resnet18")
    before = bits.state(model)
    off = offloads(model=model if is_attached else None)
    errors = off.verify(lambda: loss_of(model(x)), model)
    with off if not is_attached else ExitStack():
        assert off.verify(lambda: loss_of(model(x)), model) == errors
    off.close()
    assert bits.differences(before, bits.state(model)) == []
    assert errors.worst == 0.0 and set(errors) == {name for name, _ in model.named_parameters()}
    assert off.report().packed_nbytes > 0
    assert "62 equal to the bit" in repr(errors)


def test_verify_says_by_how_much() -> None:
    model, x = built("gpt")
    off = tt.offload(tt.codecs.int8(), model=model, min_bytes=0)
    errors = off.verify(lambda: loss_of(model(x)))
    off.close()
    expected = gradients(model, loss_of(model(x)))
    with tt.offload(tt.codecs.int8(), model=model, min_bytes=0):
        found = gradients(model, loss_of(model(x)))
    for (name, _), a, b in zip(model.named_parameters(), expected, found, strict=True):
        assert a is not None and b is not None
        a, b = a.double(), b.double()
        norm = float(a.norm())
        assert errors[name] == pytest.approx(float((a - b).norm()) / norm if norm else 0.0)
    assert 0 < errors.worst < 0.2


def test_verify_at_the_start() -> None:
    model, x = built("lstm")
    offloads(model=model, verify=lambda: loss_of(model(x))).close()
    calls = iter(range(10))
    before = bits.hooks(model)
    with pytest.raises(OffloadError, match="the same each time"):
        offloads(model=model, verify=lambda: loss_of(model(x)) * (1 + next(calls)))
    assert bits.hooks(model) == before

    def raises() -> Tensor:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        offloads(model=model, verify=raises)
    assert bits.hooks(model) == before
    with pytest.raises(InputError, match="needs a model"):
        offloads(verify=raises)


def test_verify_of_odd_gradients() -> None:
    """NaN is equal to NaN; sparse and complex ones can be compared."""
    linear, x = nn.Linear(4, 4), torch.full((2, 4), math.nan)
    offloads(model=linear, verify=lambda: linear(x).sin().sum()).close()
    table = nn.Embedding(9, 4, sparse=True)
    offloads(model=table, verify=lambda: table(torch.tensor([1, 1, 2])).sin().sum()).close()
    turned = nn.Linear(4, 4, dtype=torch.complex64)
    z = noise(2, 4, dtype=torch.complex64)
    offloads(model=turned, verify=lambda: turned(z).abs().sum()).close()


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"to": "gpu"}, "to holds 'gpu'"),
        ({"to": []}, "empty list"),
        ({"to": 3}, "to holds 3"),
        ({"to": [("disk", -1)]}, "pair"),
        ({"to": [("disk", 1, 2)]}, "pair"),
        ({"min_bytes": -1}, "min_bytes is -1"),
        ({"min_bytes": None}, "min_bytes is None"),
        ({"max_bytes": -1}, "max_bytes is -1"),
        ({"max_bytes": 1e9}, "max_bytes is 1000000000.0"),
        ({"keep_last": -5}, "keep_last is -5"),
        ({"on_full": "panic"}, "on_full is 'panic'"),
        ({"only": "inputs"}, "only is 'inputs'"),
        ({"model": "resnet"}, "nn.Module"),
        ({"where": "blocks.*"}, "pass model="),
    ],
)
def test_bad_input(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tt.offload(**{"to": "disk", **kwargs})


def test_a_pattern_that_fits_nothing() -> None:
    model = built("gpt")[0]
    before = bits.hooks(model)
    with pytest.raises(SiteError, match="blokcs"):
        tt.offload("disk", model=model, where="blokcs.*")
    assert bits.hooks(model) == before


def test_only_the_chosen_modules_are_offloaded() -> None:
    model, x = built("gpt")
    with offloads(model=model, where="blocks.1.**") as off:
        loss_of(model(x)).backward()
    assert {row.path.rpartition(".")[0] or row.path for row in off.report().rows} <= {
        "blocks.1", "blocks", "blocks.1.attn", "blocks.1.mlp"
    }  # fmt: skip
    assert off.report().packed_nbytes > 0


def test_the_report() -> None:
    model, x = built("gpt")
    with offloads(model=model) as off:
        loss_of(model(x)).backward()
    off.flush()
    report = off.report()
    assert report.seen_nbytes == report.packed_nbytes + report.shared_nbytes + sum(
        report.kept_nbytes.values()
    )
    assert report.as_dict()["moved_nbytes"] == report.moved_nbytes
    assert "blocks" in repr(report)
    assert repr(off).startswith("<tt.offload of 20 modules of TinyGPT, closed: ")
