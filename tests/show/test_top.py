"""``torchtap top``: what a frame says of runs in which something was planted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from live_runs import PoisonedGradient, blocks, train, training, wait_for
from torch import nn

import torchtap as tt
from torchtap.cli.app import cli, run as command
from torchtap.core.text import breadth
from torchtap.show.live.controls import Controls
from torchtap.show.live.feeds import RunFeed, feed_of, follow
from torchtap.show.live.keys import keys_in
from torchtap.show.live.screen import SORTS
from torchtap.show.live.verdicts import Rank, times
from torchtap.show.live.view import Entry, Frame, View, selected
from torchtap.show.live.window import RECENT, Window


def look(path: Path, *, finite: bool = False) -> Frame:
    view = View(path)
    view.update()
    return view.frame(finite=finite)


def texts(entries: Sequence[Entry]) -> list[str]:
    return [one.text for one in entries]


def shown(path: Path, *words: str) -> tuple[int, str]:
    """Exit code and text of ``torchtap top --once``."""
    found = CliRunner().invoke(cli, ["top", str(path), "--once", *words], standalone_mode=False)
    return int(found.return_value or 0), found.output


def poison_input_of_second(step: int, net: nn.Sequential) -> None:
    """From step 12 on a value is NaN that block 2 makes between its own layers."""
    if step == 12:
        net[2].change = lambda x: torch.where(x == x.max(), torch.nan, x)  # type: ignore[assignment]


# ---------------------------------------------------------------------- not finite


def test_the_first_bad_site_comes_first_and_the_last_finite_frame_is_kept(tmp_path: Path) -> None:
    train(tmp_path / "run", 20, change=poison_input_of_second)
    frame = look(tmp_path / "run")
    assert frame.is_bad
    assert frame.step == 19
    # By step and order of execution: parameters are NaN from the update of step 12 on.
    assert texts(frame.entries)[:3] == ["2.second:input", "2.second:output", "2:output"]
    assert [one.verdict.is_origin for one in frame.entries[:3]] == [True, False, True]
    assert "1 NaN" not in frame.entries[0].verdict.reason  # Now all are.
    forward, backward, optimizer = frame.origins
    assert (forward.entry, forward.first.step, forward.row[9]) == ("2.second:input", 12, 1)
    assert forward.first.reason == "finite in, bad out: made in the forward of 2 itself"
    assert (backward.first.way, backward.first.step) == ("backward", 12)
    assert backward.first.reason == optimizer.first.reason == "follows the forward"
    assert frame.finite_step == 11
    finite = look(tmp_path / "run", finite=True)
    assert finite.step == 11
    assert not finite.is_bad
    assert list(finite.scalars["loss"].steps) == list(range(12))
    assert frame.scalars["loss"].first_bad == 12


def test_a_gradient_that_turns_bad_has_its_origin_in_the_backward(tmp_path: Path) -> None:
    def poison(step: int, net: nn.Sequential) -> None:
        if step == 12:
            net[3].change = PoisonedGradient.apply  # type: ignore[assignment]

    train(tmp_path / "run", 14, change=poison)
    first = look(tmp_path / "run").origins[0]
    # It comes out of the function between the layers of block 3: the activation is given it.
    assert (first.first.way, first.entry, first.first.step) == ("backward", "3.act:grad_output", 12)
    inside = [one for one in look(tmp_path / "run").entries if one.text == "3:grad_input"]
    assert inside[0].verdict.is_origin  # Into block 3 a finite gradient goes.


def test_a_module_that_makes_bad_of_finite_is_named(tmp_path: Path) -> None:
    class Root(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sqrt()

    net = nn.Sequential(nn.Linear(4, 8), Root(), nn.Linear(8, 1))
    train(tmp_path / "run", 3, net=net)
    frame = look(tmp_path / "run")
    assert frame.origins[0].entry == "1:output"
    assert frame.origins[0].first.reason == "finite in, bad out"
    assert frame.finite_step is None  # It was never finite.


def test_bad_gradients_of_skipped_steps_are_no_alarm(tmp_path: Path) -> None:
    """Steps that a ``GradScaler`` skips: Inf is said once, and the exit code is 0."""
    net = blocks()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sinks = [tt.Disk(tmp_path / "run", values=None), tt.Stats()]
    with tt.watch(net, "*:output,param_grad", to=sinks) as w:  # type: ignore[arg-type]
        for step in range(6):
            optimizer.zero_grad()
            (net(torch.ones(4, 4)).mean() * (torch.inf if step == 2 else 1.0)).backward()
            if step != 2:
                optimizer.step()
            w.step()
    frame = look(tmp_path / "run")
    assert not frame.is_bad
    worst = frame.entries[0].verdict
    assert worst.rank is Rank.WAS_NOT_FINITE
    assert worst.reason.endswith("in step 2, finite since")


def test_a_mask_of_minus_infinity_comes_after_what_turned_bad(tmp_path: Path) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.softmax(-1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.soft, self.fc = Masked(), nn.Linear(4, 1)
            self.is_bad = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.soft(x.masked_fill(torch.tensor([False, True, False, False]), -torch.inf))
            return self.fc(hidden * (torch.nan if self.is_bad else 1.0))

    net: Any = nn.Sequential(Net())

    def turn_bad(step: int, net: nn.Sequential) -> None:
        net[0].is_bad = step >= 5  # type: ignore[assignment]

    train(tmp_path / "fine", 4, net=net, where="*:input,output")
    frame = look(tmp_path / "fine")
    assert not frame.is_bad
    assert frame.entries[0].verdict.reason == "16 -Inf in every step: a mask?"
    train(tmp_path / "bad", 8, net=nn.Sequential(Net()), change=turn_bad, where="*:input,output")
    frame = look(tmp_path / "bad")
    assert frame.entries[0].text == "0.fc:input"
    assert frame.is_bad


# ---------------------------------------------------------------------- magnitudes


def test_sites_that_leave_their_past_come_before_those_that_do_not(tmp_path: Path) -> None:
    def grow(step: int, net: nn.Sequential) -> None:
        if step == 30:
            net[1].change, net[3].change = (lambda x: 1000 * x), (lambda x: 0 * x)  # type: ignore[assignment]

    train(tmp_path / "run", 31, change=grow, where="*:input,output")
    frame = look(tmp_path / "run")
    reasons = {one.text: one.verdict.reason for one in frame.entries}
    assert texts(frame.entries)[0] == "3.second:input"
    assert reasons["3.second:input"].startswith("all zero; its past is ")
    assert reasons["1.second:input"].startswith("exploding: ")
    factor = float(reasons["1.second:input"].split()[1].rstrip("x").replace(",", ""))
    assert 300 < factor < 3000
    assert not frame.is_bad
    assert all(not reasons[name] for name in ("0:output", "1:input"))


def test_a_site_far_from_its_neighbours_is_named(tmp_path: Path) -> None:
    net = blocks(8)
    net[4].change = lambda x: 1e-6 * x  # type: ignore[assignment]
    train(tmp_path / "run", 3, net=net, where="*.second:input")
    (far,) = [one for one in look(tmp_path / "run").entries if one.verdict.reason]
    assert far.text == "4.second:input"
    assert far.verdict.reason.startswith("1/")
    assert far.verdict.reason.endswith(" of nearby")


def test_a_run_of_values_says_what_one_of_statistics_says(tmp_path: Path) -> None:
    for name, sinks in (
        ("values", lambda path: [tt.Disk(path)]),
        ("measured", lambda path: [tt.Disk(path, values=None), tt.Stats()]),
    ):
        train(tmp_path / name, 14, change=poison_input_of_second, sinks=sinks)
    file = tt.open(tmp_path / "measured").save(tmp_path / "file.safetensors")
    frames = [look(tmp_path / "values"), look(tmp_path / "measured"), look(file)]
    assert len({(tuple(sorted(texts(one.entries))), one.step) for one in frames}) == 1
    assert {one.origins[0].entry for one in frames} == {"2.second:input"}
    own = [
        {one.text: one.window.table.last[one.verdict.place] for one in f.entries} for f in frames
    ]
    run = tt.open(tmp_path / "values")
    for site in ("0:output", "1.act:output", "3:grad_input", "0:param[weight]"):
        value = run[site].double()
        for rows in own:
            assert rows[site][0] == value.numel()
            if value.isfinite().all():
                expected = value.square().sum().item()
                assert rows[site][5] == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------------- growing, torn, of ranks


def test_a_view_reads_what_is_new_and_says_what_changed(tmp_path: Path) -> None:
    net = blocks()
    w = train(tmp_path / "run", 12, net=net, is_closed=False)
    w.sync()
    view = View(tmp_path / "run")
    view.update()
    assert (view.frame().step, view.frame().num_new) == (11, 0)
    net[2].change = lambda x: x * torch.nan  # type: ignore[assignment]
    net(torch.ones(2, 4)).sum().backward()
    w.step()
    w.sync()
    view.update()
    frame = view.frame()
    assert (frame.step, frame.num_new, frame.state.name) == (12, 1, "live")
    worse = [one.text for one in frame.entries if one.is_worse]
    assert worse[0] == "2.second:input"
    assert "0:output" not in worse
    w.close()
    view.update()
    assert view.frame().state.name == "done"
    # An attempt that goes on is followed from then on.
    sinks = [tt.Disk(tmp_path / "run", values=None, resume=True), tt.Stats()]
    with tt.watch(blocks(), "*:output", to=sinks) as again:  # type: ignore[arg-type]
        again.step(13)
        for _ in range(2):
            net(torch.ones(2, 4))
            again.step()
        again.sync()
        view.update()
        assert view.frame().state.name == "live"
    assert not view.frame().is_bad


def test_several_ranks_are_one_list(tmp_path: Path) -> None:
    for rank in range(2):
        train(tmp_path / str(rank), 14, change=poison_input_of_second if rank else None)
    home = tmp_path / "0" / "rank-00001"
    (tmp_path / "1" / "rank-00000").rename(home)
    frame = look(tmp_path / "0")
    assert texts(frame.entries)[0] == "rank 1 2.second:input"
    assert frame.origins[0].entry == "rank 1 2.second:input"
    assert len(frame.entries) == 2 * len(look(home).entries)
    (tmp_path / "files").mkdir()
    for rank in range(2):
        tt.open(tmp_path / "0" / f"rank-{rank:05d}").save(
            tmp_path / "files" / f"{rank}.safetensors"
        )
    assert len(look(tmp_path / "files").entries) == len(frame.entries)


def last_step_in(stream: bytes) -> int:
    """The last step of the batches that pyarrow reads of a stream that may be torn."""
    steps = [-1]
    with (
        suppress(StopIteration, pa.ArrowInvalid, OSError),
        pa.ipc.open_stream(pa.BufferReader(stream)) as reader,
    ):
        while True:
            steps += reader.read_next_batch().column("step").to_pylist()
    return max(steps)


def test_a_torn_run_is_shown_as_far_as_it_is_whole(tmp_path: Path) -> None:
    w = train(tmp_path / "run", 60, is_closed=False)
    w.sync()
    (attempt,) = (tmp_path / "run").glob("rank-*/attempt-*")
    whole = (attempt / "statistics.arrows").read_bytes()
    w.close()
    for name in ("statistics.parquet", "series.safetensors", "index.safetensors", "attempt.json"):
        (attempt / name).unlink()
    torn = whole[: len(whole) - 1000]
    (attempt / "statistics.arrows").write_bytes(torn)
    os.utime(attempt, (0, 0))  # Else its process may be about to begin.
    frame = look(tmp_path / "run")
    assert (frame.step, frame.state.name) == (last_step_in(torn), "crashed")
    assert frame.step < last_step_in(whole) == 59
    damaged = bytearray(whole)
    damaged[5000:5100] = bytes(100)
    (attempt / "statistics.arrows").write_bytes(damaged)
    frame = look(tmp_path / "run")
    assert frame.step == 59
    assert "statistics.arrows is damaged" in frame.notes[0]


def test_what_a_view_keeps_does_not_grow_with_the_run(tmp_path: Path) -> None:
    """Its last steps all, and steps at equal distances for the rest."""
    from torchtap.core.site import Site
    from torchtap.show.live.feeds import StepRows
    from torchtap.stats.rows import blank_rows

    window = Window()
    for step in range(5000):
        row = blank_rows(1)
        row[0, [0, 1, 13]], row[0, 5] = 1, float(step) ** 2
        window.take(StepRows(step, [Site("a")], row))
    assert window.num_steps == 5000
    assert RECENT <= len(window.steps) <= 2 * RECENT
    assert window.magnitudes[-1, 0] == 4999
    kept = window.past[:, 0]
    assert 64 <= len(kept) <= 128
    assert set(kept[1:] - kept[:-1]) == {64.0}


# ---------------------------------------------------------------------- the command


def test_a_frame_fits_a_hundred_columns_without_a_colour(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8))
    name = "x" * 300 + "\x1b[31m"
    hostile = nn.Sequential()
    hostile.add_module("first", net)
    hostile.add_module(name, nn.Linear(8, 1))
    train(tmp_path / "run", 12, net=hostile)
    code, text = shown(tmp_path / "run")
    assert code == 0
    assert max(map(breadth, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert "done: step 11" in text
    assert "loss" in text


def test_exit_codes_say_whether_something_is_bad(tmp_path: Path) -> None:
    train(tmp_path / "run", 14, change=poison_input_of_second)
    code, text = shown(tmp_path / "run", "--rows", "2", "--where", "*.second:*")
    assert code == 1
    assert "first not finite, forward: 2.second:input, 1 NaN in step 12" in text
    assert "all was finite in step 11" in text
    rows = text.partition("\nsite")[2].splitlines()[1:3]
    assert [one.split()[0] for one in rows] == ["2.second:input", "2.second:output"]
    assert command(["top", str(tmp_path / "run"), "--once", "--where", "a:b"]) == 2
    assert command(["top", str(tmp_path / "nothing"), "--once"]) == 2
    (tmp_path / "empty").mkdir()
    assert command(["top", str(tmp_path / "empty"), "--once"]) == 2
    (tmp_path / "text.safetensors").write_text("no run")
    assert command(["top", str(tmp_path / "text.safetensors"), "--once"]) == 2


def test_a_run_that_is_not_there_yet_is_an_error_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(["top", str(tmp_path / "run"), "--once"]) == 2
    assert "--wait for a run that is about to begin" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    assert command(["top", str(tmp_path / "run"), "--once"]) == 2
    assert "--wait waits for it" in capsys.readouterr().err


# ---------------------------------------------------------------------- keys


def test_keys_filter_sort_and_scroll() -> None:
    controls = Controls()

    def press(text: str) -> None:
        for key in keys_in(text):
            controls.press(key, page=10, most=35)

    press("/*@Conv2d:grad_output\r")
    assert controls.where == ["*@Conv2d:grad_output"]
    press("/\x7f\x7fx")
    assert "no port 'grad_outpx'" in controls.error
    assert controls.where == ["*@Conv2d:grad_output"]  # The last that meant something.
    press("\x1b")
    assert (controls.where, controls.draft) == (["*@Conv2d:grad_output"], None)
    press("\x1b[B\x1b[B\x1b[6~")
    assert controls.first == 12
    press("\x1b[F")
    assert controls.first == 25
    press("\x1b[A\x1b[5~\x1b[H")
    assert controls.first == 0
    for name in (*SORTS[1:], SORTS[0]):
        press("s")
        assert controls.sort == name
    press("f")
    assert controls.is_finite
    press("q")
    assert controls.has_quit


def test_patterns_choose_the_rows(tmp_path: Path) -> None:
    train(tmp_path / "run", 2)
    view = View(tmp_path / "run")
    view.update()
    frame = view.frame()
    found = texts(selected(frame, view.meta, ["*@Tanh:grad_output"]))
    assert sorted(found) == [f"{n}.act:grad_output" for n in range(1, 5)]
    assert len(selected(frame, view.meta, [])) == len(frame.entries)
    assert selected(frame, view.meta, ["nothing"]) == []


def test_a_factor_is_said_in_words() -> None:
    assert [times(power) for power in (1.0, -2.0, 0.30103, 7.0)] == [
        "10x",
        "1/100 of",
        "2x",
        "1e7x",
    ]


# ---------------------------------------------------------------------- in another process


def top(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-m", "torchtap", "top", *words]
    return subprocess.run(program, capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.slow
def test_a_training_in_another_process_is_followed_until_it_is_killed(tmp_path: Path) -> None:
    with training(tmp_path / "run", bad=200) as process:
        wait_for(process, 100)
        found = top(str(tmp_path / "run"), "--once")
        assert "\nlive: step " in found.stdout
        assert "steps/s" in found.stdout
        wait_for(process, 400)
        found = top(str(tmp_path / "run"), "--once", "--rows", "1")
        assert found.returncode == 1
        assert "forward: 2.second:input, all NaN in step 200; finite in, bad out" in found.stdout
        process.kill()
        process.wait()
        found = top(str(tmp_path / "run"))  # Not a terminal: it prints, and ends with the run.
        assert found.returncode == 1
        assert "\ncrashed: step " in found.stdout


@pytest.mark.slow
def test_top_waits_for_a_run_that_is_about_to_begin(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "torchtap", "top", str(tmp_path / "run"), "--once", "--wait"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as waiting:
        time.sleep(3)
        assert waiting.poll() is None
        train(tmp_path / "run", 3)
        said, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0
    assert "run  Sequential" in said


@pytest.mark.slow
def test_keys_work_on_a_terminal_while_the_training_goes_on(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm-256color"}
    with training(tmp_path / "run", bad=150) as process:
        wait_for(process, 50)
        words = ["-m", "torchtap", "top", str(tmp_path / "run")]
        child = pexpect.spawn(
            sys.executable, words, dimensions=(24, 100), env=environment, encoding="utf-8"
        )
        child.expect("q quits", timeout=30)
        wait_for(process, 300)
        child.expect("first not finite, forward: 2.second:input", timeout=20)
        child.send("/*@Tanh:grad_output\r")
        child.expect("1-4 of 4 by worst", timeout=10)
        child.send("s")
        child.expect("by module", timeout=10)
        child.send("f")
        child.expect("last finite frame: step 149", timeout=10)
        child.setwinsize(12, 60)
        child.expect("last finite frame: step 149", timeout=10)
        child.send("q")
        child.expect(pexpect.EOF, timeout=10)
        child.close()
        assert child.exitstatus == 1


def test_feeds_are_chosen_by_what_there_is(tmp_path: Path) -> None:
    train(tmp_path / "run", 1, sinks=lambda path: [tt.Disk(path)])
    assert isinstance(follow(tmp_path / "run")[0].feed, RunFeed)
    train(tmp_path / "other", 1)
    assert not isinstance(feed_of(tmp_path / "other" / "rank-00000"), RunFeed)
