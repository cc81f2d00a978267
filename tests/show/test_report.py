"""``tt.report``: the file, the data in it, and what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from report_runs import hostile_run, image_run, nan_run, trained_run
from torch import nn

import torchtap as tt
from torchtap.cli.app import cli
from torchtap.core.errors import InputError
from torchtap.show.page.buckets import Buckets


def data_of(text: str) -> Any:
    """Read what another program reads."""
    found = re.search(r'<script id="data"[^>]*data-encoding="([^"]+)">(.*?)</script>', text, re.S)
    assert found is not None
    content = found[2]
    if found[1] == "gzip+base64":
        content = gzip.decompress(base64.b64decode(content)).decode()
    return json.loads(content)


def ends(packed: Any, number: int) -> tuple[list[float], list[float]]:
    """Return the low and the high ends of a number that a page packed."""
    if isinstance(packed, dict):
        return packed["low"], packed["high"]
    values = packed if isinstance(packed, list) else [packed] * number
    return values, values


def floats(values: list[Any]) -> np.ndarray[Any, Any]:
    return np.array([math.nan if one is None else float(one) for one in values])


def test_every_series_in_the_data_is_that_of_the_run(tmp_path: Path) -> None:
    run = nan_run()
    data = data_of(tt.report(run, tmp_path / "a.html").read_text())
    own = data["runs"][0]
    assert own["steps"] == run.steps
    assert set(data["sites"]) == {str(site) for site in run.sites}
    for site in run.sites:
        series = own["series"][str(site)]
        for name in ("std", "absmax", "mean", "nonfinite"):
            low, _ = ends(series[name], len(run.steps))
            np.testing.assert_allclose(floats(low), run.array(site, name), rtol=6e-4)
        zeros = run.array(site, "zeros") / run.array(site, "numel")
        np.testing.assert_allclose(floats(ends(series["zeros"], len(run.steps))[0]), zeros, 6e-4)
    assert own["first_bad"][".:output"] == 5


def test_many_steps_are_drawn_from_their_smallest_to_their_largest_number() -> None:
    values = np.sin(np.arange(1000.0)) * np.arange(1000)
    values[10:20], values[333] = math.nan, 1e9
    buckets = Buckets.of(range(0, 2000, 2), 100)
    low, high = buckets.extremes(values)
    for part, (first, last) in enumerate(zip(buckets.first, buckets.last, strict=True)):
        inside = values[first // 2 : last // 2 + 1]
        if np.isnan(inside).all():
            assert math.isnan(low[part])
        else:
            assert (low[part], high[part]) == (np.nanmin(inside), np.nanmax(inside))
    assert np.nanmax(high) == 1e9
    assert (buckets.first[0], buckets.last[-1], len(low)) == (0, 1998, 100)


def test_findings_name_the_first_bad_site_and_gradients_zero_by_construction(
    tmp_path: Path,
) -> None:
    texts = [
        one["text"]
        for one in data_of(tt.report(nan_run(), tmp_path / "a.html").read_text())["highlights"]
    ]
    assert any("first seen in step 5 at .:input" in one for one in texts)
    data = data_of(tt.report(trained_run(), tmp_path / "b.html").read_text())
    texts = [one["text"] for one in data["highlights"]]
    assert texts[0] == "Everything that was watched is finite in 12 steps."
    assert any(one.startswith("0:param_grad[bias]: zero by construction") for one in texts)
    assert not any("3:param_grad[bias]" in one for one in texts)  # A bias that counts.


def test_a_logged_number_that_is_not_finite_is_a_finding_of_either_run(tmp_path: Path) -> None:
    data = data_of(tt.report(nan_run(), tmp_path / "a.html").read_text())
    texts = [one["text"] for one in data["highlights"]]
    assert "The logged loss was NaN or infinite first in step 5, in 4 steps in all." in texts
    assert data["runs"][0]["bad_scalars"] == {"loss": [0, 0, 0, 0, 0, 1, 1, 1, 1]}
    text = tt.report(trained_run(), tmp_path / "b.html", other=nan_run()).read_text()
    bad = [one["text"] for one in data_of(text)["highlights"] if one["tone"] == "bad"]
    assert len(bad) == 2
    assert all(one.startswith("In the second run: ") for one in bad)


def test_a_module_comes_after_those_inside_of_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2))
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(1, 2))
    sites = data_of(tt.report(w.run, tmp_path / "a.html").read_text())["sites"]
    order = sorted(sites, key=lambda name: sites[name]["depth"])
    assert order == ["0.0:output", "0.1:output", "0:output", "1:output", ".:output"]


def test_one_step_has_shapes_and_no_series(tmp_path: Path) -> None:
    text = tt.report(hostile_run(), tmp_path / "a.html").read_text()
    assert '<td class="shape">float32[1, 2]</td>' in text
    assert "8 sites, step 0" in text
    heading = '<th scope="col" data-column="series"'
    assert heading not in text
    assert heading in tt.report(nan_run(), tmp_path / "b.html").read_text()


def test_a_dead_module_is_a_finding(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    with tt.watch(model, "*:output,grad_output", to=tt.Stats()) as w:
        model(torch.rand(4, 3)).sum().backward()
    texts = [
        one["text"]
        for one in data_of(tt.report(w.run, tmp_path / "a.html").read_text())["highlights"]
    ]
    assert "0:grad_output: the gradient is zero in every step." in texts
    assert "1:output: every element is zero in every step." in texts


def test_feature_maps_are_the_values_to_a_level_of_254(tmp_path: Path) -> None:
    run = image_run()
    (image,) = [
        one
        for one in data_of(tt.report(run, tmp_path / "a.html").read_text())["maps"]
        if one["site"] == "0:output"
    ]
    levels = np.frombuffer(base64.b64decode(image["data"]), dtype=np.uint8)
    levels = levels.reshape(len(image["channels"]), image["height"], image["width"])
    right = run["0:output"][0, image["channels"]].double().numpy()
    is_bad = levels == 255
    assert (is_bad == ~np.isfinite(right)).all()
    assert is_bad.any()
    drawn = image["low"] + levels / 254 * (image["high"] - image["low"])
    step = (image["high"] - image["low"]) / 254
    np.testing.assert_allclose(drawn[~is_bad], right[~is_bad], atol=0.51 * step)


def test_two_runs_stand_side_by_side_with_sites_that_only_one_has(tmp_path: Path) -> None:
    first = trained_run()
    model = nn.Sequential(nn.Linear(4, 4))
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(2, 4))
    data = data_of(tt.report(first, tmp_path / "a.html", other=w.run).read_text())
    assert [len(one["series"]) for one in data["runs"]] == [len(first.sites), 2]
    assert any(one["text"].startswith("Only the first run has") for one in data["highlights"])
    same = data_of(tt.report(first, tmp_path / "b.html", other=first).read_text())
    assert any("Both runs have the same numbers" in one["text"] for one in same["highlights"])


def test_the_page_names_its_scripts_before_any_stands_there(tmp_path: Path) -> None:
    text = tt.report(trained_run(), tmp_path / "a.html").read_text()
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert unescape(policy[1]).startswith("default-src 'none'; script-src 'sha256-")
    assert text.index("Content-Security-Policy") < min(text.index("<style"), text.index("<script"))
    assert "unsafe" not in policy[1]
    assert not re.search(r"(src|href)=.?https?:|url\(|@import", text)


def test_names_stay_text(tmp_path: Path) -> None:
    run = hostile_run()
    text = tt.report(run, tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 2
    assert set(data_of(text)["sites"]) == {str(site) for site in run.sites}


@pytest.mark.parametrize("sink", [None, tt.Memory(), tt.Stats()])
def test_sections_say_what_is_missing(sink: Any, tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    with tt.watch(net, to=sink or tt.Memory()) as w:
        net(torch.ones(1, 2))
    text = tt.report(w.run if sink else tt.Run([]), tmp_path / "a.html").read_text()
    assert "No gradient was watched" in text
    assert "No feature maps" in text
    assert ("No site was recorded" in text) == (sink is None)


def test_a_run_that_grows_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    with tt.watch(net, to=[tt.Disk(tmp_path / "run"), tt.Stats()]) as w:
        net(torch.ones(1, 2))
        w.step()
        w.sync()
        text = tt.report(tt.open(tmp_path / "run"), tmp_path / "a.html").read_text()
    assert ".:output" in data_of(text)["sites"]


def test_the_size_is_kept_or_refused(tmp_path: Path) -> None:
    run = trained_run(200)
    whole = tt.report(run, tmp_path / "a.html").stat().st_size
    small = tt.report(run, tmp_path / "b.html", max_mb=(whole - 1) / 1e6)
    assert small.stat().st_size < whole
    assert "Resolution is reduced" in small.read_text()
    with pytest.raises(InputError, match="at its lowest resolution"):
        tt.report(run, tmp_path / "c.html", max_mb=0.01)
    assert not (tmp_path / "c.html").exists()


def test_a_graph_of_autograd_stands_in_the_page(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    graph = tt.graph(model, torch.ones(2, 3), autograd=True)
    with tt.watch(model, to=tt.Stats()) as w:
        model(torch.ones(2, 3))
    text = tt.report(w.run, tmp_path / "a.html", graph=graph).read_text()
    assert set(re.findall(r'data-path="([^"]*)"', text)) == {"0", "1", "2"}


def test_bad_input_is_named_and_writes_nothing(tmp_path: Path) -> None:
    run = tt.Run([])
    with pytest.raises(InputError, match="run is a str; expected a run"):
        tt.report("run", tmp_path / "a.html")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="other is a int"):
        tt.report(run, tmp_path / "a.html", other=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="is a directory; give the file"):
        tt.report(run, tmp_path)
    with pytest.raises(InputError, match="max_mb is 0; expected a number above 0"):
        tt.report(run, tmp_path / "a.html", max_mb=0)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_page_of_one_run_or_two(tmp_path: Path) -> None:
    path = trained_run().save(tmp_path / "run.safetensors")
    done = CliRunner().invoke(cli, ["report", str(path)])
    assert done.exit_code == 0, done.output
    assert re.search(r"wrote .*run\.html \(\d", done.output)
    out = tmp_path / "two.html"
    done = CliRunner().invoke(cli, ["report", str(path), str(path), "-o", str(out), "--json"])
    assert json.loads(done.output) == {"file": str(out), "nbytes": out.stat().st_size}
    assert len(data_of(out.read_text())["runs"]) == 2
    done = CliRunner().invoke(cli, ["report", str(path), "-o", str(tmp_path / "a.pdf")])
    assert isinstance(done.exception, InputError)


def test_two_runs_have_a_comparison_with_what_departs_first(tmp_path: Path) -> None:
    def recorded(scale: float) -> tt.Run:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
        with torch.no_grad():
            model[2].weight.mul_(scale)
        with tt.watch(model, "*:input,output,param") as w:
            model(torch.ones(2, 4))
            w.step()
        return w.run

    page = tmp_path / "a.html"
    text = tt.report(recorded(1.0), page, other=recorded(1.5)).read_text()
    assert 'id="tab-comparison"' in text and "First at 2:output" in text
    table = text.partition('<table id="differences">')[2].partition("</table>")[0]
    assert table.count("<tr") >= 3 and "weights" in table and "#site=2%3Aoutput" in table
    assert "tab-comparison" not in tt.report(recorded(1.0), page).read_text()
    assert "They do not differ" in tt.report(recorded(1.0), page, other=recorded(1.0)).read_text()
    with tt.watch(odd := nn.Sequential(nn.Conv1d(1, 1, 1)), "0:output") as w:
        odd(torch.ones(1, 1, 2))
    assert "nothing in common" in tt.report(recorded(1.0), page, other=w.run).read_text()
