"""The way out that the evidence of a program points to comes first, and repairs the program.

Each program has a message for which another cause is more usual: the note must tell the two apart
by names, shapes and the source.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from error_programs.alternatives import NAMES, assert_repaired, note_of

pytestmark = pytest.mark.filterwarnings("ignore")

TWO_LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(20, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        h = self.fc1(x).relu()
        return {}

net, x = Net(), torch.randn(4, 20)
out = net(x)
"""
PICTURE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.fc = nn.Linear(8 * 36, 10)

    def forward(self, x):
        h = self.conv(x)
        return self.fc(h.flatten(1))

net, batch = Net(), torch.randn(1, 1, 6, 6)
out = net(batch.squeeze(0))
"""
EMBEDDINGS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(10, 4), nn.Embedding(200, 4)

    def forward(self, user, item):
        return self.users(user) * self.items(item)

net, user, item = Net(), torch.tensor([3, 4]), torch.tensor([120, 77])
out = net(item, user)
"""
POSITIONS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 4), nn.Embedding(8, 4)

    def forward(self, x):
        return self.tokens(x) + self.places(torch.arange(x.size(0)))

net, x = Net(), torch.randint(0, 50, (16, 6))
out = net(x)
"""
ITEMS = """
texts, pictures = nn.Linear(32, 8), nn.Linear(64, 8)
batch = {"img": torch.randn(4, 64), "text": torch.randn(4, 32)}
out = texts(batch["img"])
"""
SIZES = """
class Net(nn.Module):
    def __init__(self, hidden, wide):
        super().__init__()
        self.fc = nn.Linear(wide, hidden)

    def forward(self, x):
        return self.fc(x)

wide, hidden = 8, 32
net, x = Net(wide, hidden), torch.randn(2, 8)
out = net(x)
"""
POOL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(1, 4, 3), nn.MaxPool2d(2)
        self.fc = nn.Linear(4 * 9, 10)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.flatten(1))

net, x = Net(), torch.randn(2, 1, 8, 8)
out = net(x)
"""
SEGMENTS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.segments = nn.Embedding(50, 4), nn.Embedding(2, 4)

    def forward(self, x, part):
        return self.tokens(x) + self.segments(x)

net, x, part = Net(), torch.randint(10, 50, (2, 6)), torch.zeros(2, 6).long()
out = net(x, part)
"""
NAMES_MEANT = [
    (
        SEGMENTS,
        "part, int64[2, 6], is read nowhere in forward: if it is meant here, self.segments(part).",
        "self.segments(x)",
        "self.segments(part)",
        "assert torch.equal(out, net.tokens(x) + net.segments(part))",
    ),
    (
        ITEMS,
        "batch['text'], float32[4, 32], fits: if it is meant here, texts(batch['text']).",
        'batch["img"]',
        'batch["text"]',
        'assert torch.equal(out, texts(batch["text"]))',
    ),
    (
        SIZES,
        "gives wide in the place of hidden, and hidden in that of wide: if that is a mistake, "
        "Net(hidden, wide).",
        "Net(wide, hidden)",
        "Net(hidden, wide)",
        "assert out.shape == (2, 32)",
    ),
    (
        POOL,
        "self.pool is called nowhere in forward: if it is to shrink the input, call it first.",
        "x = self.conv(x)",
        "x = self.pool(self.conv(x))",
        "assert torch.equal(out, net.fc(net.pool(net.conv(x)).flatten(1)))",
    ),
    (
        TWO_LAYERS.format("self.fc2(x)"),
        "h, float32[4, 64], is read nowhere in forward: if it is meant here, self.fc2(h).",
        "self.fc2(x)",
        "self.fc2(h)",
        "assert torch.equal(out, net.fc2(net.fc1(x).relu()))",
    ),
    (
        TWO_LAYERS.format("self.fc1(h)"),
        "if another layer is meant here, call that, such as self.fc2, which takes this",
        "self.fc1(h)",
        "self.fc2(h)",
        "assert torch.equal(out, net.fc2(net.fc1(x).relu()))",
    ),
    (
        EMBEDDINGS,
        "gives item in the place of user, and user in that of item: if that is a mistake, "
        "net(user, item).",
        "net(item, user)",
        "net(user, item)",
        "assert torch.equal(out, net.users(user) * net.items(item))",
    ),
]
DIMENSIONS_LOST = [
    (
        PICTURE,
        "If the batch of one was lost at train.py:18, keep it there: batch.squeeze(0) takes it out",
        "batch.squeeze(0)",
        "batch",
        "assert out.shape == (1, 10)",
    ),
    (
        "x = torch.rand(16, 1, 8, 8)\nconv = nn.Conv2d(1, 4, 3)\nout = conv(x.squeeze())",
        "squeeze() takes out every dimension of one, that of a batch of one as well: leave it out, "
        "x.",
        "x.squeeze()",
        "x",
        "assert out.shape == (16, 4, 6, 6)",
    ),
    (
        "logits, y = torch.randn(16, 10), torch.randint(0, 10, (16,))\n"
        "pred = logits.argmax(0)\nright = (pred == y).sum()",
        "if it is to leave [16], take dimension 1 away: logits.argmax(1).",
        "argmax(0)",
        "argmax(1)",
        "assert int(right) == sum(int(row.argmax()) == int(c) for row, c in zip(logits, y))",
    ),
    (
        "pictures = [torch.rand(3, 6, 6) for _ in range(4)]\nx = torch.cat(pictures)\n"
        "conv = nn.Conv2d(3, 8, 3)\nout = conv(x)",
        "If torch.cat joined 4 pictures of 3, give them a batch: torch.stack in its place.",
        "torch.cat(",
        "torch.stack(",
        "assert out.shape == (4, 8, 4, 4)",
    ),
]
PLACES = [
    (
        "img = torch.rand(12, 12, 3)\nmean = torch.tensor([0.4, 0.5, 0.6])[:, None, None]\n"
        "out = img - mean",
        "If the channels of img stand last, put them first: img.movedim(-1, 0).",
        "img - mean",
        "img.movedim(-1, 0) - mean",
        "assert torch.allclose(out[2], img[..., 2] - 0.6)",
    ),
    (
        "rewards, values = torch.rand(10), torch.rand(11)\nout = rewards - values",
        "If values has one step more, such as the state after the last step, leave that out: "
        "values[:-1]",
        "rewards - values",
        "rewards - values[:-1]",
        "assert out.shape == (10,)",
    ),
    (
        "w, x, y = torch.tensor([1.0, 2.0, 3.0]), torch.randn(2, 3, 8, 8), torch.ones(2, 3, 8, 8)\n"
        "loss = F.binary_cross_entropy_with_logits(x, y, pos_weight=w)",
        "If w has one number for each of the 3 in dimension 1 of x, say so: w[:, None, None].",
        "pos_weight=w",
        "pos_weight=w[:, None, None]",
        "assert torch.allclose(loss, (F.softplus(-x).mean((0, 2, 3)) * w).mean(), atol=1e-6)",
    ),
    (
        "p, y = torch.randn(2, 3, 8, 8), torch.randint(0, 2, (2, 8, 8, 3)).float()\n"
        "loss = F.binary_cross_entropy_with_logits(p, y)",
        "put them in that of p: y.movedim(-1, 1).",
        "(p, y)",
        "(p, y.movedim(-1, 1))",
        "assert torch.allclose(loss, F.binary_cross_entropy_with_logits(p.movedim(1, -1), y))",
    ),
    (
        "x, mask = torch.rand(4, 9, 8), torch.rand(9, 4) > 0.5\nout = x[mask]",
        "If its dimensions stand in the other order: x[mask.mT].",
        "x[mask]",
        "x[mask.mT]",
        "assert len(out) == int(mask.sum())",
    ),
    (
        "x = torch.randn(2, 10)\nbest = x.topk(5, dim=0)",
        "If dimension 1 is meant, which has 10, say so: dim=1.",
        "dim=0",
        "dim=1",
        "assert best.values.shape == (2, 5)",
    ),
    (
        POSITIONS,
        "counts dimension 0 of x: if the positions stand in dimension 1, torch.arange(x.size(1)).",
        "x.size(0)",
        "x.size(1)",
        "assert out.shape == (16, 6, 4)",
    ),
    (
        "q, k = torch.randn(2, 8, 5, 16), torch.randn(2, 8, 7, 16)\nout = q @ k.transpose(1, 2)",
        "To sum over the last dimensions, transpose the last two alone: "
        "k.mT, which gives [2, 8, 5, 7].",
        "k.transpose(1, 2)",
        "k.mT",
        "assert torch.allclose(out[1, 2, 3, 4], q[1, 2, 3] @ k[1, 2, 4], atol=1e-5)",
    ),
]
PARTS = [
    (
        "qkv = torch.rand(2, 5, 30)\nq, k, v = qkv.split(8, dim=2)",
        "If they are 3 equal parts: qkv.split(10, dim=2).",
        "split(8, dim=2)",
        "split(10, dim=2)",
        "assert torch.equal(torch.cat((q, k, v), 2), qkv)",
    ),
    (
        "gates = torch.rand(3, 16)\ni, f, g, o = gates.chunk(4)",
        "If the parts stand in another dimension, say which: gates.chunk(4, dim=1).",
        "chunk(4)",
        "chunk(4, dim=1)",
        "assert torch.equal(g, gates[:, 8:12])",
    ),
    (
        "x, k = torch.rand(1, 3, 8, 8), torch.rand(1, 1, 3, 3)\nout = F.conv2d(x, k)",
        "If each channel is filtered by itself: k.expand(3, -1, -1, -1) as the kernel, with "
        "groups=3.",
        "(x, k)",
        "(x, k.expand(3, -1, -1, -1), groups=3)",
        "assert torch.allclose(out[:, 1:2], F.conv2d(x[:, 1:2], k), atol=1e-6)",
    ),
]
JOINED = [
    (
        "labels, img = torch.rand(4, 3), torch.randn(4, 1, 6, 6)\n"
        "out = torch.cat([img, labels], 1)",
        "If labels has numbers for each sample, put them at each place: labels[:, :, None, None]"
        ".expand(-1, -1, 6, 6).",
        "labels]",
        "labels[:, :, None, None].expand(-1, -1, 6, 6)]",
        "assert torch.equal(out[2, 1:, 5, 5], labels[2])",
    ),
    (
        "pictures = [torch.rand(3, 8, 8), torch.rand(1, 8, 8)]\nout = torch.stack(pictures)",
        "some of them grey, give all three channels: .convert('RGB') where they are read, or "
        "x.expand(3, -1, -1).",
        "torch.stack(pictures)",
        "torch.stack([x.expand(3, -1, -1) for x in pictures])",
        "assert out.shape == (2, 3, 8, 8)",
    ),
    (
        "e = torch.randn(10, 32)\nm, _ = e.max(1)\nout = e - m",
        "keep what it takes away: e.max(1, keepdim=True).",
        "e.max(1)",
        "e.max(1, keepdim=True)",
        "assert bool((out.amax(1) == 0).all())",
    ),
    (
        "layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)\n"
        "net, x = nn.TransformerEncoder(layer, 1), torch.rand(4, 6, 8)\n"
        "pad = torch.zeros(4, 6).bool()\npad[:, -1] = True\nout = net(x, pad)",
        "hand it over as such, True where a key is padding: src_key_padding_mask=pad.",
        "net(x, pad)",
        "net(x, src_key_padding_mask=pad)",
        "assert out.shape == (4, 6, 8)",
    ),
]
MEANINGS = [
    (
        "probs = torch.softmax(torch.randn(4, 3), 1)\nout = F.one_hot(probs, 3)",
        "if each row holds the scores of classes, take the class of the greatest: "
        "probs.argmax(-1).",
        "(probs, 3)",
        "(probs.argmax(-1), 3)",
        "assert torch.equal(out.argmax(1), probs.argmax(1))",
    ),
    (
        "scores = torch.rand(2, 3)\nattention_mask = torch.tensor([[1, 1, 0], [1, 1, 1]])\n"
        'out = scores.masked_fill(attention_mask, float("-inf"))',
        "If 1 marks what is kept, as a tokenizer says it, fill the rest: attention_mask == 0.",
        "(attention_mask,",
        "(attention_mask == 0,",
        "assert torch.isinf(out).sum() == 1 and torch.isinf(out[0, 2])",
    ),
    (
        "p, y = torch.randn(4), torch.tensor([True, False, True, False])\n"
        "loss = F.binary_cross_entropy_with_logits(p, y)",
        "The loss computes with 0 and 1: give it y.float().",
        "(p, y)",
        "(p, y.float())",
        "assert torch.allclose(loss, F.softplus(torch.where(y, -p, p)).mean())",
    ),
    (
        "scores, y = torch.randn(4, 1), torch.tensor([0.0, 1.0, 1.0, 0.0])\n"
        "loss = F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.reshape(scores.shape).float())",
        "F.cross_entropy(scores, y)",
        "F.binary_cross_entropy_with_logits(scores, y.reshape(scores.shape).float())",
        "s = torch.where(y > 0, -scores[:, 0], scores[:, 0])\n"
        "assert torch.allclose(loss, F.softplus(s).mean())",
    ),
    (
        "loss = F.mse_loss(torch.rand(3), torch.rand(3))\ntotal = loss.data[0]",
        "Take the number itself: loss.data.item()",
        "loss.data[0]",
        "loss.data.item()",
        "assert total == float(loss)",
    ),
    (
        "x, columns = torch.rand(4, 10), torch.tensor([1, 3])\nout = x[range(4), columns]",
        "x[torch.as_tensor(range(4))[:, None], columns].",
        "x[range(4), columns]",
        "x[torch.as_tensor(range(4))[:, None], columns]",
        "assert torch.equal(out, x[:, [1, 3]])",
    ),
]


@pytest.mark.parametrize(
    NAMES, [*NAMES_MEANT, *DIMENSIONS_LOST, *PLACES, *PARTS, *JOINED, *MEANINGS]
)
def test_the_way_that_the_evidence_points_to_is_first(
    source: str, way: str, old: str, new: str, meaning: str, tmp_path: Path
) -> None:
    first = re.search(r" 1\. (.*?)( 2\. |$)", note_of(source, tmp_path))
    assert first is not None and way in first[1], first
    assert_repaired(source, way, old, new, meaning, tmp_path)


@pytest.mark.parametrize(
    ("source", "refuted"),
    [
        # The first call took 20, so the layer cannot be made for 64.
        (TWO_LAYERS.format("self.fc1(h)"), "make the layer take it"),
        # A layer made it, with a batch in front.
        (
            "a, b = nn.Linear(16, 128), nn.Linear(256, 4)\nout = b(a(torch.randn(2, 16)))",
            "is one sample",
        ),
        # Sizes are equal where the product sums.
        ("out = torch.bmm(torch.rand(4, 5, 6), torch.rand(8, 6, 3))", "A product sums over"),
        # A batch of one makes three dimensions of two, and four are asked for.
        ("out = torch.rand(4, 16).mean((2, 3))", "unsqueeze(0)"),
        # The channels stand behind the batch already.
        ("img = torch.rand(2, 3, 8, 8)\nout = img.permute(2, 0, 1)", "permute(0, 3, 1, 2)"),
        # The same function is called with them in their order, too.
        (
            "def one(p, q):\n    return p @ q\n\ndef both(p, q):\n    return one(p, q) + one(q, p)"
            "\n\nboth(torch.rand(3, 4), torch.rand(4, 5))",
            "in the place of",
        ),
        # Classes of one dimension are not one-hot.
        (
            "p, y = torch.randn(4, 3).argmax(1), torch.tensor([0, 1, 2, 0])\n"
            "loss = F.cross_entropy(p, y)",
            "y.argmax(1)",
        ),
    ],
)
def test_a_way_that_the_evidence_refutes_is_left_out(
    source: str, refuted: str, tmp_path: Path
) -> None:
    note = note_of(source, tmp_path)
    assert " 1. " in note and refuted not in note, note
