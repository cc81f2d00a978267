"""The kernel compiled for 64-bit ARM, emulated, beside the one of this machine.

Skipped without a cross compiler and an emulator (Debian: ``gcc-aarch64-linux-gnu qemu-user``).
"""

from __future__ import annotations

import math
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from torchtap.stats.kernels import native
from torchtap.stats.rows import empty_rows

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
KERNEL = Path(native.__file__).parent
FLAGS = ("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-pthread")
NUM_BINS = 8192

if not (shutil.which(COMPILER) and shutil.which(EMULATOR) and native.available()):
    pytest.skip("no cross compiler, emulator or native kernel", allow_module_level=True)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("arm") / "kernel"
    paths = [f"-I{KERNEL}", f"-I{sysconfig.get_path('include')}"]
    # The functions that Python would call are there, and nothing calls them.
    link = ["-static", "-Wl,--unresolved-symbols=ignore-all", "-lm"]
    source = Path(__file__).with_name("emulated_kernel.c")
    define = "-DPy_LIMITED_API=0x030B0000"
    subprocess.run([COMPILER, *FLAGS, define, *paths, source, "-o", made, *link], check=True)
    return made


def measured_there(program: Path, tensor: torch.Tensor, sample: int) -> list[np.ndarray]:
    outer, slices, inner = tensor.shape
    head = np.array([native.DTYPES[tensor.dtype], outer, slices, inner, sample])
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    ran = subprocess.run(
        [EMULATOR, program], input=head.tobytes() + data, stdout=subprocess.PIPE, check=True
    )
    numbers = np.frombuffer(ran.stdout[:128])
    histogram = np.frombuffer(ran.stdout[128 : 128 + 8 * NUM_BINS], np.int64)
    return [numbers, histogram, np.frombuffer(ran.stdout[128 + 8 * NUM_BINS :]).reshape(slices, 16)]


def measured_here(tensor: torch.Tensor, sample: int) -> list[np.ndarray]:
    row, rows = empty_rows(1)[0], empty_rows(tensor.shape[1])
    histogram = torch.zeros(NUM_BINS, dtype=torch.int64)
    native.accumulate(tensor, row, histogram, sample)
    native.accumulate_channels(tensor, rows)
    return [row.numpy(), histogram.numpy(), rows.numpy()]


def values(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat = tensor.view(-1)
    if kind == "odd":
        flat[::7], flat[1::11], flat[2::13] = -0.0, 0.0, 1e-40
        flat[3::101], flat[4::103], flat[5::107] = math.nan, math.inf, -math.inf
    return tensor * 1e-2 + 1e2 if kind == "shifted" else tensor * 20


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (40, 9, 1), (2, 5, 3001), (2, 3, 4097)])
@pytest.mark.parametrize("kind", ["plain", "shifted", "odd"])
@pytest.mark.parametrize("dtype", native.DTYPES, ids=str)
def test_the_kernel_of_arm_measures_the_same(
    program: Path, dtype: torch.dtype, kind: str, shape: tuple[int, ...]
) -> None:
    wide = values(kind, shape)
    if not dtype.is_floating_point:
        wide = wide.nan_to_num(0, 1, -1)
    tensor = (wide.abs() if dtype is torch.uint8 else wide).to(dtype)
    there, here = measured_there(program, tensor, 0), measured_here(tensor, 0)
    assert np.array_equal(there[1], here[1])
    for numbers, known in ((there[0], here[0]), (there[2], here[2])):
        np.testing.assert_allclose(numbers, known, rtol=1e-10, atol=1e-10)


def test_the_kernel_of_arm_samples_as_many(program: Path) -> None:
    tensor = values("odd", (1, 1, 100_000)).nan_to_num(0, 1, -1).float()
    there, here = measured_there(program, tensor, 2048), measured_here(tensor, 2048)
    assert there[1].sum() == here[1].sum() == there[0][14] == 2048
    # A place that falls on an element's edge may be rounded to its neighbour.
    assert abs(there[1] - here[1]).sum() <= 4
