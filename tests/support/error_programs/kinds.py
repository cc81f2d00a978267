"""Dtypes, devices, targets of losses, and indices."""

from __future__ import annotations

from error_programs.program import Program

PROGRAMS = [
    Program(
        "An array of numpy as the input of a Linear",
        "dtypes of a product",
        """
        import numpy

        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        rows = torch.from_numpy(numpy.ones((2, 4)))
        net(rows)  # raises
        """,
        "0 (Linear)",
        "rows = rows.to(torch.float32)",
        (("net(rows)", "net(rows.to(torch.float32))"),),
        ("rows, float64[2, 4], made at train.py:10", "the parameter 0.weight"),
        purpose="assert torch.allclose(result, net(torch.ones(2, 4)))",
    ),
    Program(
        "Pictures of bytes in a convolution",
        "dtypes of a convolution",
        """
        net = nn.Conv2d(3, 4, 3)
        picture = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
        net(picture)  # raises
        """,
        "net (Conv2d)",
        "picture = picture.to(torch.float32)",
        (("net(picture)", "net(picture.to(torch.float32))"),),
        purpose=(
            "want = net.bias[None, :, None, None].expand(1, 4, 6, 6)\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "Half precision against single",
        "dtypes of a product",
        """
        q, k = torch.rand(2, 3).half(), torch.rand(3, 2)
        q @ k  # raises
        """,
        "",
        "k.to(q.dtype)",
        (("q @ k", "q @ k.to(q.dtype)"),),
        ("q (float16) and k (float32)",),
        purpose=(
            "assert result.dtype is torch.float16\n"
            "assert torch.allclose(result.float(), q.float() @ k, atol=1e-2)"
        ),
    ),
    Program(
        "A LayerNorm of whole numbers",
        "mixed dtypes",
        """
        net = nn.LayerNorm(3)
        counts = torch.ones(2, 3, dtype=torch.int64)
        net(counts)  # raises
        """,
        "net (LayerNorm)",
        "counts = counts.to(torch.float32)",
        (("net(counts)", "net(counts.to(torch.float32))"),),
        purpose="assert torch.equal(result, torch.zeros(2, 3))",
    ),
    Program(
        "An input on another device than the model",
        "devices",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to("meta")
        batch = torch.rand(2, 4)
        net(batch)  # raises
        """,
        "0 (Linear)",
        "batch = batch.to('meta')",
        (("net(batch)", "net(batch.to('meta'))"),),
        ("batch, float32[2, 4], made at train.py:8", "0.weight, 0.bias on meta"),
        purpose="assert result.shape == (2, 2)",
    ),
    Program(
        "A mask that is no buffer stays behind",
        "devices",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.mask = torch.ones(4)

            def forward(self, x):
                out = self.fc(x)
                return out * self.mask  # raises

        net = Net().to("meta")
        net(torch.rand(2, 4, device="meta"))
        """,
        "net (Net)",
        "self.register_buffer('mask', ...)",
        (("self.mask = torch.ones(4)", "self.register_buffer('mask', torch.ones(4))"),),
        ("made by fc (Linear) at train.py:14",),
        purpose="assert 'mask' in net.state_dict() and net.mask.device == net.fc.weight.device",
    ),
    Program(
        "Floats as tokens",
        "index dtype",
        """
        net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
        tokens = torch.rand(2, 3)
        net(tokens)  # raises
        """,
        "0 (Embedding)",
        "tokens.long()",
        (("net(tokens)", "net(tokens.long())"),),
        purpose="assert torch.equal(result, net(torch.zeros(2, 3, dtype=torch.int64)))",
    ),
    Program(
        "Floats as an index",
        "index of floats",
        """
        table, order = torch.rand(4, 3), torch.tensor([2.0, 0.0])
        table[order]  # raises
        """,
        "",
        "order.long()",
        (("table[order]", "table[order.long()]"),),
        purpose="assert torch.equal(result, torch.stack([table[2], table[0]]))",
    ),
    Program(
        "Floats added in place to whole numbers",
        "result dtype",
        """
        counts = torch.zeros(3, dtype=torch.int64)
        counts += torch.rand(3)  # raises
        """,
        "",
        "Compute out of place",
        (("counts += torch.rand(3)", "counts = counts + torch.rand(3)"),),
        ("counts, int64[3]",),
        purpose="assert counts.is_floating_point() and 0 <= counts.min() and counts.max() < 1",
    ),
    Program(
        "The mean of whole numbers",
        "mean of integers",
        """
        ages = torch.tensor([3, 5])
        ages.mean()  # raises
        """,
        "",
        "ages.float().mean()",
        (("ages.mean()", "ages.float().mean()"),),
        purpose="assert result == 4",
    ),
    Program(
        "A softmax of whole numbers",
        "kernel not implemented",
        """
        scores = torch.tensor([3, 5])
        scores.softmax(0)  # raises
        """,
        "",
        "scores.float()",
        (("scores.softmax", "scores.float().softmax"),),
        ("scores, int64[2]",),
        purpose="assert torch.allclose(result[1] / result[0], torch.tensor(2.0).exp())",
    ),
    Program(
        "Floats as class numbers",
        "class dtype",
        """
        net = nn.Linear(4, 3)
        labels = torch.tensor([0.0, 2.0])
        loss = F.cross_entropy(net(torch.rand(2, 4)), labels)  # raises
        """,
        "",
        "labels.long()",
        (("4)), labels)", "4)), labels.long())"),),
        ("labels holds float32", "labels, float32[2], made at train.py:8"),
        purpose=(
            "scores = net(torch.rand(2, 4))\n"
            "want = -scores.log_softmax(1)[[0, 1], [0, 2]].mean()\n"
            "assert torch.allclose(F.cross_entropy(scores, labels.long()), want) and loss > 0"
        ),
    ),
    Program(
        "A column of class numbers",
        "class column",
        """
        net, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
        labels = torch.tensor([[0], [2]])
        criterion(net(torch.rand(2, 4)), labels)  # raises
        """,
        "criterion (CrossEntropyLoss)",
        "labels.squeeze(1)",
        (("4)), labels)", "4)), labels.squeeze(1))"),),
        ("labels, int64[2, 1]",),
        purpose=(
            "scores = net(torch.rand(2, 4))\n"
            "want = -scores.log_softmax(1)[[0, 1], [0, 2]].mean()\n"
            "assert torch.allclose(criterion(scores, labels.squeeze(1)), want)"
        ),
    ),
    Program(
        "Classes that are counted from 1",
        "class range",
        """
        net = nn.Linear(4, 3)
        labels = torch.tensor([1, 3])
        scores = net(torch.rand(2, 4))
        F.cross_entropy(scores, labels)  # raises
        """,
        "",
        "labels - 1",
        (("(scores, labels)", "(scores, labels - 1)"),),
        ("scores has 3 classes from 0 to 2", "scores, float32[2, 3], made by net (Linear) at"),
        purpose=(
            "want = -scores.log_softmax(1)[[0, 1], [0, 2]].mean()\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "A language model against its tokens",
        "batch of a loss",
        """
        net = nn.Linear(4, 10)
        logits = net(torch.rand(2, 5, 4))
        tokens = torch.zeros(2, 5, dtype=torch.int64)
        F.cross_entropy(logits.view(-1, 10), tokens.view(-1)[1:])  # raises
        """,
        "",
        "leave out the last row of scores",
        (("logits.view(-1, 10)", "logits.view(-1, 10)[1:]"),),
        ("has 10 rows and",),
        purpose="assert torch.allclose(result, -logits.log_softmax(-1).view(-1, 10)[1:, 0].mean())",
    ),
    Program(
        "Whole numbers as one-hot targets",
        "one-hot of integers",
        """
        scores = nn.Linear(4, 3)(torch.rand(2, 4))
        hot = F.one_hot(torch.tensor([0, 2]), 3)
        F.cross_entropy(scores, hot)  # raises
        """,
        "",
        "hot.argmax(1)",
        (("(scores, hot)", "(scores, hot.argmax(1))"),),
        ("hot, int64[2, 3], made at train.py:8",),
        purpose=(
            "want = -(hot * scores.log_softmax(1)).sum(1).mean()\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "Classes in the last dimension",
        "target of another size",
        """
        logits = nn.Linear(4, 7)(torch.rand(2, 5, 4))
        tokens = torch.zeros(2, 5, dtype=torch.int64)
        F.cross_entropy(logits, tokens)  # raises
        """,
        "",
        "logits.movedim(-1, 1)",
        (("(logits, tokens)", "(logits.movedim(-1, 1), tokens)"),),
        purpose="assert torch.allclose(result, -logits.log_softmax(-1)[..., 0].mean())",
    ),
    Program(
        "Class numbers for a binary cross-entropy",
        "result dtype",
        """
        logits = nn.Linear(4, 1)(torch.rand(2, 4)).squeeze(1)
        labels = torch.tensor([0, 1])
        F.binary_cross_entropy_with_logits(logits, labels)  # raises
        """,
        "",
        "labels.float()",
        (("(logits, labels)", "(logits, labels.float())"),),
        ("labels, int64[2]",),
        purpose=(
            "p = logits.sigmoid()\n"
            "want = -((1 - p[0]).log() + p[1].log()) / 2\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "Class numbers for a binary cross-entropy of probabilities",
        "binary dtype",
        """
        p = nn.Linear(4, 1)(torch.rand(2, 4)).squeeze(1).sigmoid()
        labels = torch.tensor([0, 1])
        F.binary_cross_entropy(p, labels)  # raises
        """,
        "",
        "labels.to(torch.float32)",
        (("(p, labels)", "(p, labels.to(torch.float32))"),),
        purpose=(
            "want = -((1 - p[0]).log() + p[1].log()) / 2\nassert torch.allclose(result, want)"
        ),
    ),
    Program(
        "A column of logits against a row of labels",
        "binary size",
        """
        net, criterion = nn.Linear(4, 1), nn.BCEWithLogitsLoss()
        logits = net(torch.rand(2, 4))
        labels = torch.tensor([0.0, 1.0])
        criterion(logits, labels)  # raises
        """,
        "criterion (BCEWithLogitsLoss)",
        "logits.squeeze(1)",
        (("criterion(logits, labels)", "criterion(logits.squeeze(1), labels)"),),
        ("made by net (Linear) at train.py:8",),
        purpose=(
            "p = logits[:, 0].sigmoid()\n"
            "want = -((1 - p[0]).log() + p[1].log()) / 2\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "Logits for a loss of probabilities",
        "probabilities",
        """
        logits = torch.tensor([3.0, -2.0])
        F.binary_cross_entropy(logits, torch.ones(2))  # raises
        """,
        "",
        "F.binary_cross_entropy_with_logits",
        (("F.binary_cross_entropy(", "F.binary_cross_entropy_with_logits("),),
        ("from -2 to 3",),
        purpose="assert torch.allclose(result, -logits.sigmoid().log().mean())",
    ),
    Program(
        "Too few classes for one_hot",
        "one-hot range",
        """
        labels = torch.tensor([0, 4])
        F.one_hot(labels, num_classes=3)  # raises
        """,
        "",
        "num_classes=5",
        (("num_classes=3", "num_classes=5"),),
        purpose="assert result.argmax(1).tolist() == [0, 4]",
    ),
    Program(
        "A token beyond the vocabulary",
        "index of an embedding",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(10, 4)

            def forward(self, tokens):
                return self.embed(tokens)  # raises

        net = Net()
        net(torch.tensor([[3, 10]]))
        """,
        "embed (Embedding)",
        "net.embed = nn.Embedding(11, ...)",
        (("nn.Embedding(10, 4)", "nn.Embedding(11, 4)"),),
        ("has 10 rows, for indices from 0 to 9", "from 3 to 10"),
        purpose="assert torch.equal(result[0], net.embed.weight[[3, 10]])",
    ),
    Program(
        "A negative token for padding",
        "index of an embedding",
        """
        net = nn.Sequential(nn.Embedding(10, 4))
        tokens = torch.tensor([[3, -1]])
        net(tokens)  # raises
        """,
        "0 (Embedding)",
        "tokens.masked_fill(tokens < 0, 10)",
        (
            ("nn.Embedding(10", "nn.Embedding(11"),
            ("net(tokens)", "net(tokens.masked_fill(tokens < 0, 10))"),
        ),
        purpose="assert torch.equal(result[0], net[0].weight[[3, 10]])",
    ),
    Program(
        "A position beyond the end",
        "index",
        """
        positions, at = torch.rand(4, 3), torch.tensor([1, 4])
        positions[at]  # raises
        """,
        "",
        "check where they come from",
        (("positions[at]", "positions[at - 1]"),),
        ("Index 4 was asked of dimension 0 of positions",),
        purpose="assert torch.equal(result, positions[[0, 3]])",
    ),
    Program(
        "A mask of columns on rows",
        "mask",
        """
        x, keep = torch.rand(2, 3), torch.tensor([True, False, True])
        x[keep]  # raises
        """,
        "",
        "x[:, keep]",
        (("x[keep]", "x[:, keep]"),),
        purpose="assert torch.equal(result, x[:, [0, 2]])",
    ),
    Program(
        "Logits and targets of a loss are swapped",
        "kernel not implemented",
        """
        logits, target = torch.randn(4, 10), torch.randint(10, (4,))
        F.cross_entropy(target, logits)  # raises
        """,
        "",
        "Swap them: loss(logits, target)",
        (("(target, logits)", "(logits, target)"),),
        ("its first argument, target, holds int64",),
        purpose=(
            "want = -logits.log_softmax(1).gather(1, target[:, None]).mean()\n"
            "assert torch.allclose(result, want)"
        ),
    ),
    Program(
        "An index behind a colon",
        "index",
        """
        x, columns = torch.randn(3, 4), torch.tensor([0, 5])
        x[:, columns]  # raises
        """,
        "",
        "Give indices from -4 to 3; check where they come from.",
        (("x[:, columns]", "x[:, columns % 4]"),),
        ("dimension 1 of x, which has 4 elements there",),
        purpose="assert torch.equal(result, x[:, [0, 1]])",
    ),
    Program(
        "A row that index_select does not find",
        "index of an embedding",
        """
        table, rows = torch.randn(3, 4), torch.tensor([4])
        table.index_select(0, rows)  # raises
        """,
        "",
        "Give indices from 0 to the size of that dimension - 1",
        (("tensor([4])", "tensor([2])"),),
        ("rows holds an index that table does not have: it goes from 4 to 4",),
        purpose="assert torch.equal(result[0], table[2])",
    ),
    Program(
        "A number of a tensor of many",
        "number of many",
        """
        losses = torch.randn(3)
        float(losses)  # raises
        """,
        "",
        "If one number of all is meant: losses.mean()",
        (("float(losses)", "float(losses.mean())"),),
        ("losses has 3 elements",),
        purpose="assert abs(result - sum(losses.tolist()) / 3) < 1e-6",
    ),
    Program(
        "An array of a list of losses",
        "numpy of a graph",
        """
        import numpy

        net = nn.Linear(2, 1)
        losses = [net(torch.randn(3, 2)).sum() for _ in range(2)]
        numpy.array(losses)  # raises
        """,
        "",
        "[one.detach() for one in losses]",
        (("numpy.array(losses)", "numpy.array([one.detach().numpy() for one in losses])"),),
        ("losses[0] requires grad",),
        purpose="assert result.tolist() == [one.item() for one in losses]",
    ),
    Program(
        "A loss is given tensors where it is made",
        "truth of many",
        """
        a, b = torch.randn(3), torch.randn(3)
        loss = nn.MSELoss(a, b)  # raises
        """,
        "the MSELoss itself",
        "Make it first, then call it: nn.MSELoss()(input, target)",
        (("nn.MSELoss(a, b)", "nn.MSELoss()(a, b)"),),
        purpose="assert torch.equal(loss, (a - b).square().mean())",
    ),
    Program(
        "A dict goes into a Linear",
        "argument that is no tensor",
        """
        class Output(dict):
            pass

        net = nn.Linear(3, 2)
        found = Output(hidden=torch.ones(1, 3))
        net(found)  # raises
        """,
        "net (Linear)",
        "Take the tensor out of it: found['hidden']",
        (("net(found)", "net(found['hidden'])"),),
        purpose="assert torch.allclose(result[0], net.weight.sum(1) + net.bias, atol=1e-6)",
    ),
    Program(
        "A mask meets floats in a bitwise operator",
        "kernel not implemented",
        """
        a, b = torch.rand(4) > 0.5, torch.ones(4)
        a & b  # raises
        """,
        "",
        "b > 0",
        (("a & b", "a & (b > 0)"),),
        ("float32, which b holds",),
        purpose="assert torch.equal(result, a)",
    ),
    Program(
        "Modules in a plain list stay on their device",
        "devices",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden = [nn.Linear(4, 4)]

            def forward(self, x):
                for layer in self.hidden:
                    x = layer(x)  # raises
                return x

        net = Net().to("meta")
        net(torch.randn(2, 4, device="meta"))
        """,
        "layer (Linear)",
        "self.hidden = nn.ModuleList(...)",
        (("[nn.Linear(4, 4)]", "nn.ModuleList([nn.Linear(4, 4)])"),),
        purpose="assert [one.is_meta for one in net.parameters()] == [True, True]",
    ),
    Program(
        "A module is made with what it should be called with",
        "argument that is no tensor",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1, self.fc2 = nn.Linear(4, 4), nn.Linear(4, 2)

            def forward(self, x):
                x = nn.ReLU(self.fc1(x))
                return self.fc2(x)  # raises

        Net()(torch.randn(2, 4))
        """,
        "fc2 (Linear)",
        "then call it: nn.ReLU()(self.fc1(x))",
        (("nn.ReLU(self.fc1(x))", "nn.ReLU()(self.fc1(x))"),),
        purpose=(
            "net, x = Net(), torch.randn(2, 4)\n"
            "assert torch.equal(net(x), net.fc2(net.fc1(x).clamp(min=0)))"
        ),
    ),
]
