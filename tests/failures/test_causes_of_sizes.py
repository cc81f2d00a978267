"""Causes that one message of sizes, losses or indices is met with: each has its way out.

The causes are those of ``benchmarks/error_causes.md``. Each program is made small after them, is
repaired by the way out whose condition holds for it, and is compared with what it means.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from error_programs.alternatives import NAMES, assert_repaired, note_of

pytestmark = pytest.mark.filterwarnings("ignore")

RESHAPES = [
    (
        "for n in (8, 5):\n    scores = torch.rand(n, 10)\n    out = scores.view(8, 10)",
        "A last batch may be smaller: drop_last=True of the DataLoader leaves it out.",
        "view(8, 10)",
        "view(-1, 10)",
        "assert torch.equal(out, scores)",
    ),
    (
        "pictures = torch.arange(7 * 4.0).view(7, 4)\nout = pictures.view(-1, 3, 4)",
        "If 3 of dimension 0 belong together, 7 is no multiple of that",
        "pictures.view",
        "pictures[: len(pictures) // 3 * 3].view",
        "assert torch.equal(out[1, 2], pictures[5])",
    ),
    (
        "pos = torch.arange(17.0)[None, :, None].expand(1, 17, 8)\nout = pos.reshape(-1, 4, 4, 8)",
        "leave it out: pos[:, 1:].reshape(-1, 4, 4, 8).",
        "pos.reshape(",
        "pos[:, 1:].reshape(",
        "assert out[0, 0, 0, 0] == 1 and out[0, 3, 3, 0] == 16",
    ),
    (
        "v = torch.rand(2, 9, 8)\nout = v.view(2, 4, 4, 8)",
        "the 9 places are those of a square map, its sides are 3, and not 4 and 4",
        "view(2, 4, 4, 8)",
        "view(2, 3, 3, 8)",
        "assert torch.equal(out[1, 2, 1], v[1, 7])",
    ),
    (
        "x = torch.rand(2, 16, 7, 7)\nout = x.view(2, 16, 9, 9)",
        "take them from the input, x.shape[-2:], which are 7 and 7",
        "9, 9)",
        "*x.shape[-2:])",
        "assert torch.equal(out, x)",
    ),
    (
        "x = torch.rand(2, 5, 32)\nout = x.view(2, 5, 4, 7)",
        "If dimension 2, of 32, is shared out among heads or groups, 4 of them have 8 each.",
        "4, 7)",
        "4, 8)",
        "assert torch.equal(out[0, 1, 2], x[0, 1, 16:24])",
    ),
    (
        "d = torch.rand(2, 3)\nm = torch.tensor([[True, True, False], [True, False, False]])\n"
        "far = d[m].view(2, -1).max(1).values",
        "The rows of m choose from 1 to 2 elements: if the shape is to stay, fill the others, "
        "d.masked_fill(~m, ...)",
        "d[m].view(2, -1)",
        "d.masked_fill(~m, float('-inf'))",
        "assert far.tolist() == [float(row[keep].max()) for row, keep in zip(d, m)]",
    ),
]
PARTS = [
    (
        "a, b = torch.rand(2, 3, 5, 5), torch.rand(2, 5, 5, 4)\nout = torch.cat((a, b), 1)",
        "1. If the channels of b stand last, put them behind the batch: b.movedim(-1, 1).",
        "(a, b)",
        "(a, b.movedim(-1, 1))",
        "assert out.shape == (2, 7, 5, 5) and torch.equal(out[0, 3], b[0, :, :, 0])",
    ),
    (
        "outs = []\nfor n in (4, 4, 3):\n    outs.append(torch.full((n, 2), float(n)))\n"
        "out = torch.stack(outs)",
        "1. If each is what one batch gave, of which the last is smaller, put them one behind the "
        "other: torch.cat(outs).",
        "torch.stack(outs)",
        "torch.cat(outs)",
        "assert out[:, 0].tolist() == [4.0] * 8 + [3.0] * 3",
    ),
    (
        "labels = [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]\nout = torch.tensor(labels)",
        "put them together: torch.nn.utils.rnn.pad_sequence(labels, batch_first=True).",
        "torch.tensor(labels)",
        "torch.nn.utils.rnn.pad_sequence(labels, batch_first=True)",
        "assert out.tolist() == [[1, 2, 3], [4, 5, 0]]",
    ),
    (
        "class Net(nn.Module):\n"
        "    state = None\n"
        "    def forward(self, x):\n"
        "        if self.state is None:\n"
        "            self.state = torch.zeros(len(x), 2)\n"
        "        self.state = self.state + x\n"
        "        return self.state\n"
        "net = Net()\n"
        "for n in (4, 3):\n"
        "    out = net(torch.ones(n, 2))",
        "1. If self.state was kept from an earlier call, with a batch of 4, make it anew for each "
        "that begins: self.state = None between them",
        "    out = net",
        "    net.state = None\n    out = net",
        "assert torch.equal(out, torch.ones(3, 2))",
    ),
    (
        "class Block(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 8, 3, padding=1)\n"
        "        self.cut = nn.Identity()\n"
        "    def forward(self, x):\n"
        "        return self.cut(x) + self.conv(x) if x.dim() == 5 else x + self.conv(x)\n"
        "block = Block()\nout = block(torch.rand(2, 3, 4, 4))",
        "bring it to its channels by a convolution of its own: nn.Conv2d(3, 8, 1).",
        "else x +",
        "else nn.Conv2d(3, 8, 1)(x) +",
        "assert out.shape == (2, 8, 4, 4)",
    ),
    (
        "picture, all_of_them = torch.rand(3, 6, 8), torch.zeros(2, 3, 3, 4)\n"
        "all_of_them[0].copy_(picture) if picture.dim() == 4 else all_of_them.copy_(picture)",
        "If both are pictures, resize one: F.interpolate(picture[None], size=(3, 4))[0]",
        "all_of_them.copy_(picture)",
        "all_of_them.copy_(F.interpolate(picture[None], size=(3, 4))[0])",
        "assert torch.equal(all_of_them[1], picture[:, ::2, ::2])",
    ),
]
LAYERS = [
    (
        "conv = nn.Conv2d(4, 2, 1)\nclips = torch.rand(2, 4, 3, 5, 5)\nout = conv(clips)",
        "join them to the batch: clips.transpose(1, 2).flatten(0, 1).",
        "conv(clips)",
        "conv(clips.transpose(1, 2).flatten(0, 1))",
        "assert torch.allclose(out[4], conv(clips[1, :, 1]), atol=1e-6)",
    ),
    (
        "conv = nn.Conv2d(1, 2, 3)\nx = torch.rand(4, 1, 20, 1)\nout = conv(x)",
        "take that out, x.squeeze(-1), and use nn.Conv1d.",
        "nn.Conv2d(1, 2, 3)\nx = torch.rand(4, 1, 20, 1)\nout = conv(x)",
        "nn.Conv1d(1, 2, 3)\nx = torch.rand(4, 1, 20, 1)\nout = conv(x.squeeze(-1))",
        "assert out.shape == (4, 2, 18)",
    ),
    (
        "net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))\n"
        "with torch.no_grad():\n    out = net(torch.ones(1, 3))",
        "1. If it is not to train now, as no_grad says, call model.eval() before",
        "with torch",
        "net.eval()\nwith torch",
        "assert torch.allclose(out, net[0](torch.ones(1, 3)), atol=1e-4)",
    ),
    (
        "gru = nn.GRU(1, 3, batch_first=True)\nout, _ = gru(torch.rand(4, 9) + 1)",
        "give each step its feature: (torch.rand(4, 9) + 1).unsqueeze(-1).",
        "torch.rand(4, 9) + 1",
        "(torch.rand(4, 9) + 1).unsqueeze(-1)",
        "assert out.shape == (4, 9, 3)",
    ),
    (
        "fc = nn.Linear(4, 2)\nx = torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, "
        "torch.quint8)\nout = fc(x)",
        "leave the quantized numbers before it: x.dequantize(), or DeQuantStub() there.",
        "fc(x)",
        "fc(x.dequantize())",
        "assert torch.allclose(out, fc(torch.ones(3, 4)), atol=1e-6)",
    ),
    (
        "a = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)\nout = a + a",
        "torch.ao.nn.quantized.FloatFunctional() in __init__",
        "a + a",
        "torch.ao.nn.quantized.QFunctional().add(a, a)",
        "assert out.is_quantized",
    ),
    (
        "fc = nn.Linear(4, 2)\nz = torch.full((3, 4), 3 + 4j)\nout = fc(z)",
        "If the magnitude is meant: z.abs()",
        "fc(z)",
        "fc(z.abs())",
        "assert torch.allclose(out, fc(torch.full((3, 4), 5.0)))",
    ),
]
LOSSES = [
    (
        "pred = torch.randn(4, 2, 5)\ntarget = torch.randint(0, 5, (2, 5))\n"
        "target[:, 0] = 0\ntarget = target.T\n"
        "loss = F.cross_entropy(pred.requires_grad_().view(-1, 5), target.reshape(-1))",
        "leave that out before it is flattened: target[1:].",
        "target.reshape(-1)",
        "target[1:].reshape(-1)",
        "assert torch.allclose(loss, F.cross_entropy(pred.movedim(-1, 1), target[1:]), atol=1e-6)",
    ),
    (
        "s = torch.randn(2, 4, 3, 3)\n"
        "m = F.one_hot(torch.randint(0, 4, (2, 3, 3)), 4)\nloss = F.cross_entropy(s, m)",
        "1. If it is one-hot, take its class numbers: m.argmax(-1).",
        "(s, m)",
        "(s, m.argmax(-1))",
        "assert torch.allclose(loss, -(s.log_softmax(1) * m.movedim(-1, 1)).sum() / 18)",
    ),
    (
        "s = torch.randn(1, 2, 4, 5)\ngrey = torch.randint(0, 2, (1, 4, 5, 1)).expand(1, 4, 5, 3)\n"
        "loss = F.cross_entropy(s, grey)",
        "Its channels are equal, as of a grey picture: take one, grey[..., 0].",
        "(s, grey)",
        "(s, grey[..., 0])",
        "assert loss.dim() == 0",
    ),
    (
        "s, y = torch.randn(4, 3, 5, 5), torch.tensor([0, 1, 2, 0])\nloss = F.cross_entropy(s, y)",
        "If each picture has one class, bring the scores to one row for each: s.mean((2, 3))",
        "(s, y)",
        "(s.mean((2, 3)), y)",
        "assert torch.allclose(loss, F.nll_loss(s.mean((2, 3)).log_softmax(1), y))",
    ),
    (
        "p = torch.tensor([1.0000001, 0.5])\n"
        "loss = F.binary_cross_entropy(p, torch.tensor([1.0, 0.0]))",
        "1. If only rounding brings them outside, cut that off: p.clamp(0, 1).",
        "(p,",
        "(p.clamp(0, 1),",
        "assert torch.allclose(loss, torch.tensor(0.5).log().neg() / 2)",
    ),
    (
        "s, y = torch.zeros(2, 1, 3, 3), torch.ones(2, 1, 6, 6)\n"
        "loss = F.binary_cross_entropy_with_logits(s, y)",
        "F.interpolate(s, size=(6, 6), mode='bilinear')",
        "(s, y)",
        "(F.interpolate(s, size=(6, 6), mode='bilinear'), y)",
        "assert torch.allclose(loss, torch.tensor(2.0).log())",
    ),
]
INDICES = [
    (
        "x, m = torch.arange(12.0).view(3, 4), torch.arange(12) % 5 == 0\nout = x[m]",
        "If x was flattened where the mask was made: x[m.reshape(x.shape)].",
        "x[m]",
        "x[m.reshape(x.shape)]",
        "assert out.tolist() == [0, 5, 10]",
    ),
    (
        "x, m = torch.ones(3, 4, 4), torch.zeros(2, 2).bool()\nm[0, 1] = True\nout = x[:, m]",
        "resize it: F.interpolate(m[None, None].float(), size=(4, 4))[0, 0] > 0.5.",
        "x[:, m]",
        "x[:, F.interpolate(m[None, None].float(), size=(4, 4))[0, 0] > 0.5]",
        "assert out.shape == (3, 4)",
    ),
    (
        "q, a = torch.rand(3, 4), torch.eye(4)[[2, 0, 3]]\nout = q[torch.arange(3), a]",
        "If each row marks one of several, as one-hot, take its place: a.argmax(1).",
        "(3), a]",
        "(3), a.argmax(1)]",
        "assert out.tolist() == [float(q[0, 2]), float(q[1, 0]), float(q[2, 3])]",
    ),
    (
        "maps = torch.rand(2, 4, 4)\nout = F.interpolate(maps, size=(2, 2))",
        "give them a channel and take that away again: F.interpolate(maps.unsqueeze(1), ...)."
        "squeeze(1).",
        "F.interpolate(maps, size=(2, 2))",
        "F.interpolate(maps.unsqueeze(1), size=(2, 2)).squeeze(1)",
        "assert torch.equal(out, maps[:, ::2, ::2])",
    ),
]
DIMENSIONS = [
    (
        "kept = {'losses': torch.zeros(0)}\nfor n in range(3):\n    loss = torch.tensor(n + 0.5)\n"
        "    kept['losses'] = torch.cat((kept['losses'], loss.data))",
        "1. If it is one more element behind the others, give it the dimension: "
        "loss.data.unsqueeze(0).",
        "loss.data)",
        "loss.data.unsqueeze(0))",
        "assert kept['losses'].tolist() == [0.5, 1.5, 2.5]",
    ),
    (
        "rates = [torch.tensor(0.5), torch.tensor(1.0)]\nmean = torch.cat(rates).mean()",
        "1. Stack them, which makes the dimension: torch.stack(rates).",
        "torch.cat(rates)",
        "torch.stack(rates)",
        "assert mean == 0.75",
    ),
    (
        "net, columns = nn.Linear(3, 4), torch.zeros(4, 2)\nx = torch.ones(1, 3)\n"
        "for i in range(2):\n    columns[:, i] = net(x).mT.detach()",
        "columns[:, i] has the shape [4], and is given a value of [4, 1], which has more "
        "dimensions.",
        "net(x).mT.detach()",
        "net(x).mT.detach().squeeze(1)",
        "assert torch.equal(columns[:, 1], net(x)[0])",
    ),
    (
        "weights, states = torch.full((3, 5), 0.2), torch.rand(5, 3, 6)\n"
        "context = weights.bmm(states.transpose(0, 1))",
        "make a matrix of one row of it: (weights.unsqueeze(1) @ states.transpose(0, 1))."
        "squeeze(1).",
        "weights.bmm(states.transpose(0, 1))",
        "(weights.unsqueeze(1) @ states.transpose(0, 1)).squeeze(1)",
        "assert torch.allclose(context, states.mean(0), atol=1e-6)",
    ),
    (
        "depth = torch.rand(1, 1, 8, 8)\nout = F.interpolate(depth[:, None], (4, 4))",
        "as by [:, None] of what has its channel already, leave that out: "
        "depth[:, None].squeeze(1).",
        "depth[:, None]",
        "depth[:, None].squeeze(1)",
        "assert torch.equal(out, depth[:, :, ::2, ::2])",
    ),
    (
        "weight = torch.tensor([[1.0, 3.0]])\nloss = nn.CrossEntropyLoss(weight)(torch.zeros(2, 2),"
        " torch.tensor([0, 1]))",
        "make a vector of them where the loss is made, weight.flatten().",
        "(weight)",
        "(weight.flatten())",
        "assert torch.allclose(loss, torch.tensor(2.0).log())",
    ),
    (
        "tokens, size = torch.tensor([7, 11]), 5\nbeams = torch.arange(3) * 10\n"
        "at = tokens / size\nout = beams[at]",
        "1. If it is a quotient of whole numbers, divide without a rest: tokens // size.",
        "tokens / size",
        "tokens // size",
        "assert out.tolist() == [10, 20]",
    ),
    (
        "labels = torch.tensor([[0], [2]])\nmarks = torch.zeros(2, 2).scatter_(1, labels, 1.0)",
        "If labels holds classes, give each a place: 3 or more in dimension 1",
        "zeros(2, 2)",
        "zeros(2, 3)",
        "assert torch.equal(marks, F.one_hot(labels[:, 0], 3).float())",
    ),
    (
        "first, x = True, torch.rand(3)\nout = first and x or x.relu()",
        "Choose by a condition that is no tensor: x if first else x.relu().",
        "first and x or x.relu()",
        "x if first else x.relu()",
        "assert out is x",
    ),
    (
        "back, front = torch.rand(1, 4, 6, 6), torch.rand(1, 4, 6, 6)\n"
        "mask = torch.rand(1, 1, 6, 6)\n"
        "conv = nn.Conv2d(7, 2, 3)\nx = torch.cat((back, front, mask), 1)\nout = conv(x)",
        "If it is put together of pictures, 2 of which may have an alpha channel: "
        ".convert('RGB') of each.",
        "(back, front, mask)",
        "(back[:, :3], front[:, :3], mask)",
        "assert out.shape == (1, 2, 4, 4)",
    ),
    (
        "scores = torch.randn(1, 4, requires_grad=True)\n"
        "loss = F.cross_entropy(scores.view(-1), torch.tensor([2]))\nloss.backward()",
        "scores.view(1, -1) where view(-1) stands",
        "view(-1)",
        "view(1, -1)",
        "assert torch.allclose(scores.grad[0, 2], scores[0].softmax(0)[2] - 1)",
    ),
]
FURTHER = [
    (
        "x, v = torch.zeros(4, 2), torch.arange(8.0).view(4, 2)\n"
        "m = torch.tensor([True, False, True, False])\nx[m] = v",
        "take those at the same places: x[m] = v[m].",
        "= v",
        "= v[m]",
        "assert x.tolist() == [[0, 1], [0, 0], [4, 5], [0, 0]]",
    ),
    (
        "a, b = torch.rand(5, 2), torch.rand(3, 2)\nfar = (a - b).norm(dim=-1)",
        "give the pairs two dimensions: a[:, None] and b[None].",
        "(a - b)",
        "(a[:, None] - b[None])",
        "assert torch.allclose(far, torch.cdist(a, b), atol=1e-5)",
    ),
    (
        "att = nn.MultiheadAttention(8, 2, batch_first=True)\n"
        "q, words = torch.rand(2, 3, 8), torch.rand(2, 5, 12)\nout, _ = att(q, words, words)",
        "of another encoder, say so: att = nn.MultiheadAttention(8, ..., kdim=12, vdim=12).",
        "(8, 2, batch_first=True)",
        "(8, 2, kdim=12, vdim=12, batch_first=True)",
        "assert out.shape == (2, 3, 8)",
    ),
]
PROGRAMS = [*FURTHER, *RESHAPES, *PARTS, *LAYERS, *LOSSES, *INDICES, *DIMENSIONS]


@pytest.mark.parametrize(NAMES, PROGRAMS)
def test_the_cause_of_a_program_has_its_way_out(
    source: str, way: str, old: str, new: str, meaning: str, tmp_path: Path
) -> None:
    assert_repaired(source, way, old, new, meaning, tmp_path)


@pytest.mark.parametrize(
    ("source", "says", "never"),
    [
        # What would raise again is no way out.
        (
            "nn.Conv2d(16, 4, 3)(torch.rand(1, 16, 9, 12, 12))",
            "nn.Conv3d",
            ".squeeze(0)",
        ),
        (
            "y = torch.tensor([[[7, 9], [3, 8]]])\nF.cross_entropy(torch.rand(1, 2, 2, 2), y)",
            "its greys stand for classes",
            "ignore_index",
        ),
        (
            "x = torch.tensor([float('nan'), 0.3])\nF.binary_cross_entropy(x, torch.ones(2))",
            "x holds NaN",
            "sigmoid",
        ),
        (
            "a = [torch.rand(3), torch.rand(2)]\ntorch.tensor(a)",
            "pad_sequence",
            "torch.stack",
        ),
        (
            "F.cross_entropy(torch.rand(3, 5), torch.tensor([[1, 2], [3, 4], [0, 4]]))",
            "scores of [batch, classes, 2]",
            "argmax",
        ),
        # A conversion of a complex input drops what it is.
        (
            "nn.Linear(4, 2)(torch.zeros(3, 4, dtype=torch.complex64))",
            "view_as_real",
            "float32).",
        ),
        # Maps of one input are no parts that follow each other.
        (
            "x, u = torch.rand(1, 3, 61, 60), torch.rand(1, 3, 60, 60)\ntorch.cat((x, u), 1)",
            "F.interpolate(u",
            "dim=2",
        ),
        # The batch of a target that was flattened is not that of a loader.
        (
            "s, y = torch.rand(1, 3, 4, 4, requires_grad=True), torch.zeros(1, 5, 5).long()\n"
            "F.cross_entropy(s.permute(0, 2, 3, 1).reshape(-1, 3), y.view(-1))",
            "resize them to the target there",
            "last batch",
        ),
    ],
)
def test_a_way_that_would_not_help_is_left_out(
    source: str, says: str, never: str, tmp_path: Path
) -> None:
    ways = note_of(source, tmp_path)
    assert says in ways, ways
    assert never not in ways.partition(" ways out ")[2], ways


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "encoder, head = nn.Embedding(9, 8), nn.Linear(12, 2)\n"
            "head(encoder(torch.zeros(2, 3).long()))",
            "If the layer's width of 12 is right, as of loaded weights, take the encoder",
        ),
        (
            "latent = torch.rand(1, 16, 4, 4)\nnn.Conv2d(4, 8, 3)(latent)",
            "If 4 is right, as of loaded weights, give latent that many",
        ),
        (
            "net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Flatten(), nn.Linear(432, 2))\n"
            "net(torch.rand(2, 1, 8, 8))",
            "432 is 8 channels of 54 places, and here they are 8 x 8 x 8.",
        ),
        (
            "emb, scores = nn.Embedding(4, 2), torch.arange(6.0)[None]\nemb(scores.argmax(1))",
            "make the layer of the scores give 4, one for each row of the table.",
        ),
        (
            "h, m = torch.rand(2, 9, 4), torch.ones(2, 5).bool()\nh[m]",
            "make m of what it computed with, 9 long",
        ),
    ],
)
def test_a_cause_that_lies_elsewhere_is_said(source: str, says: str, tmp_path: Path) -> None:
    note = note_of(source, tmp_path)
    assert says in note, note


_ELSEWHERE = """
import warnings
warnings.simplefilter("ignore")
import numpy, torch
import torch._lazy.ts_backend
import torchtap as tt
torch._lazy.ts_backend.init()  # A device of PyTorch's own, on any machine.
loss = torch.ones(2, device="lazy")
losses = [loss, loss * 2]
for action in (lambda: loss.numpy(), lambda: numpy.array(losses)):
    try:
        with tt.explain_errors():
            action()
    except TypeError as error:
        print(" ".join(error.__notes__[0].split()))
print(loss.cpu().numpy().tolist(), torch.stack(losses).cpu().numpy().tolist())
"""


def test_an_array_is_made_of_a_copy_on_the_cpu(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(_ELSEWHERE)
    run = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True)
    one, several, values = run.stdout.splitlines()
    assert "loss is on lazy:0" in one
    assert "copy them there: loss.cpu().numpy()." in one
    assert "put them together and copy them there: torch.stack(losses).cpu().numpy()." in several
    assert values == "[1.0, 1.0] [[1.0, 1.0], [2.0, 2.0]]"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (
            "q, a = torch.rand(2, 6), torch.tensor([[17179869185], [1]])\nq.gather(1, a)",
            "make the indices anew, torch.tensor(values, dtype=torch.int64).",
        ),
        (
            "a, b = torch.rand(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)\n"
            "F.cross_entropy(torch.cat((a, b)) * 2, torch.zeros(3).long())",
            "torch.cat put 2 parts one below the other",
        ),
        (
            "F.cross_entropy(torch.rand(103, 4), torch.zeros(95).long())",
            "If the rows are places, such as tokens, give each its label",
        ),
        (
            "torch.distributions.Normal(torch.full((2,), float('nan')), torch.ones(2))",
            "a lower learning rate",
        ),
    ],
)
def test_another_cause_is_said(source: str, says: str, tmp_path: Path) -> None:
    note = note_of(source, tmp_path)
    assert says in note, note
