"""A run in one file: what is written is what is read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from bits import content
from hypothesis import given, settings, strategies as st
from records import record, run_of
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torchtap as tt
from dtypes import PLAIN, any_bits
from torchtap.core.record import RECOMPUTE
from torchtap.runs.inventory import inventory_of_file
from torchtap.runs.run import Meta, Run, inventory_of_run
from torchtap.testing import Net


def kept(*rows: tt.Record) -> Run:
    return run_of(*rows, types={"": ("Net",), "fc": ("Linear",)})


def written(run: Run, folder: Path) -> Run:
    return tt.open(run.save(folder / "run.safetensors"))


# --- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_every_bit_of_every_dtype_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shapes = [(), (0,), (3, 0, 2), (1,), (2, 3, 4)]
    values = [any_bits(dtype, *dims) for dims in shapes]
    run = kept(*(record(f"m{number}", value) for number, value in enumerate(values)))
    again = written(run, tmp_path)
    assert [content(again[f"m{number}"]) for number in range(5)] == list(map(content, values))
    assert inventory_of_file(tmp_path / "run.safetensors") == inventory_of_run(run)


VIEWS = {
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "strided": torch.arange(6.0)[::2],
    "expanded": torch.ones(1).expand(3, 4),
    "one element expanded": torch.ones(()).expand(1, 1),  # The gradient of sum().
    "channels last": torch.arange(48.0)
    .reshape(2, 3, 2, 4)
    .contiguous(memory_format=torch.channels_last),
    "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "conjugate double": torch.tensor([1 + 2j], dtype=torch.complex128).conj(),
    "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "with offset": torch.arange(6.0)[4:],
    "needs grad": torch.ones(2, requires_grad=True),
    "parameter": nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("value", list(VIEWS.values()), ids=list(VIEWS))
def test_views_of_every_kind_come_back(value: Tensor, tmp_path: Path) -> None:
    found = written(kept(record(value=value)), tmp_path)["fc"]
    assert content(found) == content(value.detach())
    assert not found.requires_grad


def test_special_numbers_come_back(tmp_path: Path) -> None:
    value = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    assert content(written(kept(record(value=value)), tmp_path)["fc"]) == content(value)


def test_two_records_may_share_their_memory(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    run = written(kept(record("a", base), record("b", base), record("c", base[1:])), tmp_path)
    assert run["a"].tolist() == run["b"].tolist() == [0, 1, 2, 3]
    assert run["c"].tolist() == [1, 2, 3]


def test_a_nested_tensor_becomes_its_values_and_says_so(tmp_path: Path) -> None:
    parts = [torch.ones(2, 3), torch.zeros(1, 3)]
    value = torch.nested.nested_tensor(parts, layout=torch.jagged)
    run = written(kept(record(value=value)), tmp_path)
    assert torch.equal(run["fc"], torch.cat(parts))
    assert run.record("fc").labels == ("values of a nested tensor",)


def test_a_value_without_memory_is_refused(tmp_path: Path) -> None:
    run = kept(record(value=torch.ones(2, device="meta"), step=3))
    with pytest.raises(tt.RunError, match=r"fc:output \(step 3, call 0\) is a meta tensor"):
        run.save(tmp_path / "run.safetensors")


# --- names ------------------------------------------------------------------------------------

ODD = [
    "fc",
    "",
    "a.b",
    "a#0.0.-1.forward",
    "ü/ß 漢字 🙂",
    "line\nbreak",
    'quo"te\\',
    "a:output",
    " ",
]


@pytest.mark.parametrize("path", ODD)
@pytest.mark.parametrize("leaf", ["", "0", "#", "ключ\n"])
def test_odd_names_come_back(path: str, leaf: str, tmp_path: Path) -> None:
    run = written(kept(record(path, torch.ones(1), leaf=leaf)), tmp_path)
    assert run.sites == [tt.Site(path, "output", leaf)]
    assert run[tt.Site(path, "output", leaf)].item() == 1.0


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(names, names, st.integers(0, 3), st.integers(0, 3), st.integers(-1, 1)),
        max_size=6,
        unique=True,
    )
)
def test_every_key_comes_back(keys: list[Any]) -> None:
    rows = [
        record(path, torch.tensor(place), leaf=leaf, step=step, call=call, backward=backward)
        for place, (path, leaf, step, call, backward) in enumerate(keys)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = written(kept(*rows), Path(folder))
        found = [(r.site, r.step, r.call, r.backward, r.value.item()) for r in run.records()]
    assert found == [(r.site, r.step, r.call, r.backward, r.value.item()) for r in rows]


def test_values_of_one_key_stay_apart(tmp_path: Path) -> None:
    rows = [record(value=torch.tensor(number)) for number in range(3)]
    rows.append(record("fc:output#0.0.-1.forward.1", torch.tensor(3)))
    run = written(kept(*rows), tmp_path)
    assert [row.value.item() for row in run.records()] == [0, 1, 2, 3]


def test_leaves_of_one_name_stay_apart(tmp_path: Path) -> None:
    model = Net(lambda m, x: {"a.b": x, "a": {"b": 2 * x}})
    with tt.watch(model) as w:
        model(torch.ones(1))
    assert [row.value.item() for row in written(w.run, tmp_path).records()] == [1.0, 2.0]


# --- the whole run ----------------------------------------------------------------------------


def trained() -> Run:
    inner = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    model = Net(lambda m, x: m.inner(x), inner=inner, skipped=nn.Identity())
    with tt.watch(model, ["*:*", "*:param,param_grad"]) as w:
        for _ in range(2):
            model(torch.ones(4, 3, requires_grad=True)).sum().backward()
            w.step()
    return w.run


def test_a_whole_run_comes_back(tmp_path: Path) -> None:
    run = trained()
    again = written(run, tmp_path)
    assert again.sites == run.sites
    assert again.steps == run.steps
    assert again.meta == run.meta
    assert again.absent == run.absent
    assert again.absent
    for old, new in zip(run.records(), again.records(), strict=True):
        assert (old.key, old.phase, old.backward, old.labels) == (
            *(new.key, new.phase),
            *(new.backward, new.labels),
        )
        assert content(new.value) == content(old.value)


def test_times_ids_and_labels_come_back(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    odd: dict[str, Any] = {
        "split": "ünder\n",
        "lr": 0.1,
        "nan": float("nan"),
        "big": 2**70,
        "none": None,
    }
    with tt.watch(net) as w:
        for step in (3, 5, 9):
            w.step(step)
            net(torch.ones(2, 2))
            w.step(ids=[step, f"{step}-漢"] if step != 5 else None, **odd if step != 9 else {})
    again = tt.open(written(w.run, tmp_path).save(tmp_path / "again.safetensors"))
    assert again.times == w.run.times
    assert len(again.times[0]) == 3
    for step, ids in ((3, [3, "3-漢"]), (5, []), (9, [9, "9-漢"])):
        assert again.ids(step) == ids
        assert repr(again.labels(step)) == repr(odd if step != 9 else {})
    with pytest.raises(tt.SiteError, match="Nothing is noted of step 4"):
        again.ids(4)


def test_a_run_that_was_read_can_be_written_again(tmp_path: Path) -> None:
    first = written(trained(), tmp_path)
    second = tt.open(first.save(tmp_path / "second.safetensors"))
    assert [r.key for r in second.records()] == [r.key for r in first.records()]


def test_recomputed_values_come_back_apart(tmp_path: Path) -> None:
    rows = (
        record(value=torch.ones(1)),
        record(value=torch.zeros(1), phase=RECOMPUTE, labels=("total",)),
    )
    run = written(kept(*rows), tmp_path)
    assert run["fc"].item() == 1.0
    assert run.get("fc", phase="recompute").item() == 0.0
    assert run.record("fc", phase="recompute").labels == ("total",)


def test_an_empty_run_comes_back(tmp_path: Path) -> None:
    assert len(written(kept(), tmp_path)) == 0


def test_folders_are_made_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "run.safetensors"
    assert kept(record(value=torch.ones(1))).save(path) == path
    assert path.exists()


def test_a_text_is_a_path_too(tmp_path: Path) -> None:
    path = str(tmp_path / "run.safetensors")
    kept(record(value=torch.ones(1))).save(path)
    assert len(tt.open(path)) == 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_values_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    path = kept(record(value=torch.ones(1 << 22))).save(tmp_path / "run.safetensors")
    code = (
        "import os, sys, torch, torchtap as tt\n"
        "def resident():\n"
        "    pages = int(open('/proc/self/statm').read().split()[1])\n"
        "    return pages * os.sysconf('SC_PAGE_SIZE')\n"
        "torch.ones(9).sum(), tt.open\n"
        "before = resident()\n"
        "run = tt.open(sys.argv[1])\n"
        "print(len(run), resident() - before < 8_000_000)\n"
        "run['fc'].sum()\n"
        "print(resident() - before > 15_000_000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", "True", "True"], done.stderr


# --- other readers ----------------------------------------------------------------------------


def test_plain_safetensors_reads_it(tmp_path: Path) -> None:
    path = kept(record(value=torch.arange(3.0), step=1, call=2)).save(tmp_path / "run.safetensors")
    tensors = load_file(path)
    assert list(tensors) == ["fc:output#1.2.-1.forward", "torchtap.crc32"]
    assert tensors["fc:output#1.2.-1.forward"].tolist() == [0.0, 1.0, 2.0]
    with safetensors.safe_open(path, framework="np") as opened:
        body = json.loads(opened.metadata()["torchtap"])
    assert body["meta"]["model"] == "Net"


def test_a_run_opens_where_its_model_is_unknown(tmp_path: Path) -> None:
    path = trained().save(tmp_path / "run.safetensors")
    code = (
        "import sys, torchtap as tt\n"
        "run = tt.open(sys.argv[1])\n"
        "assert 'transformers' not in sys.modules and 'torchtap.capture.watch' not in sys.modules\n"
        "print(run['inner.0:grad_output'].shape, run.meta.type_name('inner.1'), len(run))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["torch.Size([4,", "2])", "Tanh", str(len(trained()))]


def test_a_listing_of_the_file_is_that_of_the_run(tmp_path: Path) -> None:
    run = trained()
    path = run.save(tmp_path / "run.safetensors")
    assert inventory_of_file(path) == inventory_of_run(run)


# --- what goes wrong --------------------------------------------------------------------------


def test_a_crash_halfway_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = kept(record(value=torch.ones(1)))

    def crashes(stream: Any, tensors: Any, text: Any) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtap.runs.single_file.file_tensors._write", crashes)
    with pytest.raises(KeyboardInterrupt):
        run.save(tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_crash_halfway_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(record(value=torch.ones(1))).save(tmp_path / "run.safetensors")

    def crashes(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("torchtap.runs.single_file.file_tensors._write", crashes)
    with pytest.raises(OSError, match="no space left"):
        kept(record(value=torch.zeros(1))).save(path)
    assert tt.open(path)["fc"].item() == 1.0
    assert list(tmp_path.iterdir()) == [path]


class Torn(Sequence[tt.Record]):
    """Records of which the last cannot be read."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: Any) -> Any:
        if place == 0:
            return record(value=torch.ones(1))
        if place == 1:
            raise MemoryError("gone")
        raise IndexError


def test_a_record_that_cannot_be_read_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        Run(Torn(), Meta()).save(tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_written_run_is_the_only_file(tmp_path: Path) -> None:
    path = kept(record(value=torch.ones(1))).save(tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == [path]


def test_writing_again_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    kept(record(value=torch.ones(1))).save(path)
    kept(record(value=torch.zeros(1))).save(path)
    assert tt.open(path)["fc"].item() == 0.0


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    path = kept(record(value=torch.ones(1))).save(tmp_path / "run.safetensors")
    other = tmp_path / "other"
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


NO_RUNS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is not a safetensors file"),
    "text": (b"hello, this is some text", "is not a safetensors file"),
    "a page": (b"<!doctype html><html></html>", "it does not begin with the length of a header"),
    "huge header": (struct.pack("<Q", 1 << 40) + b"{}", "is not a safetensors file"),
    "cut off": (struct.pack("<Q", 100) + b'{"a": ', "is not a safetensors file"),
    "no header": (struct.pack("<Q", 2) + b"[]", "is not a safetensors file"),
}


@pytest.mark.parametrize(("content", "message"), list(NO_RUNS.values()), ids=list(NO_RUNS))
@pytest.mark.parametrize("reader", [tt.open, inventory_of_file])
def test_what_is_no_run_is_reported(
    reader: Any, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    path.write_bytes(content)
    with pytest.raises(tt.RunError, match=message) as caught:
        reader(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kept_bytes", [0.3, 0.999])
def test_a_run_that_breaks_off_is_reported(tmp_path: Path, kept_bytes: float) -> None:
    path = kept(record(value=torch.ones(9))).save(tmp_path / "run.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept_bytes * len(whole))])
    with pytest.raises(tt.RunError, match="it breaks off or was damaged"):
        tt.open(path)


def test_a_pickle_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    torch.save({"weight": torch.ones(1)}, path)
    with pytest.raises(tt.RunError, match=r"a pickle or a zip, .*read by torch\.load\('"):
        tt.open(path)


@pytest.mark.parametrize("text", ["{oops", "[]", '{"format": 2}', '{"format": "x"}'])
def test_a_header_that_is_damaged_is_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.safetensors"
    save_file({"weight": torch.ones(1)}, path, metadata={"torchtap": text})
    with pytest.raises(tt.RunError, match=r"Write it again with run\.save"):
        tt.open(path)


def test_a_directory_and_a_missing_file_are_reported_with_the_runs_near(tmp_path: Path) -> None:
    path = kept(record(value=torch.ones(1))).save(tmp_path / "new" / "run.safetensors")
    with pytest.raises(tt.RunError, match=r"is a folder and no run.*; did you mean") as caught:
        tt.open(path.parent)
    assert repr(str(path)) in str(caught.value)
    with pytest.raises(FileNotFoundError, match=r"There is no run at .*did you mean") as missing:
        tt.open(path.parent / "ran.safetensors")
    assert repr(str(path)) in str(missing.value)
    with pytest.raises(FileNotFoundError, match="there is no directory"):
        tt.open(tmp_path / "other" / "run.safetensors")


def test_a_name_unlike_every_run_there_is_answered_with_the_first_three(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Whole paths are alike by their directory.
    for name in ("four", "one", "three", "two"):
        kept(record()).save(f"{name}.safetensors")
    with pytest.raises(FileNotFoundError) as caught:
        tt.open("8")
    first = "'four.safetensors' or 'one.safetensors' or 'three.safetensors'"
    assert str(caught.value).endswith(f"did you mean {first}?")
    with pytest.raises(FileNotFoundError) as caught:
        tt.open("two.safetensor")
    assert "did you mean 'two.safetensors'" in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(tt.RunError, match="is a device or a pipe; expected a file"):
        tt.open(tmp_path / "pipe")


def test_a_run_is_not_saved_over_a_directory(tmp_path: Path) -> None:
    with pytest.raises(tt.RunError, match="is a directory; expected a file to write") as caught:
        kept(record(value=torch.ones(1))).save(tmp_path)
    assert repr(str(tmp_path / "run.safetensors")) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_reported_by_its_name(tmp_path: Path) -> None:
    path = Path("/proc/run.safetensors")  # Where even root makes no file.
    with pytest.raises(OSError, match=r"/proc/run\.safetensors") as caught:
        kept(record(value=torch.ones(1))).save(path)
    assert "The run was not written to /proc/run.safetensors" in caught.value.__notes__[0]


@pytest.mark.parametrize("reader", [tt.open, inventory_of_file])
def test_a_safetensors_file_that_torchtap_did_not_write_is_reported(
    reader: Any, tmp_path: Path
) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.ones(1)}, path)
    with pytest.raises(tt.RunError, match="torchtap did not write it"):
        reader(path)


@pytest.mark.parametrize("reader", [tt.open, inventory_of_file])
def test_a_folder_is_no_run(reader: Any, tmp_path: Path) -> None:
    with pytest.raises((tt.RunError, OSError)):
        reader(tmp_path)


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    for reader in (tt.open, inventory_of_file):
        with pytest.raises(FileNotFoundError):
            reader(tmp_path / "nothing")


@pytest.mark.parametrize("reader", [tt.open, inventory_of_file])
@pytest.mark.parametrize(
    ("number", "way_out"), [(1, r"Write it again with run\.save"), (99, "Update it")]
)
def test_another_format_is_reported(reader: Any, number: int, way_out: str, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    body = {"format": number, "meta": {}, "records": [], "absent": []}
    save_file({"a": torch.ones(1)}, path, metadata={"torchtap": json.dumps(body)})
    said = rf"has format {number}; this torchtap reads format 2\. {way_out}"
    with pytest.raises(tt.RunError, match=said):
        reader(path)


def test_a_run_with_an_overwritten_value_cannot_be_saved_as_right(tmp_path: Path) -> None:
    model = nn.Identity()
    with tt.watch(model, copy="never") as w:
        x = torch.ones(1)
        model(x)
        x += 1
    with pytest.raises(tt.OverwrittenError):
        w.run.save(tmp_path / "run.safetensors")
    assert list(tmp_path.iterdir()) == []
