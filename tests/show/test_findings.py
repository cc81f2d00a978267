"""Findings of rules in the page of a report, and in ``torchtap top``."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import torch
from click.testing import CliRunner
from small_trainings import WHERE, blobs, classifier, train
from torch import nn

import torchtap as tt
from torchtap.cli.app import cli
from torchtap.show.live.diagnosed import Diagnosed


def _softmaxed() -> nn.Sequential:
    torch.manual_seed(0)
    return classifier().append(nn.Softmax(1))


def test_the_page_has_the_findings_with_links_to_site_and_step(tmp_path: Path) -> None:
    x, y = blobs(num=32 * 40)
    x[32 * 20 : 32 * 21] *= 1e4
    run = train(_softmaxed(), data=(x, y))
    page = tt.report(run, tmp_path / "page.html").read_text()
    section = page[page.index('id="panel-diagnosis"') :]
    links = re.findall(r'href="(#site=[^"]+)">([^<]+)', section)
    assert links[0] == ("#site=.%3Aoutput&amp;step=20", "alarm: bad_batch at ., step 20")
    assert links[1][0] == "#site=3%3Aoutput&amp;step=0"
    assert "cross_entropy takes logits" in section


def test_a_healthy_run_has_a_page_that_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    page = tt.report(train(classifier()), tmp_path / "page.html").read_text()
    section = page[page.index('id="panel-diagnosis"') :]
    assert "Nothing was found." in section[:400]


def test_a_name_that_looks_like_html_stays_text(tmp_path: Path) -> None:
    parts = [("a", nn.Linear(12, 32)), ("<b>x", nn.Dropout(0.95)), ("c", nn.Linear(32, 4))]
    run = train(nn.Sequential(OrderedDict(parts)), steps=6)
    page = tt.report(run, tmp_path / "page.html").read_text()
    section = page[page.index('id="panel-diagnosis"') :].partition("</section>")[0]
    assert "dropout_high at &lt;b&gt;x" in section
    assert "<b>x" not in section


def test_top_shows_what_rules_find(tmp_path: Path) -> None:
    train(_softmaxed(), to=[tt.Disk(tmp_path / "run"), tt.Stats()], steps=12)
    found = CliRunner().invoke(cli, ["top", str(tmp_path / "run"), "--once"], standalone_mode=False)
    assert "alarm: double_softmax at 3, steps 0 to 11" in found.output
    assert found.return_value == 0, "its exit code is for what is not finite"


def test_looks_are_some_seconds_apart(tmp_path: Path) -> None:
    model = _softmaxed()
    x, y = blobs()
    with tt.watch(model, WHERE, to=[tt.Disk(tmp_path / "run"), tt.Stats()]) as w:
        seen = Diagnosed(tmp_path / "run")
        assert seen.findings(now=0.0) == ()
        for _ in range(6):
            nn.functional.cross_entropy(model(x), y).backward()
            w.step()
        w.sync()
        assert seen.findings(now=1.0) == ()
        found = [one.rule for one in seen.findings(now=6.0)]
    assert "double_softmax" in found
