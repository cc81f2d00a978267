"""One message of several programs: the note has the way out of each, under its condition.

Each program is run as it is written by the way out whose condition holds for it, and is compared
with what it means. A way that fits another program of the same message stands under a condition.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from error_programs.alternatives import NAMES, assert_repaired, note_of

pytestmark = pytest.mark.filterwarnings("ignore")

LINEAR = [
    (
        "images, fc = torch.rand(4, 1, 6, 6), nn.Linear(36, 2)\nout = fc(images)",
        "flatten them: images.flatten(1)",
        "fc(images)",
        "fc(images.flatten(1))",
        "assert torch.equal(out, fc(images.reshape(4, 36)))",
    ),
    (
        "conv, fc = nn.Conv1d(4, 8, 3), nn.Linear(8, 2)\nout = fc(conv(torch.ones(2, 4, 20)))",
        "If dimension 1, of 8, holds the features, move it: conv(torch.ones(2, 4, 20)).mT.",
        "fc(conv(torch.ones(2, 4, 20)))",
        "fc(conv(torch.ones(2, 4, 20)).mT)",
        "assert out.shape == (2, 18, 2)",
    ),
    (
        "heads, fc = torch.rand(2, 4, 5, 3), nn.Linear(12, 2)\nout = fc(heads)",
        "join them behind the positions: heads.transpose(1, 2).flatten(2).",
        "fc(heads)",
        "fc(heads.transpose(1, 2).flatten(2))",
        "assert torch.allclose(out[1, 2], fc(heads[1, :, 2].flatten()), atol=1e-6)",
    ),
    (
        "a, b, fc = nn.Linear(3, 4), nn.Linear(8, 2), torch.rand(5, 3)\n"
        "h = torch.cat((a(fc), a(fc)), 0)\nout = b(h)",
        "join them side by side: torch.cat(..., dim=-1), which gives 8.",
        "a(fc)), 0)",
        "a(fc)), -1)",
        "assert out.shape == (5, 2)",
    ),
    (
        "x, fc = torch.rand(2, 4, 5, 5), nn.Linear(100, 3)\nout = fc(x.view(-1, 25))",
        "The reshape made 8 of 2 rows: keep those, .flatten(1) in its place.",
        "fc(x.view(-1, 25))",
        "fc(x.flatten(1))",
        "assert torch.allclose(out[1], fc(x[1].flatten()), atol=1e-6)",
    ),
]
BROADCAST = [
    (
        "x, mean = torch.rand(4, 3, 8, 8), torch.tensor([0.1, 0.2, 0.3])\nout = x - mean",
        "If mean has one number for each of the 3 in dimension 1 of x, say so: mean[:, "
        "None, None].",
        "x - mean",
        "x - mean[:, None, None]",
        "assert torch.equal(out[:, 2], x[:, 2] - 0.3)",
    ),
    (
        "scores, seen = torch.zeros(3, 4, 6, 6), torch.ones(3, 6)\nseen[1, 5] = 0\n"
        "out = scores.masked_fill(seen == 0, -1.0)",
        "If its dimensions are the dimensions 0 and 3 of scores, say so: (seen == 0)[:, "
        "None, None, :].",
        "seen == 0, -1.0",
        "(seen == 0)[:, None, None, :], -1.0",
        "assert out.sum() == -24 and bool((out[1, :, :, 5] == -1).all())",
    ),
    (
        "normals = torch.randn(4, 3, 5, 5)\nsize = normals.pow(2).sum(1).repeat(3, 1, 1, 1)\n"
        "out = normals / (size + 1e-6)",
        "exchange them: (size + 1e-6).transpose(0, 1).",
        "(size + 1e-6)",
        "(size + 1e-6).transpose(0, 1)",
        "assert torch.equal(out, normals / (normals.pow(2).sum(1, keepdim=True) + 1e-6))",
    ),
    (
        "low, high = torch.rand(2, 8, 6, 6), torch.rand(2, 8, 7, 7)\nout = low + high",
        "resize one: F.interpolate(low, size=high.shape[2:])",
        "low + high",
        "F.interpolate(low, size=high.shape[2:]) + high",
        "assert out.shape == high.shape",
    ),
]
RESHAPES = [
    (
        "x = torch.rand(5, 784)\nout = x.view(8, 1, 28, 28)",
        "dimension 0 is 5 here and not 8: take it from the input, or let it be computed, "
        "x.view(-1, 1, 28, 28).",
        "x.view(8, 1",
        "x.view(-1, 1",
        "assert out.shape == (5, 1, 28, 28) and torch.equal(out[4].flatten(), x[4])",
    ),
    (
        "x = torch.rand(2, 16, 12, 12)\nout = x.view(-1, 400)",
        "flatten it: x.flatten(1); its rows have 2304 elements",
        "x.view(-1, 400)",
        "x.flatten(1)",
        "assert torch.equal(out[1], x[1].flatten())",
    ),
]
LOSSES = [
    (
        "scores, y = torch.randn(4, 1), torch.tensor([1, 0, 1, 0])\n"
        "loss = F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.reshape(scores.shape).float())",
        "F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.reshape(scores.shape).float())",
        "p = scores[:, 0].sigmoid()\n"
        "assert torch.allclose(loss, -torch.where(y == 1, p, 1 - p).log().mean())",
    ),
    (
        "scores, y = torch.randn(4, 3), torch.tensor([[1, 1, 0], [0, 0, 1], [1, 0, 0], "
        "[0, 0, 0]])\n"
        "loss = F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.float())",
        "F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.float())",
        "p = scores.sigmoid()\n"
        "assert torch.allclose(loss, -torch.where(y == 1, p, 1 - p).log().mean())",
    ),
    (
        "scores, y = torch.randn(2, 8, 3), torch.randint(0, 3, (8,))\n"
        "loss = F.cross_entropy(scores, y)",
        "take one of what stands before it, such as the last: scores[-1].",
        "(scores, y)",
        "(scores[-1], y)",
        "assert torch.allclose(loss, -scores[1].log_softmax(1)[torch.arange(8), y].mean())",
    ),
    (
        "m = torch.tensor([[0, 1], [255, 1]])\nout = F.one_hot(m, num_classes=2)",
        "give it none of the places: F.one_hot(m.masked_fill(m == 255, 0), 2) * (m != "
        "255)[..., None].",
        "F.one_hot(m, num_classes=2)",
        "F.one_hot(m.masked_fill(m == 255, 0), 2) * (m != 255)[..., None]",
        "assert out.tolist() == [[[1, 0], [0, 1]], [[0, 0], [0, 1]]]",
    ),
]
INDICES = [
    (
        "p, y = torch.rand(4, 9), torch.tensor([1, 8, 2, 0])\nout = p[y]",
        "take one of each row: p[torch.arange(len(p)), y].",
        "p[y]",
        "p[torch.arange(len(p)), y]",
        "assert out.tolist() == [float(row[at]) for row, at in zip(p, y)]",
    ),
    (
        "x, m = torch.arange(5.0), torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])\nout = x[m]",
        "1. If 1 marks what is chosen, make a mask of it: m > 0.",
        "x[m]",
        "x[m > 0]",
        "assert out.tolist() == [0, 2, 4]",
    ),
    (
        "x, at = torch.rand(2, 10, 6), torch.tensor([[3, 1], [0, 9]])\nout = x.gather(1, at)",
        "give the index their dimension: at[..., None].expand(-1, -1, 6).",
        "gather(1, at)",
        "gather(1, at[..., None].expand(-1, -1, 6))",
        "assert torch.equal(out, torch.stack([x[0, [3, 1]], x[1, [0, 9]]]))",
    ),
    (
        "emb = nn.Embedding(5, 2)\nuser = torch.tensor([1, 5])\nout = emb(user)",
        "1. If they are counted from 1, count them from 0: user - 1.",
        "emb(user)",
        "emb(user - 1)",
        "assert torch.equal(out[1], emb.weight[4])",
    ),
]
LAYERS = [
    (
        "att, x = nn.MultiheadAttention(8, 2), torch.rand(2, 5, 8)\n"
        "mask = torch.zeros(2, 5).bool()\n"
        "out, _ = att(x, x, x, key_padding_mask=mask)",
        "If the batch stands first in the input, say so where the layer is made: batch_first=True",
        "nn.MultiheadAttention(8, 2)",
        "nn.MultiheadAttention(8, 2, batch_first=True)",
        "assert torch.allclose(out[1], att(x[1:], x[1:], x[1:])[0][0], atol=1e-6)",
    ),
    (
        "gru, x = nn.GRU(8, 3, batch_first=True), torch.rand(4, 5, 8)\n"
        "h = torch.ones(4, 1, 3)\nout, _ = gru(x, h)",
        "1. If the batch stands first in the state, turn it: .transpose(0, 1)",
        "gru(x, h)",
        "gru(x, h.transpose(0, 1))",
        "assert torch.allclose(out[2], gru(x[2], torch.ones(1, 3))[0], atol=1e-6)",
    ),
    (
        "picture = torch.rand(8, 6, 3)\nout = F.interpolate(picture, size=(4, 3))",
        "1. If it is one picture, [height, width, channels]",
        "F.interpolate(picture, size=(4, 3))",
        "F.interpolate(picture.movedim(-1, 0)[None], size=(4, 3))[0].movedim(0, -1)",
        "assert torch.equal(out, picture[::2, ::2])",
    ),
    (
        "norm, x = nn.LayerNorm(6), torch.rand(4, 6)\nout = norm(x.mean(1))",
        "1. x, [4, 6], ends with 6, and .mean(...) took that away",
        "x.mean(1)",
        "x.mean(0)",
        "assert torch.allclose(out.mean(), torch.zeros(()), atol=1e-6)",
    ),
]
PROGRAMS = [*LINEAR, *BROADCAST, *RESHAPES, *LOSSES, *INDICES, *LAYERS]


@pytest.mark.parametrize(NAMES, PROGRAMS)
def test_the_way_out_of_a_program_is_among_the_alternatives(
    source: str, way: str, old: str, new: str, meaning: str, tmp_path: Path
) -> None:
    assert_repaired(source, way, old, new, meaning, tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        "nn.Linear(5, 1)(torch.rand(5, 100))",
        "nn.Conv2d(16, 4, 3)(torch.rand(2, 8, 9, 9))",
        "x, v = torch.rand(6, 4), torch.rand(6)\nx / v",
        "F.cross_entropy(torch.rand(64, 10), torch.randint(0, 10, (16,)))",
        "nn.BatchNorm1d(8)(torch.rand(4, 5, 8))",
        "nn.LSTM(8, 16, batch_first=True)(torch.rand(4, 10, 6))",
        "torch.rand(5).softmax(1)",
        "nn.Embedding(10, 4)(torch.tensor([1, 12]))",
        "torch.stack([torch.rand(3), torch.rand(4)])",
        "x = torch.zeros(3, dtype=torch.long)\nx += 0.5",
        "nn.Linear(4, 2)(torch.randint(0, 5, (3, 4)))",
    ],
)
def test_a_first_way_out_that_is_not_sure_has_a_condition(source: str, tmp_path: Path) -> None:
    note = note_of(source, tmp_path)
    first = note.partition(" ways out 1. ")[2].partition(" 2. ")[0]
    assert first.startswith("If "), note
    assert " 2. " in note, note
