"""Backward finds what it would have found without offloading."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import pytest
import torch
from bits import content
from offloads import offloads
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torchtap as tt

FORMS = {
    "block": lambda model, **options: offloads(**options),
    "attached": lambda model, **options: offloads(model=model, **options),
}
EXACT: dict[str, dict[str, Any]] = {
    "disk": {"to": "disk"},
    "host": {"to": "cpu"},
    "budget": {"to": "disk", "max_bytes": 20_000},
    "kept": {"to": "disk", "keep_last": 1 << 20},
}
every_form = pytest.mark.parametrize("form", FORMS)


# --- what a kernel fills after it was saved ---------------------------------------------------


def randomized(numel: int = 64, *, inplace: bool = False) -> nn.Sequential:
    """Autograd saves the noise of RReLU before the kernel draws it."""
    torch.manual_seed(0)
    rrelu = nn.RReLU(0.1, 0.9, inplace=inplace)
    return nn.Sequential(nn.Linear(numel, numel), rrelu, nn.Linear(numel, numel), rrelu)


def gradients_of(model: nn.Module, x: Tensor, around: AbstractContextManager[Any]) -> list[Tensor]:
    torch.manual_seed(1)
    with around:
        loss = model(x).square().sum()
    return list(torch.autograd.grad(loss, [x, *model.parameters()]))


@every_form
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("numel", [8, 64, 300])
def test_what_is_filled_after_it_was_saved_comes_back_filled(
    form: str, name: str, inplace: bool, numel: int
) -> None:
    model, x = randomized(numel, inplace=inplace), torch.randn(numel, numel, requires_grad=True)
    right = gradients_of(model, x, tt.suspend_offload())
    off = FORMS[form](model, **EXACT[name])
    assert all(map(torch.equal, gradients_of(model, x, off), right))
    assert off.report().packed_nbytes >= 2 * x.nbytes


@every_form
def test_what_is_filled_late_comes_back_also_where_it_is_the_last_thing_saved(form: str) -> None:
    model, x = nn.RReLU(0.1, 0.9), torch.randn(64, 64, requires_grad=True)
    torch.manual_seed(0)
    right = torch.autograd.grad(model(x).sum(), x)[0]
    for inside in (True, False):
        torch.manual_seed(0)
        with FORMS[form](model, to="disk") as off:
            loss = model(x).sum()
            found = torch.autograd.grad(loss, x)[0] if inside else None
        found = torch.autograd.grad(loss, x)[0] if found is None else found
        assert torch.equal(found, right)
        if form == "attached" or not inside:
            assert off.report().moved_nbytes["disk"] > 0


@every_form
def test_a_smaller_form_of_what_is_filled_late_is_near(form: str) -> None:
    model, x = randomized(), torch.randn(64, 64, requires_grad=True)
    right = gradients_of(model, x, tt.suspend_offload())
    for codec in (tt.codecs.bf16(), tt.codecs.fp16(), tt.codecs.int8(block=64)):
        found = gradients_of(model, x, FORMS[form](model, to=codec))
        for a, b in zip(found, right, strict=True):
            assert float((a - b).norm() / b.norm()) < 0.05


def test_verify_proves_what_is_filled_late() -> None:
    model, x = randomized(), torch.randn(64, 64)
    tt.offload("disk", model=model, min_bytes=0, verify=lambda: model(x).sum()).close()
    block = tt.offload("disk", min_bytes=0)
    assert block.verify(lambda: model(x).sum(), model).worst == 0.0


@every_form
def test_checkpoints_of_what_is_filled_late_are_right(form: str) -> None:
    model = randomized()

    class Saving(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            # Not RReLU last: a checkpoint stops before it has filled the last that it needs.
            return model[3:](checkpoint(model[:3], x, use_reentrant=False))

    outer, x = Saving(), torch.randn(64, 64, requires_grad=True)

    def run(around: AbstractContextManager[Any]) -> list[Tensor]:
        torch.manual_seed(1)
        with around:
            loss = outer(x).square().sum()
        return list(torch.autograd.grad(loss, [x, *model.parameters()]))

    right = run(tt.suspend_offload())
    for only in (None, "checkpoint_inputs"):
        found = run(FORMS[form](outer, to="disk", only=only))
        assert all(map(torch.equal, found, right))


def test_a_thread_does_not_send_away_what_another_one_is_filling() -> None:
    """Thread by thread, an operation ends where the same thread makes another node."""
    x = torch.randn(256, 256, requires_grad=True)
    right: list[Tensor] = []
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        noise = torch.empty_like(x)
        out = torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.9, True, generator)
        right += torch.autograd.grad(out.sum(), x)
    found: dict[int, Tensor] = {}
    model = nn.Module()

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        noise = torch.empty_like(x)
        out = model(lambda: torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.9, True, generator))
        found[seed] = torch.autograd.grad(out.sum(), x)[0]

    model.forward = lambda call: call()
    with tt.offload("disk", model=model, min_bytes=0):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(torch.equal(found[seed], right[seed]) for seed in range(8))


class Late:
    """Hooks that compare each saved tensor with its later content, where the version is equal."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor, int, int]] = []
        self._complete: list[tuple[Tensor, Tensor, int]] = []
        self.num_late = self.num_later_still = 0

    def __enter__(self) -> Late:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held)
        self._hooks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.__exit__()
        self._end(-1)
        for alias, copy, version in self._complete:
            if alias._version == version:
                self.num_later_still += content(alias) != content(copy)
        self._complete.clear()

    def pack(self, tensor: Tensor) -> Tensor:
        alias = tensor.detach()
        number = torch._C._autograd._get_sequence_nr()
        self._end(number)
        if type(alias) is Tensor and alias.layout is torch.strided and not alias.is_nested:
            self._held.append((alias, alias.clone(), alias._version, number))
        return alias

    def _end(self, number: int) -> None:
        """The thread makes another node: what was saved before is complete."""
        while self._held and self._held[0][3] != number:
            alias, copy, version, _ = self._held.pop(0)
            if alias._version == version:
                self.num_late += content(alias) != content(copy)
                self._complete.append((alias, alias.clone(), version))


_MOST_SAMPLES = 10


def _runs_of(op: Any) -> Iterator[Callable[[], Any]]:
    for dtype in {torch.float32, torch.complex64} & op.supported_backward_dtypes("cpu"):
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=True), _MOST_SAMPLES):
            yield lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs)  # type: ignore[misc]
            if op.inplace_variant is not None and isinstance(sample.input, Tensor):
                yield lambda sample=sample: op.inplace_variant(  # type: ignore[misc]
                    sample.input.clone(), *sample.args, **sample.kwargs
                )


@pytest.mark.slow
def test_every_operator_has_filled_what_it_saves_when_the_thread_makes_another_node() -> None:
    """The assumption by which saved tensors leave, over all operators of PyTorch's own tests.

    A new PyTorch may bring others that fill late; this says so if one fills later than that.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    fill_late, later_still, num_runs = set(), set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in op_db:
            if not op.supports_autograd:
                continue
            for run in _runs_of(op):
                late = Late()
                try:
                    with late:
                        outs = [one for one in tree_leaves(run()) if isinstance(one, Tensor)]
                        outs = [one for one in outs if one.requires_grad and one.numel()]
                        if outs and outs[0].layout is torch.strided:
                            outs[0].abs().sum().backward(create_graph=True)
                except (RuntimeError, ValueError, NotImplementedError, IndexError, TypeError):
                    continue  # A sample that this variant of the operator refuses.
                num_runs += 1
                if late.num_late:
                    fill_late.add(op.name)
                if late.num_later_still:
                    later_still.add(op.name)
    assert num_runs > 3000
    assert "nn.functional.rrelu" in fill_late
    assert later_still == set()


# --- what is written past autograd's count ----------------------------------------------------


@every_form
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("numel", [4, 100_000])
def test_a_write_through_data_between_two_forwards_is_seen(
    form: str, name: str, numel: int
) -> None:
    """The first graph still lives, and its version is that of the second."""

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * x).exp().sum()

    model, x = Square(), torch.ones(numel, requires_grad=True)
    with FORMS[form](model, **EXACT[name]) as off:
        first = model(x)
        off.flush()
        x.data.mul_(0.5)
        second = model(x)
        off.flush()
    found = torch.autograd.grad(second, x)[0]
    y = torch.full((numel,), 0.5, requires_grad=True)
    assert torch.equal(found, torch.autograd.grad(model(y), y)[0])
    assert first.requires_grad


def test_memory_of_numpy_that_is_filled_again_is_seen() -> None:
    x = torch.ones(100, requires_grad=True)
    held = x.detach().numpy()
    with tt.offload("disk", min_bytes=0) as off:
        first = x.sin() * x
        off.flush()
        held[:] = 2.0
        second = x.sin() * x
    found = torch.autograd.grad(second.sum(), x)[0]
    assert torch.allclose(found, x.detach().cos() * 2 + x.detach().sin())
    assert first.requires_grad


def test_what_several_operations_save_in_a_row_is_moved_once() -> None:
    x = torch.randn(100, 100)
    weights = [torch.randn(100, 100, requires_grad=True) for _ in range(3)]
    normal = torch.randn(100, 100, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        outs = [x @ weight for weight in weights]
        square = normal.pow(2)  # As in RMSNorm; what lies between saves nothing that is moved.
        scaled = normal * torch.rsqrt(square.mean(-1, keepdim=True) + 1e-6).clamp(max=1e9)
    assert off.report().shared_nbytes >= 2 * x.nbytes
    assert outs and scaled.requires_grad


def cubed_gradient(x: Tensor) -> Tensor:
    """Differentiates inside, so that graphs of several points are alive."""
    return torch.autograd.grad((x * x * x).sum(), x, create_graph=True)[0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gradient": cubed_gradient,
    "softmax": lambda x: torch.softmax(x, -1) * x.exp(),
    "norm": lambda x: nn.functional.layer_norm(x, x.shape[-1:]).tanh(),
    "pair": lambda x: (x.sin(), x.cos() * x),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


@every_form
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck_holds_while_offloading(form: str, name: str, fast_mode: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    model = Calls(FUNCTIONS[name])
    with FORMS[form](model, to="disk") as off:
        assert gradcheck(model, (x,), fast_mode=fast_mode)
        assert gradgradcheck(model, (x,), fast_mode=fast_mode)
    assert off.report().packed_nbytes > 0


@every_form
def test_gradcheck_of_modules_holds_while_offloading(form: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6, dtype=torch.double, requires_grad=True)
    for model in (
        nn.Conv2d(4, 2, 3),
        nn.BatchNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    ):
        model = model.double()
        params = list(model.parameters())
        with FORMS[form](model, to="disk"):
            assert gradcheck(lambda x, *_, m=model: m(x), (x, *params))
            assert gradgradcheck(lambda x, *_, m=model: m(x), (x, *params), fast_mode=True)
