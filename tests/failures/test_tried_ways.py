"""Ways out that PyTorch refuses again are not offered, and those that it takes are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from error_programs.program import PRELUDE, Program, error_of, run
from torch import nn

from torchtap.failures.failure import Failure
from torchtap.failures.tried_ways import without_refused

pytestmark = pytest.mark.filterwarnings("ignore")


def failed(source: str, folder: Path) -> Failure:
    """Return the failure of a program."""
    return Failure(error_of(Program("", "", source, "", "", ()), folder))


def is_raised(source: str, folder: Path) -> bool:
    """Return whether running a program raises."""
    try:
        run(PRELUDE + source, folder)
    except (RuntimeError, ValueError, IndexError, AssertionError):
        return True
    return False


LINES = [
    # Two expressions for x: the first is refused again, and the second is taken.
    ("x = torch.ones(2, 3)", "x @ torch.ones(2, 4)", "x.unsqueeze(0)", "x.t()"),
    ("x = torch.ones(4, 28, 28)", "nn.Linear(784, 2)(x)", "x.mT", "x.flatten(1)"),
    ("x = torch.ones(8, 8)", "nn.Conv2d(1, 2, 3)(x)", "x[None, None, None]", "x[None]"),
    ("x = torch.ones(3, 2)", "torch.cat([x, torch.ones(3)], 0)", "x.unsqueeze(0)", "x[:, 0]"),
    ("x = torch.ones(5, 3)", "x + torch.ones(5)", "x.flatten()", "x.t()"),
    ("x = torch.ones(5, 3)", "nn.BatchNorm1d(5)(x)", "x[None, None]", "x.t()"),
    ("x = torch.ones(4, 2, 3)", "torch.mm(x, torch.ones(3, 5))", "x.mT", "x[0]"),
    ("x = torch.ones(4, 5, 3)", "F.nll_loss(x, torch.ones(4, 2).long())", "x.mT", "x[:, :, :2]"),
    ("x = torch.ones(5, 1)", "F.binary_cross_entropy(x, torch.ones(5))", "x[None]", "x.squeeze(1)"),
]


def with_new(line: str, new: str) -> str:
    return re.sub(r"(?<=[(\[])x(?!\w)|^x(?= )", f"({new})", line, count=1)


@pytest.mark.parametrize(("made", "line", "refused", "taken"), LINES)
def test_what_is_refused_again_is_left_out(
    made: str, line: str, refused: str, taken: str, tmp_path: Path
) -> None:
    # PyTorch itself says which of the two repairs the program.
    assert is_raised(f"{made}\n{line}", tmp_path)
    assert is_raised(f"{made}\n{with_new(line, refused)}", tmp_path)
    assert not is_raised(f"{made}\n{with_new(line, taken)}", tmp_path)
    ways = (f"If so: {refused}.", f"Else: {taken}.", "Make it fit.")
    assert without_refused(failed(f"{made}\n{line}", tmp_path), ways) == ways[1:]


BELOW = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.fc = nn.Linear(72, 5)

    def forward(self, x):
        x = self.conv({})
        x = self.norm(x)
        return self.fc(x.flatten(1))

net = Net()
x = torch.ones(4, 8, 8)
loss = F.cross_entropy(net(x), torch.ones(4).long())
"""


def test_what_is_refused_on_a_line_below_is_left_out_if_another_way_is_taken(
    tmp_path: Path,
) -> None:
    # With one sample of four channels the convolution, with a batch of one the loss is refused.
    assert is_raised(BELOW.format("x"), tmp_path)
    assert is_raised(BELOW.format("x[None, :1]"), tmp_path)
    assert not is_raised(BELOW.format("x.unsqueeze(1)"), tmp_path)
    failure = failed(BELOW.format("x"), tmp_path)
    below, taken = "One: x[None, :1].", "Each: x.unsqueeze(1)."
    assert without_refused(failure, (below, taken)) == (taken,)
    assert without_refused(failure, (below,)) == (below,)


def test_sizes_that_were_read_before_count_for_nothing_on_the_lines_below(tmp_path: Path) -> None:
    # Where the batch is to be made, further out, n becomes 4 as well, and the view fits.
    source = (
        "def scores(x, w):\n    n = x.size(0)\n    y = torch.bmm({}, w)\n"
        "    y = y.view(n, 10)\n    return y\n\n"
        "x, w = torch.ones(2, 3), torch.ones(4, 3, 5)\nscores(x, w)"
    )
    further_out = source.replace("scores(x, w)", "scores(x.expand(4, 2, 3), w)", 2)
    further_out = further_out.replace("def scores(x.expand(4, 2, 3), w)", "def scores(x, w)")
    assert is_raised(source.format("x"), tmp_path)
    assert not is_raised(further_out.format("x"), tmp_path)
    ways = ("Each: x.expand(4, 2, 3).", "One: x.expand(4, 1, 3).")
    assert without_refused(failed(source.format("x"), tmp_path), ways) == ways


KEPT = [
    # A part in words, a name or an argument that the program does not have, another place.
    "If so: x.unsqueeze(0), or make it wider.",
    "If so: x.view(...).",
    "If so: x[:, i].",
    "If so: y.unsqueeze(0).",
    "If so: x.unsqueeze(0) for a batch of one, x.t() for columns.",
    "If so: x.unsqueeze(0); else x.t().",
    "Make it wider, w.repeat(2, 1), and turn the other: x.unsqueeze(0).",
    "Change it.",
]


@pytest.mark.parametrize("way", KEPT)
def test_what_cannot_be_tried_stays(way: str, tmp_path: Path) -> None:
    failure = failed("x = torch.ones(2, 3)\nx @ torch.ones(2, 4)", tmp_path)
    assert without_refused(failure, (way,)) == (way,)


def test_a_layer_in_what_the_line_calls_is_not_taken_as_tried(tmp_path: Path) -> None:
    line = "nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.InstanceNorm2d(3))(torch.randn(2, 3, 4, 4))"
    way = "Normalise over the channels of a sample: nn.GroupNorm(1, channels)."
    assert not is_raised(line.replace("InstanceNorm2d(3)", "GroupNorm(1, 3)"), tmp_path)
    assert without_refused(failed(line, tmp_path), (way,)) == (way,)


def test_an_argument_behind_an_expression_belongs_to_it(tmp_path: Path) -> None:
    source = "x, k = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 3, 3)\nF.conv2d(x, k{})"
    way = "Each by itself: k.expand(3, -1, -1, -1) as the kernel, with groups=3."
    assert not is_raised(source.format(".expand(3, -1, -1, -1), groups=3"), tmp_path)
    assert without_refused(failed(source.format(""), tmp_path), (way,)) == (way,)


def test_an_expression_may_stand_for_what_the_line_makes_of_its_operand(tmp_path: Path) -> None:
    source = "x = torch.ones(2, 3)\nx.sum(1) + torch.ones(2, 3)"
    right = "Keep it: x.sum(1, keepdim=True)."
    assert not is_raised(source.replace("x.sum(1)", "x.sum(1, keepdim=True)"), tmp_path)
    assert without_refused(failed(source, tmp_path), (right,)) == (right,)


def test_nothing_is_tried_where_the_failure_is_of_values(tmp_path: Path) -> None:
    failure = failed("x = torch.tensor([7])\nF.embedding(x, torch.ones(3, 2))", tmp_path)
    way = "Take fewer: x[None, None, None].view(3, 3)."
    assert without_refused(failure, (way,)) == (way,)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64])
def test_a_trial_leaves_the_program_as_it_is(kind: torch.dtype, tmp_path: Path) -> None:
    source = (
        "ran = []\nnet = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))\n"
        "net.register_forward_hook(lambda *_: ran.append(1))\n"
        f"x = torch.ones(3, 2, dtype={kind})\nnet(x)"
    )
    failure = failed(source, tmp_path)
    names = failure.frames[0].names
    net, x = names["net"], names["x"]
    assert isinstance(net, nn.Module)
    before = {key: (one.clone(), one._version) for key, one in net.state_dict().items()}
    drawn, version, modes = (
        torch.get_rng_state(),
        x._version,
        (torch.is_grad_enabled(), net.training),
    )
    without_refused(failure, ("If so: x.t().", "Else: x.unsqueeze(0).", "x: x.view(1, 6)."))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (torch.is_grad_enabled(), net.training) == modes
    assert x._version == version
    assert not names["ran"]
    for key, one in net.state_dict().items():
        assert torch.equal(one, before[key][0])
        assert one._version == before[key][1]


def test_a_note_without_ways_out_ends_with_what_was_computed(tmp_path: Path) -> None:
    source = "x = torch.ones(3, 2)\ny = torch.ones(3, 2)\ntorch.cat([x, y], 2)"
    note = error_of(Program("", "", source, "", "", ()), tmp_path).__notes__[0]
    assert is_raised(source.replace("[x,", "[x.unsqueeze(0),"), tmp_path)
    assert "x.unsqueeze(0)" not in note
    assert "operand" in note
    assert not note.rstrip().endswith("ways out")
