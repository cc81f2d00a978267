"""``tt.advise_offload`` measures and recommends: against bytes counted by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from models import TinyGPT, resnet18
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchtap as tt

MIB = 1 << 20


class Alive(TorchDispatchMode):
    """Counts the bytes of all memory that operations made and that still lives."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[Any, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    @property
    def nbytes(self) -> Any:
        return sum(nbytes for storage, nbytes in self._made.values() if not storage.expired())


def layers(num: int = 4, width: int = 256) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(*(one for _ in range(num) for one in (nn.Linear(width, width), nn.Tanh())))


def stepper(model: nn.Module, x: Tensor) -> Any:
    return lambda: model(x).square().mean().backward()


def alive_after_forward(model: nn.Module, x: Tensor) -> Any:
    with Alive() as alive:
        out = model(x)
    return out, alive


def test_bytes_are_those_that_are_counted_by_hand() -> None:
    model, x = layers(2), torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 100 * MIB)
    each = 512 * 256 * 4  # The input of the first Linear, and the results of both Tanh.
    found = [(row.path, row.type, row.nbytes, row.movable_nbytes) for row in advice.rows]
    assert found == [
        ("0", "Linear", each, each),
        ("1", "Tanh", each, each),
        ("2", "Linear", 0, 0),  # Saves what the Tanh saved before.
        ("3", "Tanh", each, each),
    ]
    assert advice.nbytes == 3 * each


def test_small_tensors_stay_and_are_counted() -> None:
    model, x = layers(2), torch.ones(512, 256)
    model.append(nn.Linear(256, 4)).append(nn.Tanh())
    advice = tt.advise_offload(model, stepper(model, x), 100 * MIB)
    assert (advice.rows[-1].nbytes, advice.rows[-1].movable_nbytes) == (512 * 4 * 4, 0)
    all_of_it = tt.advise_offload(model, stepper(model, x), 100 * MIB, min_bytes=0)
    assert all_of_it.rows[-1].movable_nbytes == 512 * 4 * 4


def test_where_all_fits_nothing_is_recommended() -> None:
    model, x = layers(), torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 5 * 512 * 256 * 4)
    assert advice.where == ()
    assert advice.kept_nbytes == advice.nbytes == 5 * 512 * 256 * 4
    assert advice.wait_seconds == 0
    assert "nothing to offload" in repr(advice)


def test_the_oldest_are_offloaded_with_all_that_save_the_same() -> None:
    model, x = layers(), torch.ones(512, 256)
    each = 512 * 256 * 4
    # Of five, three leave, and the places of two of them are for what is on its way.
    advice = tt.advise_offload(model, stepper(model, x), 5 * each)
    assert advice.where == ()
    advice = tt.advise_offload(model, stepper(model, x), 5 * each - 1)
    assert advice.kept_nbytes == 2 * each
    assert advice.where == ("0", "1", "2", "3", "4")
    assert [row.is_moved for row in advice.rows] == [True] * 5 + [False] * 3


@pytest.mark.parametrize("budget", [6 * MIB, 8 * MIB, 12 * MIB])
def test_the_advice_followed_fits_the_budget(budget: Any) -> None:
    torch.manual_seed(0)
    model, x = resnet18(num_classes=10), torch.randn(8, 3, 64, 64)
    step = stepper(model, x)
    advice = tt.advise_offload(model, step, budget)
    assert 0 < advice.kept_nbytes < advice.nbytes
    with tt.offload("disk", model=model, where=advice.where, max_bytes=advice.max_bytes) as off:
        for _ in range(2):
            step()
        peak = off.report().peak_nbytes
    assert advice.kept_nbytes + peak <= budget


CASES = {
    "resnet18": (lambda: resnet18(num_classes=10), (8, 3, 64, 64)),
    "layers": (lambda: layers(8), (1024, 256)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_advice_followed_fits_the_budget_as_counted_without_torchtap(name: Any) -> None:
    make, shape = CASES[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    plain, before = alive_after_forward(model, x)
    advice = tt.advise_offload(model, stepper(model, x), before.nbytes // 2)
    with tt.offload("disk", model=model, where=advice.where, max_bytes=advice.max_bytes) as off:
        out, alive = alive_after_forward(model, x)
        off.flush()
    assert torch.equal(plain, out)
    assert alive.nbytes <= advice.budget + out.nbytes < before.nbytes


def test_the_count_sees_what_is_not_offloaded() -> None:
    model, x = layers(8), torch.randn(1024, 256)
    out, alive = alive_after_forward(model, x)
    assert alive.nbytes >= 8 * 1024 * 256 * 4
    del out


def test_what_a_block_saves_itself_takes_the_modules_in_it_along() -> None:
    torch.manual_seed(0)
    model = TinyGPT(layers=2)
    tokens = torch.randint(0, 65, (16, 64))
    step = lambda: model(tokens).square().mean().backward()  # noqa: E731
    plain = tt.advise_offload(model, step, 1 << 40)
    advice = tt.advise_offload(model, step, plain.nbytes * 2 // 3)
    moved = {row.path for row in advice.rows if row.is_moved}
    assert moved
    for path in moved:
        assert all(row.is_moved for row in advice.rows if row.path.startswith(f"{path}."))
    with tt.offload("disk", model=model, where=advice.where, max_bytes=advice.max_bytes) as off:
        step()
        assert set(off.report().moved_nbytes) <= {"disk"}
        assert advice.kept_nbytes + off.report().peak_nbytes <= advice.budget


def test_a_budget_that_nothing_can_meet_is_an_error_that_says_what_would_do() -> None:
    model, x = layers(), torch.ones(512, 256)
    with pytest.raises(tt.InputError, match="two of the largest") as error:
        tt.advise_offload(model, stepper(model, x), 1000)
    least = int(str(error.value).split("offloaded ")[1].split(" bytes")[0].replace(",", ""))
    assert least == 2 * 512 * 256 * 4
    advice = tt.advise_offload(model, stepper(model, x), least)
    assert advice.where == (".",)
    with pytest.raises(tt.InputError):
        tt.advise_offload(model, stepper(model, x), least - 1)


@pytest.mark.parametrize("budget", [-1, 1.5, None])
def test_a_budget_is_a_number_of_bytes(budget: Any) -> None:
    with pytest.raises(tt.InputError, match="budget_bytes"):
        tt.advise_offload(layers(), lambda: None, budget)


def test_a_step_without_a_backward_is_an_error() -> None:
    model, x = layers(), torch.ones(512, 256)
    with pytest.raises(tt.InputError, match="ran no backward"):
        tt.advise_offload(model, lambda: model(x), MIB)
    with pytest.raises(tt.InputError, match="0 tensors were saved"):
        tt.advise_offload(model, lambda: None, MIB)


def test_the_model_is_left_as_found() -> None:
    torch.manual_seed(0)
    model, x = resnet18(num_classes=10, width=8), torch.randn(4, 3, 64, 64)
    stepper(model, x)()
    grads = [param.grad for param in model.parameters()]
    values = [grad.clone() for grad in grads]
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    numbers = torch.get_rng_state()

    def step() -> None:
        nn.functional.dropout(model(x)).sum().backward()

    tt.advise_offload(model, step, 100 * MIB)
    assert all(param.grad is grad for param, grad in zip(model.parameters(), grads, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(grads, values, strict=True))  # type: ignore[arg-type]
    assert all(torch.equal(one, buffers[name]) for name, one in model.named_buffers())
    assert torch.equal(torch.get_rng_state(), numbers)
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_hooks_are_off_after_a_step_that_raises() -> None:
    model = layers()
    with pytest.raises(ZeroDivisionError):
        tt.advise_offload(model, lambda: 1 // 0, MIB)
    assert not any(module._forward_hooks for module in model.modules())


def test_waiting_is_what_the_formula_says_on_a_slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtap.saved import advise as advising

    monkeypatch.setattr(advising, "_disk_speeds", lambda folder: (1e6, 2e6))
    model, x = layers(), torch.ones(512, 256)
    each = 512 * 256 * 4
    advice = tt.advise_offload(model, stepper(model, x), 5 * each - 1)
    transfer = each / 1e6 + each / 2e6  # Far more than the time of computing.
    assert advice.rows[0].wait == pytest.approx(transfer - advice.rows[0].available)
    assert 3 * transfer - advice.step_seconds <= advice.wait_seconds <= 3 * transfer


def test_a_disk_that_is_fast_enough_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtap.saved import advise as advising

    monkeypatch.setattr(advising, "_disk_speeds", lambda folder: (1e15, 1e15))
    model, x = layers(), torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 3 * 512 * 256 * 4)
    assert advice.wait_seconds == 0


def test_times_are_those_of_the_step() -> None:
    class Slow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.05)
            return x

    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), Slow(), nn.Linear(256, 256))
    x = torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 100 * MIB)
    times = {row.path: row for row in advice.rows}
    assert times["0"].available > times["1"].available > 0.05
    assert sum(row.seconds for row in advice.rows) <= advice.step_seconds
    assert times["1"].seconds > 0.05  # The wait follows what the Tanh saved.


def test_the_speeds_are_real() -> None:
    model, x = layers(), torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 100 * MIB)
    for speed in (advice.write_speed, advice.fetch_speed):
        assert 1e5 < speed < 1e12


def test_it_prints_what_to_do_and_gives_plain_values() -> None:
    model, x = layers(), torch.ones(512, 256)
    advice = tt.advise_offload(model, stepper(model, x), 5 * 512 * 256 * 4 - 1)
    text = repr(advice)
    assert f"where=['0', '1', '2', '3', '4'], max_bytes={advice.max_bytes}" in text
    assert "2.5 MiB without parameters" in text
    assert advice.as_dict()["rows"][0]["path"] == "0"
