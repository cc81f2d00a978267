"""Notes that name the right operand, and whose first way out repairs and keeps the meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from error_programs.program import PRELUDE, Program, error_of, run

pytestmark = pytest.mark.filterwarnings("ignore")


def note_of(source: str, folder: Path) -> str:
    error = error_of(Program("of a test", "", source, "", "", ()), folder)
    return " ".join(error.__notes__[0].split())


@pytest.mark.parametrize(
    ("source", "says", "never"),
    [
        (
            "model = nn.Sequential(nn.Linear(3, 2))\nmodel.head = nn.Linear(2, 2)\n"
            "model(torch.ones(2, 3)).double() @ model.head(torch.ones(2, 2))",
            ("of one dtype",),
            ("was set as an attribute of an nn.Sequential",),
        ),
        (
            "model = nn.Sequential(nn.Linear(3, 2))\nmodel.head = nn.Linear(2, 2)\n"
            "model(torch.ones(2, 3, dtype=torch.float64))",
            ("0 (Linear) has parameters of float32",),
            ("was set as an attribute of an nn.Sequential",),
        ),
        (
            "model = nn.Sequential(nn.Linear(3, 2))\nmodel.add_module('fc{i}', nn.Linear(2, 2))\n"
            "model[0].double()\nmodel(torch.ones(2, 3, dtype=torch.float64))",
            ("fc{i} (Linear) has parameters of float32",),
            ("has braces",),
        ),
        (
            "F.batch_norm(torch.ones(2, 3, dtype=torch.complex64), None, None, training=True)",
            ("not there for complex64",),
            ("which torch.backends", "enabled.", ".float()"),
        ),
        (
            "F.nll_loss(torch.zeros(2, 3, dtype=torch.complex64), torch.tensor([0, 1]))",
            (),
            ("which _Reduction", "get_enum(reduction).", ".float()"),
        ),
        (
            "counts = torch.zeros(3, dtype=torch.int64)\nfor i in range(3):\n    counts[i] += 0.5",
            ("If counts is to hold floats",),
            ("Go by the dtype",),
        ),
        (
            "net = nn.BatchNorm1d(2)\nstate = net.state_dict()\nfor key in state:\n"
            "    state[key] *= 0.5",
            ("Go by the dtype of each item", "if state[key].is_floating_point()"),
            (".long()", " int("),
        ),
        (
            "rows = [torch.tensor([1, 2]), torch.tensor([3])]\ntorch.tensor(rows)",
            ("torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)",),
            ("int(x)", "torch.stack(rows)"),
        ),
        (
            "from torch.utils.data import DataLoader\n"
            "def joined(batch):\n    return torch.stack(batch)\n"
            "list(DataLoader([torch.ones(2), torch.ones(3)], batch_size=2, collate_fn=joined))",
            ("torch.stack takes tensors of one shape", "pad_sequence(batch, batch_first=True)"),
            ("the DataLoader stacks", "DataLoader(..."),
        ),
        (
            "a, b = torch.ones(4, 3), torch.ones(4, 2)\ntorch.cat([a, b])",
            ("concatenate along it: dim=1",),
            ("F.pad",),
        ),
        (
            "torch.tensor([[torch.tensor([1, 2]), torch.tensor([3, 4])]])",
            ("is put together by torch.stack",),
            ("int(x)",),
        ),
        (
            "x = torch.rand(1, 3, 8, 8, 3)\nF.interpolate(x, size=(4, 4), mode='bilinear')",
            ("mode='bilinear' takes 4 dimensions",),
            ("Give one number for each", "grey"),
        ),
        (
            "from torch.utils.data import DataLoader\nlen(DataLoader([1, 2, 3], sampler=2))",
            ("The sampler of the DataLoader is of type int", "yields the numbers of samples"),
            ("__len__(self) in int", "batch_size"),
        ),
        (
            "F.one_hot(torch.tensor([0., 1.]), 3)",
            ("torch.tensor([0., 1.]) is used as an index", "torch.tensor([0., 1.]).long()"),
            ("3 is used", "3.long()", "> 0", "holds"),
        ),
        (
            "y = torch.ones(3, dtype=torch.int32)\nF.one_hot(y, num_classes=3)",
            ("y is used as an index and holds int32; expected int64", "y.long()"),
            ("floats",),
        ),
        (
            "x = torch.rand(3, 3)\nx.scatter(1, torch.rand(3, 3), x)",
            ("torch.rand(3, 3) is used as an index;",),
            ("x is used", "x.long()"),
        ),
        (
            "x, i = torch.rand(3, 3), torch.rand(3)\nx[0, i * 2]",
            ("i * 2 is used as an index;", "(i * 2).long()"),
            ("x is used",),
        ),
        (
            "torch.tensor([1, 2, 3], requires_grad=True)",
            ("torch.tensor([1, 2, 3], dtype=torch.float32, requires_grad=True)",),
            ("1.float()", "operand"),
        ),
        (
            "n = 3\ntorch.zeros(n, 2, dtype=torch.int64, requires_grad=True)",
            ("torch.zeros(n, 2, dtype=torch.float32, requires_grad=True)",),
            ("operand", "n.float()"),
        ),
        (
            "nn.Parameter(torch.arange(3))",
            ("make it of floats: nn.Parameter(torch.arange(3).float())", "a buffer"),
            ("data.float()",),
        ),
        (
            "x = torch.arange(4)\nx[:2] += 0.5",
            ("x[:2], which is written into, holds int64", "x = x.float()"),
            ("x[:2] = x[:2].float()",),
        ),
        (
            "target = torch.rand(3) > 0.5\nF.binary_cross_entropy(torch.rand(3), target.long())",
            ("target.long() holds int64",),
            ("and target holds",),
        ),
        (
            "nn.Conv2d(3, 4, 3)(torch.ones(28, 28))",
            ("1. Give it its 3 channels in front: an input of [3, 28, 28]",),
            ("unsqueeze",),
        ),
        (
            "nn.Conv1d(3, 4, 2)(torch.ones(2, 10, 3))",
            ("If the channels stand last (NLC), put them behind the batch: ", ").movedim(-1, 1)"),
            ("NHWC",),
        ),
        (
            "x = torch.arange(12)\n(x+1).reshape(5, -1)",
            ("12 is no multiple of 5",),
            ("-1 in its place",),
        ),
        (
            "torch.rand(3).view(2, 2)",
            ("1. Give sizes whose product is 3; it is 4.",),
            ("-1 in its place",),
        ),
        (
            "x = torch.rand(3, 4)\nx[torch.ones(7, dtype=torch.bool)]",
            ("Make torch.ones(7, dtype=torch.bool) of their size, 3",),
            (") = x > 0", "x[:, "),
        ),
        (
            "x = torch.rand(3, requires_grad=True)\ncopy.deepcopy(x * 2)",
            ("deepcopy came to a tensor, which was computed",),
            ("came to x", " x.detach()"),
        ),
        (
            "a = torch.rand(3, requires_grad=True)\ntorch.autograd.grad(a * a, a)",
            ("gradients of a * a", "torch.ones_like(a * a)", "(a * a).sum()"),
            ("of output", "output."),
        ),
        (
            "net = nn.Sequential(nn.Linear(2, 2))\nnet[0].weight.requires_grad_(False)\n"
            "torch.autograd.grad(net(torch.rand(2)).sum(), net[0].weight)",
            ("with respect to 0.weight", "Call net[0].weight.requires_grad_()"),
            ("Call 0.weight",),
        ),
        (
            "torch.tensor([torch.rand(2), torch.rand(2)])",
            ("1. Join them: torch.stack([torch.rand(2), torch.rand(2)])",),
            (),
        ),
        (
            "import numpy\ntorch.relu(numpy.ones(3))",
            ("1. Convert it: torch.from_numpy(numpy.ones(3)).float()",),
            ("from_numpy(input)",),
        ),
        (
            "F.embedding(torch.tensor([11]), torch.rand(10, 4))",
            ("1. If there are as many, give it a row for each",),
            ("module = nn.Embedding",),
        ),
        (
            "F.mse_loss(torch.rand(3, 1), torch.rand(4, 3))",
            ("1. If the samples of a batch stand there", "2. Make what produces"),
            (".mT",),
        ),
        (
            "nn.BatchNorm1d(4)(torch.rand(2, 5, 4))",
            ("1. If the last dimension, of 4, holds the channels, put them behind the batch",),
            (),
        ),
    ],
)
def test_a_note_says_what_is_true_of_the_operand(
    source: str, says: tuple[str, ...], never: tuple[str, ...], tmp_path: Path
) -> None:
    note = note_of(source, tmp_path)
    for part in says:
        assert part in note
    for part in never:
        assert part not in note


@pytest.mark.parametrize(
    ("source", "way", "old", "new"),
    [
        ("out = nn.Conv2d(1, 4, 3)(x)", "x.unsqueeze(0)", "(x)", "(x.unsqueeze(0))"),
        (
            "out = nn.Conv3d(1, 4, 3)(torch.ones(5, 6, 7))",
            "Add the channel: torch.ones(5, 6, 7).unsqueeze(0)",
            "(torch.ones(5, 6, 7))",
            "(torch.ones(5, 6, 7).unsqueeze(0))",
        ),
        (
            "y = torch.ones(3, 4)\nout = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))(y)",
            "If [3, 4] is one sample, and no batch of 3, add the batch: x.unsqueeze(0)",
            "(y)",
            "(y.unsqueeze(0))",
        ),
        (
            "out = nn.LayerNorm(28)(x[:, :5])",
            "If dimension 0 is to be normalized, move it to the end",
            "(x[:, :5])",
            "(x[:, :5].movedim(0, -1)).movedim(-1, 0)",
        ),
        (
            "out = x[:5][:, torch.ones(28) > 0][torch.ones(28, dtype=torch.bool)]",
            "[:, torch.ones(28, dtype=torch.bool)]",
            "[torch.ones(28, dtype",
            "[:, torch.ones(28, dtype",
        ),
    ],
)
def test_the_first_way_out_repairs(
    source: str, way: str, old: str, new: str, tmp_path: Path
) -> None:
    source = f"x = torch.ones(28, 28)\n{source}\n"
    assert way in note_of(source, tmp_path).partition(" 1. ")[2].partition(" 2. ")[0]
    assert isinstance(run(PRELUDE + source.replace(old, new), tmp_path)["out"], torch.Tensor)


STRAIGHT = """
w = torch.tensor([1., 2., 3.], requires_grad=True)
h = w * w
first = h.sum()
first.backward()
loss = (h * w).sum()
loss.backward()
"""


@pytest.mark.parametrize("loss", ["loss.backward()", "(h * w).sum().backward()"])
def test_a_graph_that_is_used_twice_outside_of_a_loop_is_kept(loss: str, tmp_path: Path) -> None:
    """The derivative of the sum of w**2 and w**3 is 2w + 3w**2; with ``h`` detached it is not."""
    source = STRAIGHT.replace("loss.backward()", loss)
    note = note_of(source, tmp_path)
    assert "1. Give retain_graph=True to the earlier backward" in note
    assert "detach()" in note.partition(" 3. ")[2]
    assert "If only its value is meant" in note.partition(" 3. ")[2]
    fixed = source.replace("first.backward()", "first.backward(retain_graph=True)")
    w = run(PRELUDE + fixed, tmp_path)["w"]
    assert torch.equal(w.grad, torch.tensor([5.0, 16.0, 33.0]))
