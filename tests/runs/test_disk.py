"""``tt.Disk`` writes beside the training what ``tt.open`` reads: to the bit, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bits import content
from recordings import batch, copied, files_of, held, record_steps, seen, small_net
from records import record, run_of
from safetensors import safe_open
from torch import Tensor, nn

import torchtap as tt
from dtypes import PLAIN, QUANTIZED, any_bits
from torchtap.runs.inventory import inventory_of_file
from torchtap.runs.run import Run
from torchtap.testing import Specimen, default_loss, zoo

LARGE = 40_000
"""Elements of a value that does not stand with the small ones, whatever its dtype."""


def written_both_ways(folder: Path, row: tt.Record) -> list[Run]:
    """In a folder and in a file."""
    return [written(folder / "run", row), tt.open(run_of(row).save(folder / "run.safetensors"))]


def written(path: Path, *rows: tt.Record, **how: Any) -> Run:
    disk = tt.Disk(path, **how)
    for row in rows:
        disk.take(row)
    disk.close()
    return tt.open(path)


# --- values -----------------------------------------------------------------------------------


SHAPES = [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (2, LARGE)]


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_bit_of_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    """Tensors of every shape, small and large, and views."""
    torch.manual_seed(0)
    values = [any_bits(dtype, *dims) for dims in SHAPES for _ in range(2)]
    plain = [any_bits(dtype, 6, 4), any_bits(dtype, 4, LARGE)]
    views = [view for one in plain for view in (one.t(), one[::2], one[1:])]
    bits = [one.view(_plain(dtype)) for one in plain]
    copies = [view.clone() for one in bits for view in (one.t(), one[::2], one[1:])]
    rows = [record(f"m{number}", value=value) for number, value in enumerate([*values, *views])]
    run = written(tmp_path / "run", *rows)
    assert not run.absent
    found = [run[f"m{number}"] for number in range(len(rows))]
    assert [content(one) for one in found[: len(values)]] == list(map(content, values))
    assert [one.dtype for one in found[len(values) :]] == [dtype] * len(views)
    taken = [one.view(_plain(dtype)) for one in found[len(values) :]]
    assert list(map(content, taken)) == list(map(content, copies))
    listed = {
        str(one.site): (one.dtype, one.shape) for one in inventory_of_file(tmp_path / "run").sites
    }
    assert listed == {
        f"m{n}:output": (str(dtype).removeprefix("torch."), tuple(row.kept.shape))
        for n, row in enumerate(rows)
    }


def _plain(dtype: torch.dtype) -> torch.dtype:
    """A dtype of the same size that PyTorch copies bit for bit."""
    size = torch.empty(0, dtype=torch.uint8).view(dtype).element_size()
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size, dtype)


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_quantised_values_are_written_as_what_they_stand_for(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    numbers = torch.tensor([[-1.0, 0.0, 0.5, 1.0], [3.0, -2.0, 1.5, 0.0]])
    scales, zeros = torch.full((2,), 0.5), torch.zeros(2)
    if dtype in (torch.quint4x2, torch.quint2x4):  # Of few bits: per channel alone.
        value = torch.quantize_per_channel(numbers, scales, zeros, 0, dtype)
    else:
        value = torch.quantize_per_tensor(numbers, 0.5, 0, dtype)
    expected = value.dequantize()
    for run in written_both_ways(tmp_path, record(value=value)):
        assert torch.equal(run["fc"], expected)
        assert run.record("fc").labels == ("dequantized",)


@pytest.mark.filterwarnings("ignore:torch.quantize_per")
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_what_cannot_be_read_is_named_and_the_rest_is_written(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    """Tensors of a quantised dtype with no scale, which PyTorch lets one make."""
    odd = [torch.zeros(4, dtype=torch.uint8).view(dtype), torch.empty(4, dtype=dtype)]
    name = str(dtype).removeprefix("torch.")
    for number, value in enumerate(odd):
        rows = [record("odd", value=value), record("fine", value=torch.ones(2))]
        disk = tt.Disk(tmp_path / f"run{number}")
        for row in rows:
            disk.take(row)
        disk.close()
        (absence,) = disk.absent
        assert (str(absence.site), name in absence.reason) == ("odd:output", True)
        assert tt.open(tmp_path / f"run{number}")["fine"].tolist() == [1, 1]
        with pytest.raises(tt.RunError, match=rf"odd:output \(step 0, call 0\) is {name}"):
            run_of(*rows).save(tmp_path / "run.safetensors")


VIEWS = {
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(2.0 * LARGE)[::2],
    "expanded": torch.ones(1).expand(3, 4),
    "one element expanded": torch.ones(()).expand(1, 1),  # The gradient of sum().
    "channels last": torch.arange(48.0 * LARGE)
    .reshape(LARGE, 3, 4, 4)
    .contiguous(memory_format=torch.channels_last),
    "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "conjugate double": torch.tensor([1 + 2j], dtype=torch.complex128).conj(),
    "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "with offset": torch.arange(6.0)[4:],
    "needs grad": torch.ones(2, requires_grad=True),
    "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_any_view_is_written_as_its_values(name: str, tmp_path: Path) -> None:
    value = VIEWS[name]
    site = tt.Site("fc")  # A site that was looked at goes a quicker way.
    rows = [record(value=value, step=step)._replace(site=site) for step in range(3)]
    run = written(tmp_path / "run", *rows)
    for step in range(3):
        assert content(run.get("fc", step=step)) == content(value.detach())


def test_shapes_and_dtypes_may_change_from_step_to_step(tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = [
        (2, LARGE),
        (2, LARGE),
        (1, LARGE),
        (2, 3, LARGE),
        (5, LARGE - 1),
        (3,),
        (),
        (2, LARGE),
    ]
    kinds = [torch.float32, torch.bfloat16]
    values = [any_bits(kinds[n % 3 == 2], *dims) for n, dims in enumerate(shapes)]
    rows = [record(value=value, step=step) for step, value in enumerate(values)]
    run = written(tmp_path / "run", *rows)
    for step, value in enumerate(values):
        assert content(run.get("fc", step=step)) == content(value)


def test_what_is_overwritten_after_the_hook_was_written_before(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(300, 300), nn.ReLU(inplace=True))
    flowed: list[Tensor] = []
    net[0].register_forward_hook(lambda module, args, output: flowed.append(output.clone()))
    with tt.watch(net, "0", to=tt.Disk(tmp_path / "run")) as w:
        for _ in range(20):
            net(torch.randn(300, 300))
            w.step()
    run = tt.open(tmp_path / "run")
    assert [content(run.get("0", step=step)) for step in range(20)] == list(map(content, flowed))


@pytest.mark.parametrize("specimen", zoo(), ids=lambda one: one.name)
def test_the_zoo_on_disk_is_the_zoo_in_memory(specimen: Specimen, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, flowed = specimen.build(), list[tt.Record]()
    sinks: list[Any] = [lambda record: flowed.append(copied(record)), tt.Disk(tmp_path / "run")]
    args, kwargs = specimen.inputs()
    expected = (
        contextlib.nullcontext() if specimen.raises is None else pytest.raises(specimen.raises)
    )
    with expected, tt.watch(model, "*:*,param,param_grad,buffer", to=sinks):
        output = model(*args, **kwargs)
        if specimen.backward:
            default_loss(output).backward()
    assert held(tt.open(tmp_path / "run")) == seen(flowed)


# --- what is known beside the values ----------------------------------------------------------


def test_a_run_on_disk_answers_as_a_run_in_memory(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, "*:*,param", to=[tt.Memory(), disk]) as w:
        for step in range(3):
            net(batch(step)).sum().backward()
            w.log(loss=step / 2, lr=torch.tensor(0.1))
            w.step(ids=[f"{step}-{row}" for row in range(4)], split="train", epoch=step)
    memory, run = w.run, tt.open(tmp_path / "run")
    assert run.sites == memory.sites
    assert run.steps == memory.steps
    assert run.nbytes == memory.nbytes
    assert run.meta == memory.meta
    assert list(run.absent) == list(memory.absent)
    assert run.scalar_names == memory.scalar_names
    assert all(run.scalars(name) == memory.scalars(name) for name in run.scalar_names)
    assert str(run) == str(memory)
    assert str(run.table()) == str(memory.table())
    assert [str(one.site) for one in run.records()] == [str(one.site) for one in memory.records()]
    assert run.times[0] == memory.times[0] == [0, 1, 2]
    for step in range(3):
        assert run.ids(step) == memory.ids(step) == [f"{step}-{row}" for row in range(4)]
        assert run.labels(step) == memory.labels(step) == {"split": "train", "epoch": step}
    assert torch.equal(run.cat("1"), memory.cat("1"))
    assert run.mean_norm() == memory.mean_norm()
    assert run.stats("1", step="all").rms == memory.stats("1", step="all").rms
    assert held(tt.open(run.save(tmp_path / "copy.safetensors"))) == held(run)


def test_the_model_is_described(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "1", to=tt.Disk(tmp_path / "run")):
        net(batch(0))
    meta = tt.open(tmp_path / "run").meta
    assert (meta.model, meta.type_name("2"), meta.where) == ("Sequential", "Linear", ("1",))
    assert meta.num_parameters == {"0": 8 * 16 + 16, "2": 16 * 3 + 3}
    assert (meta.torch, meta.torchtap) == (torch.__version__, tt.__version__)


def test_the_time_of_every_step_is_kept(tmp_path: Path) -> None:
    before = time.time()
    record_steps(tmp_path / "run", [3, 5])
    steps, times = tt.open(tmp_path / "run").times
    assert steps == [3, 5]
    assert before <= times[0] <= times[1] <= time.time()


@pytest.mark.parametrize("ids", ["abc", 3, [1.5], [True], [None]])
def test_ids_are_numbers_and_texts(ids: Any) -> None:
    with tt.watch(small_net()) as w, pytest.raises(tt.InputError, match="ids"):
        w.step(ids=ids)


def test_labels_are_plain(tmp_path: Path) -> None:
    with tt.watch(small_net()) as w, pytest.raises(tt.InputError, match="split=Tensor"):
        w.step(split=torch.ones(2))


def test_the_live_watch_reads_the_steps_that_were_closed(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "1", to=tt.Disk(tmp_path / "run")) as w:
        for step in range(3):
            expected = net[:2](batch(step))
            net(batch(step))
            w.step()
            assert w.run.steps == list(range(step + 1))
            assert content(w.run["1"]) == content(expected)
        net(batch(3))
        assert w.run.steps == [0, 1, 2]
    assert w.run.steps == [0, 1, 2, 3]


def test_gradients_that_arrive_after_their_step_are_of_it(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "1:output,grad_output", to=tt.Disk(tmp_path / "run")) as w:
        loss = net(batch(0)).sum()
        w.step()
        loss.backward()
        w.step()
    assert tt.open(tmp_path / "run").record("1:grad_output").step == 0


# --- writing beside the training --------------------------------------------------------------


def test_a_full_queue_waits_and_nothing_is_lost(tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(30), rows=2000, queue_bytes=100_000)
    assert held(tt.open(tmp_path / "run")) == flowed


def test_what_is_dropped_is_counted_exactly(tmp_path: Path) -> None:
    # Made beforehand, and handed over without a pause: the thread that writes falls behind.
    flowed = [record(value=torch.full((LARGE,), float(step)), step=step) for step in range(400)]
    value, taken = flowed[0].value, len(flowed)
    disk = tt.Disk(tmp_path / "run", queue_bytes=2 * value.nbytes, on_full="drop")
    for one in flowed:
        disk.take(one)
    disk.close()
    run = tt.open(tmp_path / "run")
    assert 0 < disk.num_dropped < taken
    assert len(run) + disk.num_dropped == taken
    assert disk.dropped_bytes == disk.num_dropped * value.nbytes
    (said,) = (entry for entry in run.absent if "dropped" in entry.reason)
    assert f"{disk.num_dropped:,} values ({disk.dropped_bytes:,} bytes)" in said.reason
    assert said.site == tt.Site("fc", "output")
    assert all(bool((one.value == one.step).all()) for one in run.records())


def test_a_full_queue_may_end_the_recording(tmp_path: Path) -> None:
    net = nn.Identity()
    disk = tt.Disk(tmp_path / "run", queue_bytes=1 << 20, on_full="raise")
    w = tt.watch(net, to=disk)
    with pytest.raises(tt.CaptureError, match=r"is full: .* bytes wait, and \.:output has 900,000"):
        for _ in range(2000):
            net(torch.zeros(225_000))
            net(torch.zeros(225_000))
            net(torch.zeros(225_000))
            w.step()
    with pytest.raises(tt.CaptureError):
        w.close()
    assert all(one.value.sum() == 0 for one in tt.open(tmp_path / "run").records())


def test_flush_makes_every_closed_step_readable(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, "1", to=disk) as w:
        net(batch(0, rows=3000))
        w.step()
        net(batch(1, rows=3000))
        disk.flush()
        assert tt.open(tmp_path / "run").steps == [0]


@pytest.mark.parametrize("durability", ["step", "close", "none"])
def test_durability_does_not_change_what_is_written(durability: str, tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(4), rows=2000, durability=durability)
    assert held(tt.open(tmp_path / "run")) == flowed


def test_values_of_several_threads_are_all_there(tmp_path: Path) -> None:
    disk, number, threads = tt.Disk(tmp_path / "run"), 300, 3

    def work(thread: int) -> None:
        for call in range(number):
            disk.take(record(f"m{thread}", torch.tensor([float(call)]), call=call))

    workers = [threading.Thread(target=work, args=(one,)) for one in range(threads)]
    for one in workers:
        one.start()
    while any(one.is_alive() for one in workers):
        disk.close_step(0)
    disk.close()
    run = tt.open(tmp_path / "run")
    assert len(run) == threads * number
    for thread in range(threads):
        assert run.cat(f"m{thread}").tolist() == list(range(number))


def test_no_thread_is_left(tmp_path: Path) -> None:
    before = threading.active_count()
    record_steps(tmp_path / "run", range(3))
    assert threading.active_count() == before


class _Collecting(torch.Tensor):
    """A logged number; where the thread that writes asks for it, the collector runs there."""

    dropped = threading.Event()

    def __float__(self) -> float:
        self.dropped.wait()
        gc.collect()
        return 1.0


def test_a_sink_that_the_collector_finishes_in_the_thread_that_writes_is_closed(
    tmp_path: Path,
) -> None:
    before = {*threading.enumerate()}
    model, disk = nn.Linear(2, 2), tt.Disk(tmp_path / "run")
    w = tt.watch(model, to=disk)
    (writing,) = {*threading.enumerate()} - before
    w.log(loss=torch.ones(1).as_subclass(_Collecting))
    model(torch.ones(1, 2))
    w.step()
    disk.itself = disk  # type: ignore[attr-defined]
    gc.disable()
    try:
        del model, w, disk
        _Collecting.dropped.set()
        writing.join(timeout=20)
    finally:
        gc.enable()
    assert not writing.is_alive()
    run = tt.open(tmp_path / "run")
    assert len(run) == 1
    assert run.scalars("loss") == ([0], [1.0])
    assert '"closed"' in next((tmp_path / "run").rglob("attempt.json")).read_text()


@pytest.mark.slow
def test_a_sink_that_is_open_when_python_ends_is_closed(tmp_path: Path) -> None:
    # No thread starts any more then, and the lanes are synced one by one.
    program = (
        "import sys, torch, torchtap as tt\n"
        "net = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(3)])\n"
        "w = tt.watch(net, to=tt.Disk(sys.argv[1]))\n"
        "w.__enter__()\n"
        "net(torch.ones(4, 30_000)), w.step()\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], check=True)
    run = tt.open(tmp_path / "run")
    assert [bool((run.get(str(n)) == 1).all()) for n in range(3)] == [True] * 3
    facts = next((tmp_path / "run").rglob("attempt.json")).read_text()
    assert '"closed"' in facts
    for lane in (tmp_path / "run").rglob("lanes/*"):
        assert safe_open(lane, "pt").get_tensor("rows").shape == (4, 30_000)


def test_a_sink_that_is_forgotten_is_closed(tmp_path: Path) -> None:
    before = threading.active_count()
    disk = tt.Disk(tmp_path / "run")
    disk.take(record())
    disk.close_step(0)
    del disk
    assert threading.active_count() == before
    assert tt.open(tmp_path / "run").steps == [0]


# --- errors -----------------------------------------------------------------------------------


@pytest.fixture
def no_file_beyond_a_mebibyte() -> Iterator[None]:
    """The system refuses to make a file longer, as it does when the disk is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def until_it_fails(w: tt.Watch, net: nn.Module, steps: int = 400) -> int:
    """Train until ``step`` raises; returns how many steps went well."""
    for step in range(steps):
        net(torch.full((50, 1000), float(step)))
        w.step()
    return steps


@pytest.mark.usefixtures("no_file_beyond_a_mebibyte")
def test_an_error_of_writing_reaches_the_next_step(tmp_path: Path) -> None:
    net = nn.Identity()
    # A short queue, so that the training cannot end before the thread has written.
    w = tt.watch(net, to=tt.Disk(tmp_path / "run", queue_bytes=1 << 20))
    with pytest.raises(OSError, match="too large") as caught:
        until_it_fails(w, net)
    assert "The training went on" in caught.value.__notes__[0]
    with pytest.raises(OSError, match="too large"):
        w.close()
    run = tt.open(tmp_path / "run")
    assert run.steps == list(range(5))  # 200,000 bytes each, and a header.
    assert all(bool((one.value == one.step).all()) for one in run.records())
    assert "writing ended with OSError" in run.absent[-1].reason


@pytest.mark.usefixtures("no_file_beyond_a_mebibyte")
def test_a_training_goes_on_without_its_disk_if_asked(tmp_path: Path) -> None:
    net = nn.Identity()
    with (
        pytest.warns(RuntimeWarning, match="writes no more: OSError"),
        tt.watch(net, to=tt.Disk(tmp_path / "run", on_error="warn")) as w,
    ):
        assert until_it_fails(w, net, 60) == 60
    assert "writing to" in w.absent[-1].reason
    assert tt.open(tmp_path / "run").steps == list(range(5))


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        tt.watch(small_net(), to=tt.Disk(tmp_path / "file" / "run"))


def test_nothing_is_left_on_the_model_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    net = small_net()
    with pytest.raises(OSError, match="file"):
        tt.watch(net, to=tt.Disk(tmp_path / "file" / "run"))
    assert not any(module._forward_hooks for module in net.modules())


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(2))
    with pytest.raises(tt.RunError, match=r"holds a run already.*resume=True"):
        record_steps(tmp_path / "run", range(2))
    assert held(tt.open(tmp_path / "run")) == flowed


def test_other_folders_are_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "holiday.txt").write_text("sun")
    with pytest.raises(tt.RunError, match="something else than a run"):
        tt.Disk(tmp_path)
    with pytest.raises(tt.RunError, match="is a file"):
        tt.Disk(tmp_path / "holiday.txt")
    assert files_of(tmp_path) == [tmp_path / "holiday.txt"]


def test_two_writers_of_one_rank_are_refused(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, to=tt.Disk(tmp_path / "run")) as w:
        with pytest.raises(tt.RunError, match="is being written by a process that lives"):
            tt.watch(net, to=tt.Disk(tmp_path / "run", resume=True))
        net(batch(0))
        w.step()
    assert tt.open(tmp_path / "run").steps == [0]


def test_a_sink_belongs_to_one_watch(tmp_path: Path) -> None:
    disk = tt.Disk(tmp_path / "run")
    with tt.watch(small_net(), to=disk), pytest.raises(tt.CaptureError, match="another watch"):
        tt.watch(small_net(), to=disk)


@pytest.mark.parametrize(
    "how",
    [{"on_full": "block"}, {"durability": "always"}, {"on_error": "ignore"}, {"queue_bytes": 0}],
    ids=str,
)
def test_settings_that_do_not_exist_are_refused(how: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(tt.InputError, match=next(iter(how))):
        tt.Disk(tmp_path / "run", **how)


def test_a_meta_tensor_is_absent_with_its_reason(tmp_path: Path) -> None:
    with tt.watch(nn.Identity(), to=tt.Disk(tmp_path / "run")) as w:
        nn.Identity()(torch.ones(1))
        w.plan  # noqa: B018 - nothing ran
    disk = tt.Disk(tmp_path / "other")
    disk.take(record(value=torch.ones(2, device="meta")))
    disk.close()
    assert "a meta tensor" in disk.absent[0].reason


def test_a_forked_process_is_told_that_it_cannot_write(tmp_path: Path) -> None:
    disk = tt.Disk(tmp_path / "run")
    disk.take(record())
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            disk.take(record())
        except tt.CaptureError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert "was forked" in stream.read()
    disk.close()
    assert len(tt.open(tmp_path / "run")) == 1


# --- going on ---------------------------------------------------------------------------------


def test_resuming_goes_on_with_the_run(tmp_path: Path) -> None:
    first = record_steps(tmp_path / "run", range(3))
    second = record_steps(tmp_path / "run", range(3, 6), resume=True)
    run = tt.open(tmp_path / "run")
    assert held(run) == {**first, **second}
    assert run.steps == [0, 1, 2, 3, 4, 5]
    assert run.labels(4) == {"parity": "even"}


def test_a_resumed_run_begins_where_there_is_none(tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(2), resume=True)
    assert held(tt.open(tmp_path / "run")) == flowed


def test_steps_from_a_checkpoint_on_supersede_those_that_were_there(tmp_path: Path) -> None:
    first = record_steps(tmp_path / "run", range(6))
    second = record_steps(tmp_path / "run", range(3, 5), rows=7, resume=True)
    run = tt.open(tmp_path / "run")
    assert held(run) == {**{k: v for k, v in first.items() if k[1] < 3}, **second}
    assert run.ids(3) == list(range(7))
    (said,) = (entry.reason for entry in run.absent if "attempt" in entry.reason)
    assert said.startswith("attempt 0 has steps 3 to 5 too, and a later attempt began again at")
    earlier = tt.open(tmp_path / "run" / "rank-00000" / "attempt-000")
    assert held(earlier) == first


@pytest.mark.parametrize("how", [{"values": None}, {"every": 4}], ids=["no values", "every 4"])
def test_steps_without_values_are_superseded_too(tmp_path: Path, how: dict[str, Any]) -> None:
    """Ids, labels and logged numbers of a step are those of one attempt, and never of two."""
    net, path = small_net(), tmp_path / "run"

    def part(steps: range, name: str) -> None:
        disk = tt.Disk(path, resume=name == "second", **how)
        with tt.watch(net, "0", to=[disk, tt.Stats()]) as w:
            for step in steps:
                w.step(step)
                net(batch(step))
                w.log(**{name: step})
                w.step(ids=[name], **{name: step})

    part(range(10), "first")
    part(range(5, 8), "second")
    run = tt.open(path)
    assert run.steps[-1] < 8
    assert run.times[0] == list(range(8))
    assert [run.ids(step) for step in range(8)] == [["first"]] * 5 + [["second"]] * 3
    assert [run.labels(step) for step in (4, 5)] == [{"first": 4}, {"second": 5}]
    assert run.scalars("first")[0] == [0, 1, 2, 3, 4]
    assert run.scalars("second")[0] == [5, 6, 7]
    (said,) = (entry.reason for entry in run.absent if "attempt" in entry.reason)
    assert said.startswith("attempt 0 has steps 5 to 9 too, and a later attempt began again at")


def test_an_attempt_that_has_statistics_alone_supersedes_values_too(tmp_path: Path) -> None:
    net, path = small_net(), tmp_path / "run"
    for steps, resume in ((range(10), False), (range(5, 7), True)):
        disk = tt.Disk(path, every=8, resume=resume)
        with tt.watch(net, "0", to=[disk, tt.Stats()]) as w:
            for step in steps:
                w.step(step)
                net(batch(step))
                w.step()
    run = tt.open(path)
    assert [one.step for one in run.records()] == [0]  # That of step 8 is of the first attempt.
    assert run.steps == list(range(7))
    assert any(one.reason.startswith("attempt 0 has step 8 too") for one in run.absent)


def test_what_is_logged_before_a_resumed_step_is_named_supersedes_nothing(tmp_path: Path) -> None:
    first = record_steps(tmp_path / "run", range(4))
    net = small_net()
    with tt.watch(net, "0", to=tt.Disk(tmp_path / "run", resume=True)) as w:
        w.log(lr=0.1)
        w.step(4)
        net(batch(4))
        w.step()
    run = tt.open(tmp_path / "run")
    assert run.steps == [0, 1, 2, 3, 4]
    assert {key: one for key, one in held(run).items() if key[1] < 4} == first


def test_a_last_step_that_was_not_closed_has_no_time(tmp_path: Path) -> None:
    net = small_net()
    with tt.watch(net, "0", to=[tt.Disk(tmp_path / "run"), tt.Memory()]) as w:
        net(batch(0))
        w.step(ids=["a"])
        net(batch(1))
    run = tt.open(tmp_path / "run")
    assert run.steps == w.run.steps == [0, 1]
    assert run.times[0] == w.run.times[0] == [0]


def test_another_model_does_not_go_on_with_the_run(tmp_path: Path) -> None:
    record_steps(tmp_path / "run", range(2))
    with pytest.raises(tt.RunError, match="is of the model Sequential, and this one is Linear"):
        tt.watch(nn.Linear(2, 2), to=tt.Disk(tmp_path / "run", resume=True))


# --- growing ----------------------------------------------------------------------------------


def test_a_run_grows_while_it_is_read(tmp_path: Path) -> None:
    net, disk = small_net(), tt.Disk(tmp_path / "run")
    with tt.watch(net, "1", to=disk) as w:
        net(batch(0, 2000))
        w.step()
        disk.flush()
        run = tt.open(tmp_path / "run")
        first = run["1"]
        assert not run.refresh()
        for step in range(1, 4):
            net(batch(step, 2000))
            w.step()
            disk.flush()
            assert run.steps == list(range(step))
            assert run.refresh()
            assert run.steps == list(range(step + 1))
            assert content(run["1"]) == content(net[:2](batch(step, 2000)))
    assert run.refresh()  # It was closed.
    assert content(first) == content(net[:2](batch(0, 2000)))


def test_a_run_in_memory_has_nothing_to_refresh() -> None:
    with tt.watch(small_net()) as w:
        pass
    assert not w.run.refresh()


def test_a_later_attempt_is_found_by_refreshing(tmp_path: Path) -> None:
    record_steps(tmp_path / "run", range(2))
    run = tt.open(tmp_path / "run")
    record_steps(tmp_path / "run", range(2, 4), resume=True)
    assert run.refresh()
    assert run.steps == [0, 1, 2, 3]


def test_writing_into_a_value_changes_no_file(tmp_path: Path) -> None:
    flowed = record_steps(tmp_path / "run", range(2), rows=2000)
    run = tt.open(tmp_path / "run")
    run["0"].zero_()
    assert held(tt.open(tmp_path / "run")) == flowed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four mebibytes, where the system lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no command to mount a file system")
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_keeps_every_committed_step(small_disk: Path) -> None:
    nets = nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())
    w = tt.watch(nets, "?", to=tt.Disk(small_disk / "run"))
    with pytest.raises(OSError, match="No space left"):
        until_it_fails(w, nets)
    with pytest.raises(OSError, match="No space left"):
        w.close()
    run = tt.open(small_disk / "run")
    # Three values of 200,000 bytes a step: what is reserved for one lane is given to the others.
    assert run.steps == list(range(len(run.steps)))
    assert len(run.steps) >= 5
    assert len(run) == 3 * len(run.steps)
    assert all(bool((one.value == one.step).all()) for one in run.records())


# --- faults of the recording ------------------------------------------------------------------


class OfItsOwn(torch.Tensor):
    """A tensor whose class gives nobody its values."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.detach, torch.Tensor.copy_):
            raise ValueError("not mine")
        return super().__torch_function__(func, types, args, kwargs or {})


def masked(x: torch.Tensor) -> torch.Tensor:
    from torch.masked import masked_tensor

    return masked_tensor(x, x > 0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("make", [masked, lambda x: x.as_subclass(OfItsOwn)], ids=["masked", "own"])
def test_a_value_that_its_class_does_not_give_is_absent_and_the_others_are_there(
    make: Any, on_error: Any, tmp_path: Path
) -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return make(x)

    net = nn.Sequential(nn.ReLU(), Makes())
    with tt.watch(net, ["0", "1"], to=tt.Disk(tmp_path / "run", on_error=on_error)) as w:
        for _ in range(3):
            net(torch.ones(3))
            w.step()
    assert [str(one.site) for one in w.absent] == ["1:output"]
    assert "whose values its class does not give" in w.absent[0].reason
    run = tt.open(tmp_path / "run")
    assert [str(one.site) for one in run.records()] == ["0:output"] * 3


@pytest.mark.parametrize(
    ("how", "why"),
    [({"pick": True}, "KeyError: 'mine'"), ({"on_full": "raise"}, "CaptureError: The queue")],
    ids=["pick", "full"],
)
def test_any_fault_of_the_recording_leaves_the_training_alone(
    how: Any, why: str, tmp_path: Path
) -> None:
    def pick(x: torch.Tensor, record: tt.Record) -> torch.Tensor:
        if record.step == 2:
            raise KeyError("mine")
        return x

    how = {"pick": pick} if "pick" in how else how | {"queue_bytes": 100}
    net, done = nn.Sequential(nn.Linear(4, 100_000), nn.ReLU()), 0
    with (
        pytest.warns(RuntimeWarning, match="writes no more"),
        tt.watch(net, to=tt.Disk(tmp_path / "run", on_error="warn", **how)) as w,
    ):
        for done in range(40):  # noqa: B007 - how far it came is asked below
            net(torch.ones(1, 4))
            w.step()
    assert done == 39
    assert why in w.absent[0].reason
    assert why in "; ".join(one.reason for one in tt.open(tmp_path / "run").absent)


@pytest.mark.parametrize("width", [3, 100_000], ids=["small", "large"])
def test_a_folder_that_is_deleted_is_noticed_with_the_next_commit(
    width: int, tmp_path: Path
) -> None:
    net, disk = nn.Linear(4, width), tt.Disk(tmp_path / "run")
    with (
        pytest.raises(FileNotFoundError, match="was deleted while it was written to"),
        tt.watch(net, to=disk) as w,
    ):
        net(torch.ones(1, 4))
        w.step()
        w.sync()
        shutil.rmtree(tmp_path / "run")
        net(torch.ones(1, 4))
        w.step()
        w.sync()
    assert "what was committed is gone" in w.absent[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("to", ["tt.Disk(path)", "[tt.Stats(), tt.Disk(path, every=2)]"])
def test_an_interrupt_that_nothing_catches_ends_the_process_by_its_signal(
    to: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    code = (
        f"import os, signal, torch, torchtap as tt; path = {str(path)!r}\n"
        f"m = torch.nn.Linear(2, 2); w = tt.watch(m, to={to})\n"
        "m(torch.ones(1, 2)); w.step(); os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT, done.stderr
    assert tt.open(path).steps == [0]
