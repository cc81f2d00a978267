"""The anonymous file: what it leaves behind when things go wrong."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from models import chain, gradient_of_chain

import torchtap as tt
from torchtap.saved.spill_file import ALIGNMENT, GROWTH, SpillFile

# --- the file ---------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    contents = {}
    for nbytes in (1, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 100_000):
        extent = file.reserve(nbytes)
        assert extent.offset % ALIGNMENT == 0 and extent.nbytes % ALIGNMENT == 0
        contents[extent] = random.Random(nbytes).randbytes(nbytes)
        file.write(extent, memoryview(contents[extent]))
    for extent, content in contents.items():
        found = bytearray(len(content))
        file.read(extent, memoryview(found))
        assert found == content
    assert file.used == sum(extent.nbytes for extent in contents)


def test_what_is_expected_is_what_was_written(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    extents = [file.reserve(300_000) for _ in range(20)]
    for number, extent in enumerate(extents):
        file.write(extent, memoryview(bytes([number]) * 300_000))
    file.sync()
    file.forget()
    for number, extent in reversed(list(enumerate(extents))):
        file.expect(extent)
        found = bytearray(300_000)
        file.read(extent, memoryview(found))
        assert found == bytes([number]) * 300_000


def test_extents_of_many_lengths_are_joined_before_the_file_grows(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    for nbytes in (ALIGNMENT, 3 * ALIGNMENT, GROWTH // 4, GROWTH // 2, GROWTH):
        extents = [file.reserve(nbytes) for _ in range(GROWTH // nbytes)]
        assert len(set(extents)) == len(extents)
        for extent in extents:
            file.drop(extent)
    assert file.used == 0
    assert os.fstat(file._file).st_size == GROWTH


def test_reading_beyond_the_end_is_an_error(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    extent = file.reserve(1)
    with pytest.raises(OSError, match="ended early"):
        file.read(extent, memoryview(bytearray(GROWTH + 1)))


def test_a_dropped_extent_is_reused(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    first = file.reserve(10_000)
    file.drop(first)
    assert file.reserve(10_000) == first


def test_the_file_has_no_name(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    file.write(file.reserve(10), memoryview(b"0123456789"))
    assert list(tmp_path.iterdir()) == []
    descriptor = Path(f"/proc/self/fd/{file._file}")
    assert "(deleted)" in os.readlink(descriptor)
    file.close()
    file.close()
    assert not descriptor.exists()


def test_a_folder_without_anonymous_files_serves_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    file = SpillFile(tmp_path)
    extent = file.reserve(3)
    file.write(extent, memoryview(b"abc"))
    found = bytearray(3)
    file.read(extent, memoryview(found))
    assert found == b"abc" and list(tmp_path.iterdir()) == []


# --- processes --------------------------------------------------------------------------------

TRAINS = """
import os, sys, time, torch, torchtap as tt
x = torch.randn(256, 256, requires_grad=True)
off = tt.offload("disk", dir=sys.argv[1])
with off:
    loss = x.sin().exp().cos().sum()
off.flush()
assert sum(off.report().moved_nbytes.values()) > 0
assert os.listdir(sys.argv[1]) == []
print("moved", flush=True)
if sys.argv[2] == "wait":
    time.sleep(60)
loss.backward()
if sys.argv[2] == "raise":
    raise SystemExit(3)
if sys.argv[2] == "exit":
    os._exit(4)
"""


def started(folder: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINS, str(folder), what], stdout=subprocess.PIPE, text=True
    )


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    process = started(tmp_path, "wait")
    assert process.stdout is not None
    assert process.stdout.readline() == "moved\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("what", "code"), [("end", 0), ("raise", 3), ("exit", 4)])
def test_an_ended_process_leaves_nothing(tmp_path: Path, what: str, code: int) -> None:
    process = started(tmp_path, what)
    process.communicate()
    assert process.returncode == code
    assert list(tmp_path.iterdir()) == []


# --- a full disk ------------------------------------------------------------------------------


@contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """No file of this process may be larger. Python ignores the signal, so writing raises."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert signal.getsignal(signal.SIGXFSZ) in (signal.SIG_IGN, None)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_grows_by_little_where_there_is_little(tmp_path: Path) -> None:
    with largest_file(3 * ALIGNMENT):
        file = SpillFile(tmp_path)
        taken = [file.reserve(ALIGNMENT) for _ in range(3)]
        assert len(set(taken)) == 3
        with pytest.raises(OSError) as caught:
            file.reserve(1)
        assert caught.value.errno in (errno.EFBIG, errno.ENOSPC)
        file.drop(taken[1])
        assert file.reserve(1) == taken[1]


def test_what_a_full_disk_does_not_take_stays_in_memory(tmp_path: Path) -> None:
    x = torch.randn(256, 256, requires_grad=True)
    expected = gradient_of_chain(x)
    with largest_file(3 * x.nbytes):
        off = tt.offload("disk", dir=tmp_path)
        for _ in range(2):
            with off:
                loss = chain(x)
            off.flush()
            assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
        off.close()
    report = off.report()
    assert 0 < report.moved_nbytes["disk"] < report.packed_nbytes
    assert len([note for note in report.notes if "full" in note]) == 1
    assert "Note: disk is full" in repr(report)
    assert report.kept_nbytes["disk full"] > 0


def test_when_the_disk_is_full_the_next_in_the_chain_goes_on(tmp_path: Path) -> None:
    x = torch.randn(256, 256, requires_grad=True)
    with largest_file(2 * x.nbytes):
        off = tt.offload(["disk", tt.codecs.bf16()], dir=tmp_path)
        with off:
            first = chain(x)
        off.flush()
        with off:
            second = chain(x)
        off.close()
    assert set(off.report().moved_nbytes) == {"disk", "bf16"}
    (first + second).backward()
    expected = 2 * gradient_of_chain(x)
    assert (x.grad - expected).norm() < 0.02 * expected.norm()


# --- for a long time --------------------------------------------------------------------------


def facts_of_process() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def file_size(off: tt.Offload) -> int:
    tier = off._engine.chain.tiers[0]
    return os.fstat(tier._file._file).st_size  # type: ignore[attr-defined]


@pytest.mark.parametrize("num_steps", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_nothing_grows(tmp_path: Path, num_steps: int) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    off = tt.offload("disk", dir=tmp_path, min_bytes=0)
    found = []

    def steps(number: int) -> None:
        for step in range(number):
            with off:
                loss = chain(x, 2 + step % 5)
            if step % 7:  # Now and then a graph is dropped.
                loss.backward()
            x.grad = None
        del loss
        gc.collect()
        off.flush()

    steps(20)
    tracemalloc.start()
    for _ in range(2):
        steps(num_steps)
        tier = off._engine.chain.tiers[0]
        assert tier.used == 0
        found.append((file_size(off), facts_of_process(), tracemalloc.get_traced_memory()[0]))
    tracemalloc.stop()
    off.close()
    assert found[0][:2] == found[1][:2]
    assert found[1][2] - found[0][2] < 16_000
