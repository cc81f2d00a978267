"""``tt.offload`` says what was asked and did not happen: at once, at the end, or in a note."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import seeded
from random_numbers import normal
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchtap as tt
from torchtap.core.errors import InputError, OffloadError
from torchtap.testing import Net

MIB = 1 << 20
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="cpu has something to do")


def two() -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(256, 256), nn.Tanh()))


def data() -> Tensor:
    return normal(256, 256)


# --- at once ----------------------------------------------------------------------------------


@no_gpu
@pytest.mark.parametrize("to", ["cpu", ["cpu"], [("cpu", MIB)]])
def test_from_cpu_to_cpu_nothing_is_moved_and_the_report_says_so(to: Any) -> None:
    model = two()
    with tt.offload(to, model=model) as off:
        runs(model, data())
    report = off.report()
    assert not report.moved_nbytes and report.kept_nbytes["in host memory already"] > 0
    assert "from the CPU, to='disk' and codecs do" in repr(report)
    with pytest.raises(OffloadError, match="nothing"):  # A proof of nothing is none.
        tt.offload(to, model=model, verify=lambda: model(data()).sum())


class WithoutAccepts:
    name = "own"

    def encode(self, elements: Tensor) -> tuple[Tensor, ...]:
        return (elements,)

    def decode(self, parts: tuple[Tensor, ...], length: int, dtype: torch.dtype) -> Tensor:
        return parts[0]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"to": tt.codecs.bits(), "dir": "/tmp"}, "dir is given, and only 'disk' uses it"),
        ({"to": tt.codecs.bits(), "allow_tmpfs": True}, "allow_tmpfs is given"),
        ({"to": ("disk", 0)}, "to holds 0"),
        ({"to": [("disk", 0)]}, "no tensor has room"),
        ({"to": [("disk", 65535)]}, "no tensor has room"),
        ({"to": [("disk", True)]}, "pair"),
        ({"to": [(tt.codecs.bf16(), 10)], "min_bytes": 11}, "bf16 10"),
        ({"keep_last": 2, "max_bytes": 1}, "keep_last is 2 and max_bytes 1"),
        ({"min_bytes": True}, "min_bytes is True"),
        ({"missing": "no"}, "missing is 'no'"),
        ({"to": WithoutAccepts()}, "a codec, WithoutAccepts, without accepts;"),
        ({"to": tt.codecs.bf16}, "to holds <function bf16"),
        ({"model": two(), "where": "0:grad_output"}, "'0:grad_output', with a port.*Write '0'"),
        ({"model": two(), "where": ["*", "!0:output"]}, "Write '!0'"),
        ({"model": two(), "where": "*@Linear:saved[mat1]"}, "@Linear'"),
    ],
)
def test_what_could_do_nothing_is_refused(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        tt.offload(**{"to": "disk", **kwargs})


# --- at the end -------------------------------------------------------------------------------


def runs(model: nn.Module, x: Tensor) -> None:
    model(x).sum().backward()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"to": tt.codecs.bits()}, "all that was saved stayed .* no tier takes it"),
        ({"only": "checkpoint_inputs"}, "524,288 bytes not the input of a checkpoint.*leave out"),
    ],
)
def test_nothing_of_that_kind_was_saved(kwargs: dict[str, Any], words: str) -> None:
    model = two()
    with (
        pytest.raises(OffloadError, match=words),
        tt.offload(**{"to": "disk", **kwargs}, model=model),
    ):
        runs(model, data())
    with tt.offload(**{"to": "disk", **kwargs}, model=model, missing="ignore") as off:
        runs(model, data())
    assert "nothing was moved" in repr(off.report())


def test_a_module_that_was_never_called_is_noted() -> None:
    model = two()
    off = tt.offload("disk", model=model, where="1")
    off.close()
    (note,) = off.report().notes
    assert note.startswith("the module that it was attached to was never called")
    with tt.offload("disk", model=model) as off:
        pass
    assert off.report().notes[0].startswith("none of the 3 modules that it was attached to")


def test_an_exception_of_the_users_is_the_one_to_see() -> None:
    with pytest.raises(ArithmeticError), tt.offload("disk", model=two()):
        raise ArithmeticError


def test_a_block_that_was_never_entered() -> None:
    off = tt.offload("disk")
    runs(two(), data())
    assert "write `with off:`" in repr(off.report()) and "1 note" in off.report().line()
    off.close()


def test_where_hooks_are_forbidden() -> None:
    model = two()
    off = tt.offload("disk", model=model)
    with disable_saved_tensors_hooks("no"):
        runs(model, data())
    with pytest.raises(OffloadError, match="ran where saved-tensor hooks are forbidden"):
        off.close()


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = two()

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = checkpoint(self.inside, x, use_reentrant=True)
        return kept.sin()


def test_inside_a_reentrant_checkpoint_nothing_is_gained() -> None:
    model, x = Reentrant(), data().requires_grad_()
    off = tt.offload("disk", model=model, where="inside.*")
    runs(model, x)
    assert any("as what a reentrant checkpoint" in one for one in off.report().notes)
    off.close()
    with tt.offload("disk", model=model) as around:
        runs(model, x)
    assert around.report().notes == ()  # Its input, and that of sin.
    assert around.report().packed_nbytes == 2 * 256 * 256 * 4


def test_a_generator_runs_after_its_module() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = two()

        def forward(self, x: Tensor) -> Any:
            for _ in range(2):
                x = self.a(x)
                yield x

    model = Steps()
    off = tt.offload("disk", model=model, where=".")
    sum((one.sum() for one in model(data())), torch.zeros(())).backward()
    with pytest.raises(OffloadError, match=r"\. returned a generator"):
        off.close()
    with tt.offload("disk", model=model) as off:  # The modules in it are attached as well.
        sum((one.sum() for one in model(data())), torch.zeros(())).backward()
    assert off.report().packed_nbytes > 0


# --- notes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"min_bytes": 1 << 40}, "smaller min_bytes="),
        ({"to": [("disk", 65536)]}, "give more"),
        ({"keep_last": 4 * MIB}, "nothing had to leave"),
    ],
)
def test_what_is_a_matter_of_size_is_a_note(kwargs: dict[str, Any], words: str) -> None:
    model = two()
    with tt.offload(**{"to": "disk", **kwargs}, model=model) as off:
        runs(model, data())
    (note,) = off.report().notes
    assert words in note and note in " ".join(repr(off.report()).split())
    assert off.report().line().endswith("; 1 note in the report")


def test_without_gradients_there_is_nothing_to_move() -> None:
    model = two()
    with tt.offload("disk", model=model) as off, torch.no_grad():
        model(data())
    assert repr(off.report()).startswith("Nothing was saved for backward")


# --- buffers ----------------------------------------------------------------------------------


class Masked(nn.Module):
    """A mask that is made again, and a buffer of nn.Buffer."""

    def __init__(self, *, anew: bool) -> None:
        super().__init__()
        self.register_buffer("mask", data() > 0)
        self.table = nn.Buffer(data())
        self.anew = anew

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.table).masked_fill(self.mask, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("anew", [False, True])
def test_buffers_stay_and_are_counted_apart(anew: bool) -> None:
    model = nn.Sequential(Masked(anew=anew), nn.Tanh())
    x = data().requires_grad_()
    with tt.offload("disk", model=model, min_bytes=1024) as off:
        if anew:
            model[0].mask, model[0].table = model[0].mask.clone(), model[0].table.clone()
        runs(model, x)
    report = off.report()
    own = sum(buffer.nbytes for buffer in model.buffers())
    assert report.kept_nbytes == {"buffer": own}
    assert report.plain_peak_nbytes == report.packed_nbytes == 256 * 256 * 4  # Of tanh.
    assert tt.saved_report(model, x).buffer_nbytes == own


@pytest.mark.usefixtures("fresh_compiler")
def test_the_advice_knows_buffers_and_compiled_models() -> None:
    model, x = nn.Sequential(Masked(anew=False), nn.Tanh()), data().requires_grad_()
    advice = tt.advise_offload(model, lambda: runs(model, x), MIB)
    assert advice.nbytes == 256 * 256 * 4
    torch._dynamo.reset()  # Other tests compiled nn.Sequential.forward up to the limit.
    plain = two()
    compiled, y = torch.compile(plain, backend="aot_eager"), data()
    runs(compiled, y)  # type: ignore[arg-type]
    found = tt.advise_offload(compiled, lambda: runs(compiled, y), 4 * MIB)  # type: ignore[arg-type]
    assert [row.path for row in found.rows] == ["."] and found.nbytes == 2 * 256 * 256 * 4


# --- verify -----------------------------------------------------------------------------------


def test_verify_refuses_what_a_codec_makes_infinite() -> None:
    model = nn.Linear(256, 256)
    x = torch.full((512, 256), 7e4)
    with pytest.raises(OffloadError, match=r"With fp16 .* weight are infinite .*tt.codecs.bf16"):
        tt.offload(tt.codecs.fp16(), model=model, verify=lambda: model(x).sum())
    with tt.offload(tt.codecs.fp16(), model=model) as off:
        errors = off.verify(lambda: model(x).sum())
    assert errors.spoiled == ("weight",) and math.isinf(errors["weight"])
    tt.offload(tt.codecs.bf16(), model=model, verify=lambda: model(x).sum()).close()


def test_a_gradient_that_is_zero_without_a_codec_is_no_reason_to_refuse() -> None:
    model, x = nn.Linear(64, 64, bias=False), torch.randn(256, 64)
    x[128:] = -x[:128] * (1 + 2**-12)  # Sums that nearly cancel; rounded, they cancel.
    options: dict[str, Any] = {"model": model, "min_bytes": 0}
    tt.offload(tt.codecs.bf16(), verify=lambda: model(x).sum(), **options).close()


def test_verify_where_nothing_is_moved_proves_nothing() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    with pytest.raises(OffloadError, match=r"proves nothing: nothing was offloaded.*min_bytes"):
        tt.offload("disk", model=model, verify=lambda: model(x).sum())
    with tt.offload("disk", model=model) as off:
        assert "this proves nothing" in repr(off.verify(lambda: model(x).sum()))


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda out: None, "NoneType"),
        (lambda out: out.sum().item(), "float"),
        (lambda out: out, r"float32\[256, 256\]"),
        (lambda out: out.sum().detach(), r"float32\[\] without a graph"),
    ],
)
def test_a_loss_that_is_none(loss: Callable[[Tensor], Any], found: str) -> None:
    model, x = two(), data()
    with pytest.raises(InputError, match=f"returned {found}; expected one number"):
        tt.offload("disk", model=model, verify=lambda: loss(model(x)))


def test_verify_needs_something_trainable() -> None:
    model = two().requires_grad_(False)
    with pytest.raises(InputError, match="No parameter of Sequential requires a gradient"):
        tt.offload("disk", model=model, verify=lambda: model(data()).sum())


# --- what is printed --------------------------------------------------------------------------


def test_rows_stand_in_the_order_of_the_modules() -> None:
    block = lambda: Net(lambda m, x: m.n1(x).sin(), n1=nn.Linear(256, 256))  # noqa: E731
    model = nn.Sequential(block(), block())
    with tt.offload("disk", model=model) as off:
        runs(model, data())
    assert [row.path for row in off.report().rows] == ["0", "0.n1", "1", "1.n1"]
    text = repr(off.report())
    assert text.splitlines()[2].startswith("  n1 ")
    assert "0 B" not in text and repr(off).startswith("<tt.offload of 5 modules of Sequential")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_script_says_what_to_do() -> None:
    model = two()
    off = tt.offload("disk", model=model, missing="ignore")
    with pytest.raises(AttributeError, match="cannot compile the hooks of torchtap: close"):
        torch.jit.script(model)
    off.close()


def test_suspending_does_not_remove_hooks_of_the_user() -> None:
    """The example of the page."""
    with (
        tt.offload("disk"),
        saved_tensors_hooks(lambda t: t, lambda t: t),
        tt.suspend_offload(),
        pytest.raises(RuntimeError, match="saved tensor hooks"),
    ):
        torch.func.grad(torch.sin)(torch.tensor(0.0))


def test_that_backward_was_there_before_anything_could_leave_is_a_note() -> None:
    x = torch.randn(100, 100, requires_grad=True)
    with tt.offload("disk", min_bytes=0) as off:
        x.exp().sum().backward()
    assert off.report().packed_nbytes > 0 and not off.report().moved_nbytes
    assert "end the block before backward" in off.report().notes[0]
    with off:
        loss = x.exp().sum()
        assert not off.report().moved_nbytes  # The operation may still be running.
    loss.backward()
    assert not off.report().notes


def test_a_budget_that_holds_no_tensor_is_said_once_an_attached_offload_is_closed() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
    off = tt.offload([("disk", 4096)], model=model, min_bytes=0, missing="ignore")
    model(torch.ones(64, 64)).sum().backward()
    assert not any("give more" in note for note in off.report().notes)  # The next may be smaller.
    off.close()
    assert any("(4,096 bytes), give more" in note for note in off.report().notes)
