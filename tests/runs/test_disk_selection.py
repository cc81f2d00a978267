"""``tt.Disk`` writes the values that were chosen, and the chosen part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from recordings import batch, small_net
from records import record
from torch import nn

import torchtap as tt
from torchtap.runs.run import Run


def recorded(path: Path, steps: int = 4, **how: Any) -> Run:
    net = small_net()
    with tt.watch(net, "*:*", to=tt.Disk(path / "run", **how)) as w:
        for step in range(steps):
            net(batch(step)).sum().backward()
            w.step()
    return tt.open(path / "run")


def test_patterns_choose_sites(tmp_path: Path) -> None:
    run = recorded(tmp_path, values=["@Linear:output", "!2"])
    assert [str(site) for site in run.sites] == ["0:output"]


def test_every_chooses_steps(tmp_path: Path) -> None:
    assert recorded(tmp_path, every=2).steps == [0, 2]


def test_values_are_rounded_to_a_smaller_dtype_and_say_so(tmp_path: Path) -> None:
    run = recorded(tmp_path, dtype=torch.bfloat16)
    assert torch.equal(run.get("1", step=3), small_net()[:2](batch(3)).bfloat16())
    assert run.record("1").labels == ("rounded from float32",)


def test_whole_numbers_and_narrow_values_are_not_rounded(tmp_path: Path) -> None:
    disk = tt.Disk(tmp_path / "run", dtype=torch.bfloat16)
    disk.take(record("a", torch.arange(3)))
    disk.take(record("b", torch.ones(3, dtype=torch.float16)))
    disk.close()
    run = tt.open(tmp_path / "run")
    assert run["a"].dtype is torch.int64
    assert run["b"].dtype is torch.float16
    assert run.record("b").labels == ()


def test_a_part_of_each_value_is_picked(tmp_path: Path) -> None:
    mask = torch.tensor([True, False, True, False])
    run = recorded(tmp_path, pick=lambda x, record: x[mask, :2])
    assert torch.equal(run.get("1", step=3), small_net()[:2](batch(3))[mask, :2])
    assert "picked" in run.record("1").labels[0]


def test_a_value_may_be_left_out_by_its_record(tmp_path: Path) -> None:
    run = recorded(tmp_path, pick=lambda x, record: x if record.step else None)
    assert run.get("1", step=0).numel() == 0
    assert run.get("1", step=1).shape == (4, 16)


def test_what_is_beyond_the_budget_is_counted(tmp_path: Path) -> None:
    value = torch.ones(1000)
    disk = tt.Disk(tmp_path / "run", max_bytes=10 * value.nbytes)
    for step in range(15):
        disk.take(record(value=value, step=step))
        disk.close_step(step)
    disk.close()
    run = tt.open(tmp_path / "run")
    assert (run.steps, run.nbytes) == (list(range(10)), 10 * value.nbytes)
    assert disk.num_dropped == 5
    assert "5 values (20,000 bytes) were dropped in steps 10 to 14" in run.absent[-1].reason


def test_the_functions_of_a_user_may_fail_without_stopping_the_training(tmp_path: Path) -> None:
    net = nn.Identity()
    disk = tt.Disk(tmp_path / "run", pick=lambda x, record: x[7])
    w = tt.watch(net, to=disk)
    net(torch.ones(2))
    with pytest.raises(IndexError) as caught:
        w.step()
    assert "The training went on" in caught.value.__notes__[0]
    with pytest.raises(IndexError):
        w.close()


@pytest.mark.parametrize(
    "how", [{"every": 0}, {"dtype": torch.int8}, {"pick": 3}, {"max_bytes": 0}], ids=str
)
def test_settings_that_mean_nothing_are_refused(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(tt.InputError, match=next(iter(how))):
        tt.Disk(tmp_path / "run", **how)


def test_what_nothing_is_picked_of_has_the_dtype_of_the_rest(tmp_path: Path) -> None:
    """So that joined rows keep the smaller dtype."""
    layer = torch.nn.Identity()

    def pick(value: torch.Tensor, record: tt.Record) -> torch.Tensor | None:
        return value if record.step else None

    disk = tt.Disk(tmp_path / "run", dtype=torch.float16, pick=pick)
    with tt.watch(layer, to=disk) as w:
        for _ in range(2):
            layer(torch.full((2, 3), 0.1))
            w.step()
    joined = tt.open(tmp_path / "run").cat(".:output")
    assert joined.dtype == torch.float16
    assert torch.equal(joined, torch.full((2, 3), 0.1).half())


def test_pick_may_take_the_tensor_alone(tmp_path: Path) -> None:
    whole = recorded(tmp_path / "whole")["1"]
    run = recorded(tmp_path / "part", pick=lambda x: x[:, :1])
    assert torch.equal(run["1"], whole[:, :1])
