"""One message of several programs, about objects in place of tensors: the way out of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from error_programs.alternatives import NAMES, assert_repaired, note_of

pytestmark = pytest.mark.filterwarnings("ignore")

_NET = """
class Net(nn.Module):
    def __init__(self, hidden=3):
        super().__init__()
        self.fc = nn.Linear(4, hidden)
{body}
"""
NONE = [
    (
        "def encode(x, mask=None):\n    return x + 1, mask\n\n"
        "head = nn.Linear(2, 1)\nh, m = encode(torch.ones(3, 2))\nout = head(m)",
        "If another part of it is meant: h, assigned beside it.",
        "head(m)",
        "head(h)",
        "assert torch.equal(out, head(torch.full((3, 2), 2.0)))",
    ),
    (
        "def predict(net, x, train=False):\n    if train:\n        return net(x)\n\n"
        "net = nn.Linear(3, 1)\nx = torch.ones(4, 3)\n"
        "loss = F.mse_loss(predict(net, x), torch.zeros(4, 1))",
        "predict returns a value on some of its paths only",
        "        return net(x)",
        "        return net(x)\n    return net(x).detach()",
        "assert torch.allclose(loss, net(x).pow(2).mean())",
    ),
    (
        "def load(path):\n    if path:\n        return nn.Linear(3, 2).state_dict()\n\n"
        "net = nn.Linear(3, 2)\nnet.load_state_dict(load(''))",
        "call it so that it takes the path that has one",
        "load('')",
        "load('a')",
        "assert net.weight.shape == (2, 3)",
    ),
]
PARTS = [
    (
        "data = torch.utils.data.TensorDataset(torch.ones(4, 2), torch.zeros(4, 3))\n"
        "net = nn.Linear(2, 1)\nfor batch in torch.utils.data.DataLoader(data, 2):\n"
        "    out = net(batch)",
        "1. Take the tensor out of it: batch[0].",
        "net(batch)",
        "net(batch[0])",
        "assert torch.equal(out, net(torch.ones(2, 2)))",
    ),
    (
        "def both(x):\n    return x.argmax(1), x\n\n"
        "out = both(torch.ones(2, 3))\nloss = F.cross_entropy(out, torch.tensor([0, 1]))",
        "1. Take the tensor out of it: out[1].",
        "(out, torch",
        "(out[1], torch",
        "assert torch.allclose(loss, torch.tensor(3.0).log())",
    ),
    (
        "conv, batch = nn.Conv2d(3, 4, 3), [torch.ones(2, 3, 5, 5), torch.zeros(2)]\n"
        "out = conv(batch)",
        "1. Take the tensor out of it: batch[0].",
        "conv(batch)",
        "conv(batch[0])",
        "assert out.shape == (2, 4, 3, 3)",
    ),
    (
        "import numpy\n\nconv = nn.Conv2d(3, 4, 3)\nimage = numpy.ones((8, 6, 3), 'uint8')\n"
        "out = conv(image)",
        "Convert it: torch.from_numpy(image).movedim(-1, -3).float().",
        "conv(image)",
        "conv(torch.from_numpy(image).movedim(-1, -3).float())",
        "assert out.shape == (4, 6, 4)",
    ),
    (
        "from collections import namedtuple\n\nOut = namedtuple('Out', 'logits hidden')\n"
        "out = Out(torch.zeros(2, 4), torch.ones(2, 8))\n"
        "loss = F.cross_entropy(out, torch.tensor([0, 1]))",
        "out.logits (float32[2, 4]), or out.hidden (float32[2, 8])",
        "(out, torch",
        "(out.logits, torch",
        "assert torch.allclose(loss, torch.tensor(4.0).log())",
    ),
]
MODULES = [
    (
        _NET.format(
            body="    def forward(self, x):\n        return self.fc(x).view(-1, self.hidden)"
        )
        + "out = Net(5)(torch.ones(2, 4))",
        "1. __init__ takes hidden and does not keep it: assign it there, self.hidden = hidden.",
        "super().__init__()",
        "super().__init__()\n        self.hidden = hidden",
        "assert out.shape == (2, 5)",
    ),
    (
        _NET.format(
            body="        norm = nn.LayerNorm(hidden)\n\n    def forward(self, x):\n"
            "        return self.norm(self.fc(x))"
        )
        + "out = Net()(torch.ones(2, 4))",
        "to the local variable norm, in line 11: write self.norm there.",
        "        norm =",
        "        self.norm =",
        "assert out.mean().abs() < 1e-6",
    ),
    (
        "heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])\nout = heads(torch.ones(1, 4))",
        "1. If each takes the same input: [layer(x) for layer in heads].",
        "heads(torch.ones(1, 4))",
        "[layer(torch.ones(1, 4)) for layer in heads]",
        "assert [tuple(one.shape) for one in out] == [(1, 2), (1, 3)]",
    ),
    (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.act = nn.ReLU\n        self.fc = nn.Linear(4, 2)\n\n"
        "    def forward(self, x):\n        return self.fc(self.act(x))\n\n"
        "net = Net()\nout = net(-torch.ones(1, 4))",
        "then call it: self.act()(x).",
        "self.act(x)",
        "self.act()(x)",
        "assert torch.equal(out[0], net.fc.bias)",
    ),
    (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = nn.Conv2d(3, 2, 3)\n\n    def forward(self, x):\n"
        "        x = self.conv\n        return x.flatten(1)\n\n"
        "out = Net()(torch.ones(1, 3, 4, 4))",
        "1. Call it where it is assigned, in line 13: self.conv(...).",
        "x = self.conv\n",
        "x = self.conv(x)\n",
        "assert out.shape == (1, 8)",
    ),
]
CONDITIONS = [
    (
        "def weighted(x, mask=None):\n    if mask:\n        x = x * mask\n    return x\n\n"
        "out = weighted(torch.ones(3), torch.tensor([1.0, 0, 1]))",
        "1. If it asks whether there is one: mask is not None.",
        "if mask:",
        "if mask is not None:",
        "assert out.tolist() == [1, 0, 1]",
    ),
    (
        "a, b = torch.tensor([1.0, 4]), torch.tensor([2.0, 3])\nout = max(a, b)",
        "1. If the tensors are compared element by element: torch.maximum(a, b).",
        "max(a, b)",
        "torch.maximum(a, b)",
        "assert out.tolist() == [2, 4]",
    ),
    (
        "hits = torch.tensor([True, False, True, True])\nshare = hits.item()",
        "hits.float().mean().item()",
        "hits.item()",
        "hits.float().mean().item()",
        "assert share == 0.75",
    ),
]
ROUNDS = [
    (
        "w = torch.ones(2, requires_grad=True)\ntotal = 0\nfor _ in range(3):\n"
        "    loss = (w * w).sum()\n    total += loss\n    total.backward()",
        "call backward on loss, and add up numbers, total += loss.item().",
        "total += loss\n    total.backward()",
        "total += loss.item()\n    loss.backward()",
        "assert total == 6 and w.grad.tolist() == [6, 6]",
    ),
    (
        "w = torch.ones(2, requires_grad=True)\ntotal = 0.0\nfor _ in range(3):\n"
        "    loss = (w * w).sum()\n    total += loss.item()\ntotal.backward()",
        "1. If loss is the loss: loss.backward(); total is for the log alone.",
        "total += loss.item()\ntotal.backward()",
        "total += loss.item()\n    loss.backward()",
        "assert total == 6 and w.grad.tolist() == [6, 6]",
    ),
    (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc = nn.Linear(2, 2)\n"
        "        self.register_buffer('mean', torch.zeros(2))\n\n    def forward(self, x):\n"
        "        h = self.fc(x)\n        self.mean = 0.9 * self.mean + 0.1 * h.mean(0)\n"
        "        return (h - self.mean).pow(2).mean()\n\n"
        "net = Net()\nfor _ in range(2):\n    loss = net(torch.rand(3, 2))\n    loss.backward()",
        "net.mean = net.mean.detach()",
        "    loss.backward()",
        "    loss.backward()\n    net.mean = net.mean.detach()",
        "assert not net.mean.requires_grad and net.fc.weight.grad is not None",
    ),
]


@pytest.mark.parametrize(NAMES, [*NONE, *PARTS, *MODULES, *CONDITIONS, *ROUNDS])
def test_the_way_out_of_a_program_is_in_its_note(
    source: str, way: str, old: str, new: str, meaning: str, tmp_path: Path
) -> None:
    assert_repaired(source, way, old, new, meaning, tmp_path)


def test_a_way_that_the_values_refute_is_not_in_the_note(tmp_path: Path) -> None:
    uneven = "net = nn.Linear(2, 1)\nnet([torch.ones(3, 2), torch.zeros(3)])"
    assert "torch.stack" not in note_of(uneven, tmp_path)
    numbered = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.fc1 = nn.Linear(2, 2)\n\n    def forward(self, x):\n"
        "        return self.fc2(x)\n\nNet()(torch.ones(1, 2))"
    )
    assert "Did you mean" not in note_of(numbered, tmp_path)
    assigned_once = "x = torch.ones(2)\ny = x(x)"
    assert "was a function before" not in note_of(assigned_once, tmp_path)
