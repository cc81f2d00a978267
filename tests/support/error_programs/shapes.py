"""Shapes that do not fit."""

from __future__ import annotations

from error_programs.program import Program

PROGRAMS = [
    Program(
        "Two inputs of a bilinear layer in the other order",
        "inputs of a bilinear layer",
        """
        pair = nn.Bilinear(4, 5, 3)
        users, items = torch.rand(2, 4), torch.rand(2, 5)
        out = pair(items, users)  # raises
        """,
        "pair (Bilinear)",
        "If they were given in the other order: (users, items).",
        (("(items, users)", "(users, items)"),),
        purpose=(
            "want = torch.einsum('bi,oij,bj->bo', users, pair.weight, items) + pair.bias\n"
            "assert torch.allclose(out, want, atol=1e-6)"
        ),
    ),
    Program(
        "A kernel without its channels",
        "kernel without channels",
        """
        picture = torch.rand(1, 1, 5, 5)
        kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        edges = F.conv2d(picture, kernel)  # raises
        """,
        "",
        "give it both: kernel[None, None].",
        (("(picture, kernel)", "(picture, kernel[None, None])"),),
        purpose=(
            "p = picture[0, 0]\n"
            "want = p[0, 1] + p[2, 1] + p[1, 0] + p[1, 2] - 4 * p[1, 1]\n"
            "assert torch.allclose(edges[0, 0, 0, 0], want, atol=1e-6)"
        ),
    ),
    Program(
        "A number given to a Linear",
        "number into a linear layer",
        """
        policy, state = nn.Linear(1, 4), torch.tensor(3.0)
        scores = policy(state)  # raises
        """,
        "policy (Linear)",
        "state.reshape(1, 1)",
        (("policy(state)", "policy(state.reshape(1, 1))"),),
        purpose="assert torch.allclose(scores[0], policy.weight[:, 0] * 3 + policy.bias)",
    ),
    Program(
        "A Linear of another width than the one before it",
        "matrix product",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc1 = nn.Linear(4, 3)
                self.fc2 = nn.Linear(8, 2)

            def forward(self, x):
                h = self.fc1(x).relu()
                return self.fc2(h)  # raises

        net = Net()
        net(torch.randn(5, 4))
        """,
        "fc2 (Linear)",
        "net.fc2 = nn.Linear(3, 2)",
        (("nn.Linear(8, 2)", "nn.Linear(3, 2)"),),
        (
            "input is h, float32[5, 3]",
            "train.py:14: h = self.fc1(x).relu(), by ReluBackward0, after fc1 (Linear)",
            "takes 8 features",
        ),
        purpose=(
            "x = torch.randn(5, 4)\n"
            "h = (x @ net.fc1.weight.T + net.fc1.bias).clamp(min=0)\n"
            "want = h @ net.fc2.weight.T + net.fc2.bias\n"
            "assert torch.allclose(net(x), want, atol=1e-6)"
        ),
    ),
    Program(
        "A Linear inside a Sequential of Sequentials",
        "matrix product",
        """
        net = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(4, 2))
        net(torch.randn(5, 4))  # raises
        """,
        "1 (Linear)",
        "net[1] = nn.Linear(6, 2)",
        (("nn.Linear(4, 2)", "nn.Linear(6, 2)"),),
        ("made by 0 (Sequential)",),
        purpose=(
            "x = torch.randn(5, 4)\n"
            "assert net(x).shape == (5, 2)\n"
            "assert torch.equal(net(x), net[1](net[0][0](x).clamp(min=0)))"
        ),
    ),
    Program(
        "A Linear behind convolutions, without Flatten",
        "matrix product",
        """
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(144, 10))
        net(torch.randn(2, 3, 8, 8))  # raises
        """,
        "2 (Linear)",
        "nn.Flatten() before the module",
        (("nn.ReLU(), ", "nn.ReLU(), nn.Flatten(), "),),
        ("made by 1 (ReLU)",),
        purpose=(
            "x = torch.randn(2, 3, 8, 8)\n"
            "assert torch.equal(net(x), net[3](net[0](x).clamp(min=0).reshape(2, -1)))"
        ),
    ),
    Program(
        "Scores of attention without a transpose",
        "matrix product",
        """
        class Scores(nn.Module):
            def __init__(self):
                super().__init__()
                self.q, self.k = nn.Linear(8, 4), nn.Linear(8, 4)

            def forward(self, x):
                query = self.q(x)
                key = self.k(x)
                return query @ key  # raises

        net = Scores()
        net(torch.randn(6, 8))
        """,
        "net (Scores)",
        "key.mT",
        (("query @ key", "query @ key.mT"),),
        ("made by q (Linear) at train.py:13", "made by k (Linear) at train.py:14"),
        purpose=(
            "x = torch.randn(6, 8)\n"
            'want = torch.einsum("id,jd->ij", net.q(x), net.k(x))\n'
            "assert torch.allclose(net(x), want, atol=1e-5)"
        ),
    ),
    Program(
        "A batched product without a transpose",
        "batched product",
        """
        q, k = torch.randn(2, 6, 4), torch.randn(2, 6, 4)
        scores = torch.bmm(q, k)  # raises
        """,
        "",
        "k.mT",
        (("torch.bmm(q, k)", "torch.bmm(q, k.mT)"),),
        ("k, float32[2, 6, 4]",),
        purpose='assert torch.allclose(scores, torch.einsum("bid,bjd->bij", q, k), atol=1e-5)',
    ),
    Program(
        "A matrix and a vector",
        "matrix and vector",
        """
        w = torch.randn(3, 4)
        v = torch.randn(3)
        w @ v  # raises
        """,
        "",
        "w.mT",
        (("w @ v", "w.mT @ v"),),
        purpose="assert torch.allclose(result, (w * v[:, None]).sum(0), atol=1e-5)",
    ),
    Program(
        "Two vectors of different lengths",
        "dot product",
        """
        net = nn.Linear(4, 3)
        a, b = net(torch.rand(4)), torch.rand(4)
        a @ b  # raises
        """,
        "",
        "Make what produces a or b so wide that the two numbers are equal",
        (("torch.rand(4)\n", "torch.rand(3)\n"),),
        purpose="assert torch.allclose(result, (a * b).sum()) and len(a) == 3",
    ),
    Program(
        "An einsum with one letter for two sizes",
        "einsum",
        """
        a, b = torch.randn(2, 3), torch.randn(4, 5)
        torch.einsum("ij,jk->ik", a, b)  # raises
        """,
        "",
        "a letter of its own",
        (("ij,jk->ik", "ij,lk->ik"),),
        ("'j'",),
        purpose=(
            "want = a.sum(1)[:, None] * b.sum(0)\nassert torch.allclose(result, want, atol=1e-4)"
        ),
    ),
    Program(
        "A convolution of another number of channels",
        "channels",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = nn.Conv2d(3, 8, 3)
                self.body = nn.Conv2d(16, 8, 3)

            def forward(self, x):
                x = self.stem(x)
                return self.body(x)  # raises

        net = Net()
        net(torch.randn(1, 3, 8, 8))
        """,
        "body (Conv2d)",
        "make it take them: net.body = nn.Conv2d(8, ...)",
        (("nn.Conv2d(16, 8, 3)", "nn.Conv2d(8, 8, 3)"),),
        ("input is x, float32[1, 8, 6, 6], made by stem (Conv2d) at train.py:14",),
        purpose=(
            "assert result.shape == (1, 8, 4, 4)\n"
            "assert net.body.in_channels == net.stem.out_channels"
        ),
    ),
    Program(
        "Images with the channels last",
        "channels",
        """
        net = nn.Conv2d(3, 8, 3)
        images = torch.rand(2, 9, 9, 3)
        net(images)  # raises
        """,
        "net (Conv2d)",
        "images.movedim(-1, 1)",
        (("net(images)", "net(images.movedim(-1, 1))"),),
        ("images, float32[2, 9, 9, 3], made at train.py:8",),
        purpose=(
            "pixel = (net.weight[0] * images[0, :3, :3].permute(2, 0, 1)).sum() + net.bias[0]\n"
            "assert result.shape == (2, 8, 7, 7)\n"
            "assert torch.allclose(result[0, 0, 0, 0], pixel, atol=1e-5)"
        ),
    ),
    Program(
        "An image without channels",
        "dimensions of a convolution",
        """
        net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
        digit = torch.rand(9, 9)
        net(digit)  # raises
        """,
        "0 (Conv2d)",
        "digit.unsqueeze(0)",
        (("net(digit)", "net(digit.unsqueeze(0))"),),
        purpose="assert torch.allclose(result, net(digit[None, None])[0], atol=1e-6)",
    ),
    Program(
        "A picture that is smaller than the kernel",
        "kernel too large",
        """
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(4), nn.Conv2d(4, 4, 3))
        net(torch.rand(1, 1, 10, 10))  # raises
        """,
        "2 (Conv2d)",
        "padding=1",
        (("nn.Conv2d(4, 4, 3)", "nn.Conv2d(4, 4, 3, padding=1)"),),
        ("made by 1 (MaxPool2d)",),
        purpose=(
            "x = torch.rand(1, 1, 10, 10)\n"
            "want = F.conv2d(F.pad(net[:2](x), (1, 1, 1, 1)), net[2].weight, net[2].bias)\n"
            "assert result.shape == (1, 4, 2, 2) and torch.allclose(net(x), want, atol=1e-6)"
        ),
    ),
    Program(
        "A pool that leaves nothing",
        "pooled away",
        """
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(8))
        net(torch.rand(1, 1, 8, 8))  # raises
        """,
        "1 (MaxPool2d)",
        "nn.AdaptiveMaxPool2d(1)",
        (("nn.MaxPool2d(8)", "nn.AdaptiveMaxPool2d(1)"),),
        ("made by 0 (Conv2d)",),
        purpose=(
            "x = torch.rand(1, 1, 8, 8)\n"
            "assert torch.equal(net(x)[..., 0, 0], net[0](x).amax((2, 3)))"
        ),
    ),
    Program(
        "A residual of another width",
        "broadcast",
        """
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 6)

            def forward(self, x):
                out = self.fc(x)
                return x + out  # raises

        net = nn.Sequential(Block())
        net(torch.randn(2, 4))
        """,
        "0 (Block)",
        "Make what produces x or out give both one size",
        (("nn.Linear(4, 6)", "nn.Linear(4, 4)"),),
        ("out, float32[2, 6], made by fc (Linear)".replace("fc", "0.fc"),),
        purpose="x = torch.randn(2, 4)\nassert torch.equal(net(x), x + net[0].fc(x))",
    ),
    Program(
        "A weight per sample",
        "broadcast",
        """
        net = nn.Linear(4, 3)
        weight = torch.rand(8)
        out = net(torch.randn(8, 4))
        out * weight  # raises
        """,
        "",
        "weight[:, None]",
        (("out * weight", "out * weight.unsqueeze(-1)"),),
        ("out, float32[8, 3], made by net (Linear) at train.py:9",),
        purpose=(
            "want = torch.stack([w * one for w, one in zip(weight, out)])\n"
            "assert torch.equal(result, want)"
        ),
    ),
    Program(
        "A skip connection of another size",
        "concatenation",
        """
        class UNet(nn.Module):
            def __init__(self):
                super().__init__()
                self.down = nn.Conv2d(1, 2, 3, stride=2)
                self.up = nn.Upsample(scale_factor=2)

            def forward(self, x):
                low = self.down(x)
                high = self.up(low)
                return torch.cat([x, high], dim=1)  # raises

        net = UNet()
        net(torch.rand(1, 1, 8, 8))
        """,
        "net (UNet)",
        "F.interpolate(",
        (("stride=2)", "stride=2, padding=1)"),),
        ("high, float32[1, 2, 6, 6], made by up (Upsample) at train.py:15",),
        purpose=(
            "x = torch.rand(1, 1, 8, 8)\n"
            "assert net(x).shape == (1, 3, 8, 8) and torch.equal(net(x)[:, :1], x)"
        ),
    ),
    Program(
        "A vector beside a matrix",
        "concatenation of dimensions",
        """
        features, age = torch.randn(5, 3), torch.rand(5)
        torch.cat([features, age], dim=1)  # raises
        """,
        "",
        "age.unsqueeze(1)",
        (("[features, age]", "[features, age.unsqueeze(1)]"),),
        purpose="assert torch.equal(result[:, :3], features) and torch.equal(result[:, 3], age)",
    ),
    Program(
        "Samples of different lengths in a DataLoader",
        "stack",
        """
        from torch.nn.utils.rnn import pad_sequence

        def joined(samples):
            return pad_sequence(samples, batch_first=True)

        data = [torch.rand(3), torch.rand(5)]
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        for batch in loader:  # raises
            pass
        """,
        "",
        "torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)",
        (("batch_size=2", "batch_size=2, collate_fn=joined"),),
        purpose=(
            "assert torch.equal(batch[0, :3], data[0]) and (batch[0, 3:] == 0).all()\n"
            "assert torch.equal(batch[1], data[1])"
        ),
    ),
    Program(
        "A stack of different shapes",
        "stack",
        """
        a, b = torch.rand(3), torch.rand(5)
        torch.stack([a, b])  # raises
        """,
        "",
        "torch.cat",
        (("torch.stack", "torch.cat"),),
        ("b, float32[5]",),
        purpose="assert result.tolist() == a.tolist() + b.tolist()",
    ),
    Program(
        "A view with a fixed batch",
        "reshape",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(1, 2, 3)

            def forward(self, x):
                x = self.conv(x)
                return x.view(32, 72)  # raises

        net = Net()
        net(torch.rand(5, 1, 8, 8))
        """,
        "net (Net)",
        "x.view(-1, 72)",
        (("x.view(32, 72)", "x.view(-1, 72)"),),
        ("x, float32[5, 2, 6, 6], made by conv (Conv2d) at train.py:13",),
        purpose="x = torch.rand(5, 1, 8, 8)\nassert torch.equal(net(x), net.conv(x).flatten(1))",
    ),
    Program(
        "A view after a transpose",
        "view of strides",
        """
        heads = torch.rand(2, 3, 4)
        merged = heads.transpose(1, 2)
        merged.view(2, 12)  # raises
        """,
        "",
        "merged.reshape(...)",
        (("merged.view", "merged.reshape"),),
        ("merged, float32[2, 4, 3], made at train.py:8",),
        purpose=(
            "want = torch.stack([one.T.flatten() for one in heads])\n"
            "assert torch.equal(result, want)"
        ),
    ),
    Program(
        "An expand of a size that is not 1",
        "expand",
        """
        x = torch.rand(3, 4)
        x.expand(6, 4)  # raises
        """,
        "",
        "x.repeat(...)",
        (("x.expand(6, 4)", "x.repeat(2, 1)"),),
        purpose="assert torch.equal(result, torch.cat([x, x]))",
    ),
    Program(
        "A dimension that was lost by a reduction",
        "no such dimension",
        """
        x = torch.rand(3, 4)
        mean = x.mean(1)
        mean.squeeze(1)  # raises
        """,
        "",
        "keepdim=True",
        (("x.mean(1)", "x.mean(1, keepdim=True)"),),
        ("mean, float32[3], made at train.py:8",),
        purpose="assert torch.equal(result, x.mean(1)) and mean.shape == (3, 1)",
    ),
    Program(
        "A LayerNorm of another width",
        "layer norm",
        """
        net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(8))
        net(torch.randn(2, 4))  # raises
        """,
        "1 (LayerNorm)",
        "nn.LayerNorm([6])",
        (("nn.LayerNorm(8)", "nn.LayerNorm([6])"),),
        ("made by 0 (Linear)",),
        purpose=(
            "assert torch.allclose(result.mean(1), torch.zeros(2), atol=1e-5)\n"
            "assert torch.allclose(result.var(1, unbiased=False), torch.ones(2), atol=1e-2)"
        ),
    ),
    Program(
        "A GroupNorm of another number of channels",
        "group norm",
        """
        net = nn.Sequential(nn.Conv1d(2, 6, 3), nn.GroupNorm(2, 4))
        net(torch.randn(2, 2, 8))  # raises
        """,
        "1 (GroupNorm)",
        "nn.GroupNorm(groups, 6)",
        (("nn.GroupNorm(2, 4)", "nn.GroupNorm(2, 6)"),),
        ("made by 0 (Conv1d)",),
        purpose=(
            "groups = result.view(2, 2, 18)\n"
            "assert torch.allclose(groups.mean(-1), torch.zeros(2, 2), atol=1e-5)\n"
            "assert torch.allclose(groups.var(-1, unbiased=False), torch.ones(2, 2), atol=1e-2)"
        ),
    ),
    Program(
        "A BatchNorm of another number of channels",
        "features of a batch norm",
        """
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(8))
        net(torch.randn(5, 4))  # raises
        """,
        "1 (BatchNorm1d)",
        "nn.BatchNorm1d(6)",
        (("nn.BatchNorm1d(8)", "nn.BatchNorm1d(6)"),),
        ("made by 0 (Linear)",),
        purpose="assert torch.allclose(result.mean(0), torch.zeros(6), atol=1e-5)",
    ),
    Program(
        "A batch of one, in training",
        "one value per channel",
        """
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        net(torch.randn(1, 4))  # raises
        """,
        "1 (BatchNorm1d)",
        "model.eval()",
        (("net(torch", "net.eval()\nnet(torch"),),
        ("is in training mode", "made by 0 (Linear)"),
        purpose=(
            "x = torch.randn(1, 4)\nassert torch.allclose(net(x), net[0](x) / (1 + 1e-5) ** 0.5)"
        ),
    ),
    Program(
        "A BatchNorm2d for rows",
        "dimensions of a norm",
        """
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm2d(6))
        net(torch.randn(5, 4))  # raises
        """,
        "1 (BatchNorm2d)",
        "nn.BatchNorm1d(...)",
        (("BatchNorm2d", "BatchNorm1d"),),
        purpose="assert torch.allclose(result.mean(0), torch.zeros(6), atol=1e-5)",
    ),
    Program(
        "An LSTM of another width",
        "input of a recurrence",
        """
        class Tagger(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(10, 6)
                self.lstm = nn.LSTM(4, 5)

            def forward(self, tokens):
                vectors = self.embed(tokens)
                return self.lstm(vectors)  # raises

        net = Tagger()
        net(torch.zeros(3, 2, dtype=torch.int64))
        """,
        "lstm (LSTM)",
        "nn.LSTM(6, ...)",
        (("nn.LSTM(4, 5)", "nn.LSTM(6, 5)"),),
        ("input is vectors, float32[3, 2, 6], made by embed (Embedding) at train.py:14",),
        purpose=(
            "out, _ = result\n"
            "assert out.shape == (3, 2, 5) and torch.allclose(out[:, 0], out[:, 1])"
        ),
    ),
    Program(
        "A hidden state of another batch",
        "state of a recurrence",
        """
        net = nn.GRU(4, 5, batch_first=True)
        state = torch.zeros(1, 7, 5)
        net(torch.randn(3, 7, 4), state)  # raises
        """,
        "net (GRU)",
        "torch.zeros(1, 3, 5)",
        (("torch.zeros(1, 7, 5)", "torch.zeros(1, 3, 5)"),),
        purpose="x = torch.randn(3, 7, 4)\nassert torch.allclose(net(x, state)[0], net(x)[0])",
    ),
    Program(
        "Attention of another width",
        "embedding dimension",
        """
        net = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2)})
        x = torch.randn(3, 2, 6)
        net["attn"](x, x, x)  # raises
        """,
        "attn (MultiheadAttention)",
        "embed_dim=6",
        (("nn.MultiheadAttention(8, 2)", "nn.MultiheadAttention(6, 2)"),),
        ("x, float32[3, 2, 6]",),
        purpose=(
            "out, weights = result\n"
            "assert out.shape == x.shape\n"
            "assert torch.allclose(weights.sum(-1), torch.ones(2, 3))"
        ),
    ),
    Program(
        "A picture without a batch, of too few channels",
        "channels",
        """
        net = nn.Conv2d(3, 8, 3)
        x = torch.randn(1, 28, 28)
        net(x)  # raises
        """,
        "net (Conv2d)",
        "net = nn.Conv2d(1, ...)",
        (("nn.Conv2d(3, 8, 3)", "nn.Conv2d(1, 8, 3)"),),
        ("its input [1, 28, 28], without a batch, has 1 in dimension 0",),
        purpose="assert torch.allclose(result, net(x[None])[0], atol=1e-5)",
    ),
    Program(
        "A picture without a batch whose channels stand last",
        "channels",
        """
        net = nn.Conv2d(3, 8, 3)
        x = torch.randn(28, 28, 3)
        net(x)  # raises
        """,
        "net (Conv2d)",
        "put them first: x.movedim(-1, 0)",
        (("net(x)", "net(x.movedim(-1, 0))"),),
        purpose=(
            "pixel = (net.weight[0] * x[:3, :3].permute(2, 0, 1)).sum() + net.bias[0]\n"
            "assert torch.allclose(result[0, 0, 0], pixel, atol=1e-5)"
        ),
    ),
    Program(
        "A kernel far larger than the input",
        "kernel too large",
        """
        net = nn.Conv2d(3, 4, 9)
        net(torch.randn(1, 3, 4, 4))  # raises
        """,
        "net (Conv2d)",
        "net with padding=3 or more",
        (("nn.Conv2d(3, 4, 9)", "nn.Conv2d(3, 4, 9, padding=3)"),),
        purpose=(
            "x = torch.randn(1, 3, 4, 4)\n"
            "want = (net.weight[0, :, 3:7, 3:7] * x[0]).sum() + net.bias[0]\n"
            "assert result.shape == (1, 4, 2, 2)\n"
            "assert torch.allclose(net(x)[0, 0, 0, 0], want, atol=1e-5)"
        ),
    ),
    Program(
        "Two of three operands do not fit",
        "broadcast",
        """
        a, b, c = torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 4)
        torch.where(a > 0, b, c)  # raises
        """,
        "",
        "Make what produces b or c give both one size",
        (("torch.ones(2, 4)", "torch.ones(2, 3)"),),
        ("b and c have 3 and 4 elements in dimension 1",),
        purpose="assert torch.equal(result, b)",
    ),
    Program(
        "Which of three operands does not fit cannot be told",
        "broadcast",
        """
        anchor, near, far = torch.ones(3, 4), torch.ones(3, 4), torch.ones(3, 5)
        F.triplet_margin_loss(anchor, near, far)  # raises
        """,
        "",
        "Give all operands one size there, or size 1",
        (("torch.ones(3, 5)", "torch.ones(3, 4)"),),
        ("Two of the operands have 4 and 5 elements", "negative is far, float32[3, 5]"),
        purpose="assert abs(result - 1) < 1e-6",
    ),
    Program(
        "A sum and a product in one operation",
        "matrix product",
        """
        bias, a, b = torch.ones(5), torch.ones(2, 3), torch.ones(4, 5)
        torch.addmm(bias, a, b)  # raises
        """,
        "",
        "Make what produces a or b so wide",
        (("torch.ones(4, 5)", "torch.ones(3, 5)"),),
        ("the last dimension of a, which is 3", "of b, which is 4"),
        purpose="assert torch.equal(result, torch.full((2, 5), 4.0))",
    ),
    Program(
        "A weight of F.linear of another width",
        "matrix product",
        """
        x, weight = torch.ones(2, 4), torch.ones(3, 5)
        F.linear(x, weight)  # raises
        """,
        "",
        "Make what produces x or weight so wide",
        (("torch.ones(3, 5)", "torch.ones(3, 4)"),),
        ("the last dimension of x, which is 4, and the last of weight, which is 5",),
        purpose="assert torch.equal(result, torch.full((2, 3), 4.0))",
    ),
    Program(
        "A Conv1d on pictures",
        "dimensions of a convolution",
        """
        net = nn.Conv1d(3, 4, 3)
        x = torch.randn(2, 3, 8, 8)
        net(x)  # raises
        """,
        "net (Conv1d)",
        "join it: x.flatten(2)",
        (("net(x)", "net(x.flatten(2))"),),
        purpose=(
            "line = x.flatten(2)\n"
            "first = (net.weight[0] * line[0, :, :3]).sum() + net.bias[0]\n"
            "assert torch.allclose(net(line)[0, 0, 0], first, atol=1e-5)"
        ),
    ),
    Program(
        "A weight of another width is put into a module",
        "matrix product",
        """
        net = nn.Linear(3, 2)
        state = {"weight": torch.ones(2, 4), "bias": torch.ones(2)}
        torch.func.functional_call(net, state, torch.ones(1, 3))  # raises
        """,
        "net (Linear)",
        "Give it a weight of shape [2, 3]",
        (("torch.ones(2, 4)", "torch.ones(2, 3)"),),
        ("its input has 3 features",),
        purpose="assert torch.equal(result, torch.full((1, 2), 4.0))",
    ),
    Program(
        "Heads that do not multiply to the width",
        "reshape",
        """
        x = torch.ones(2, 5, 10)
        x.view(2, 5, 3, 4)  # raises
        """,
        "",
        "Give sizes whose product is 100: behind the first 2 there are 10",
        (("(2, 5, 3, 4)", "(2, 5, 2, 5)"),),
        purpose="assert torch.equal(result.flatten(2), x)",
    ),
    Program(
        "A picture without a batch reaches a BatchNorm",
        "dimensions of a norm",
        """
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
        net(torch.rand(3, 8, 8))  # raises
        """,
        "1 (BatchNorm2d)",
        "unsqueeze(0) of its input",
        (("torch.rand(3, 8, 8)", "torch.rand(3, 8, 8).unsqueeze(0)"),),
        purpose=(
            "x = torch.rand(3, 8, 8)\n"
            "want = (net[0](x) / (1 + 1e-5) ** 0.5).clamp(min=0)\n"
            "assert torch.allclose(net(x.unsqueeze(0))[0], want, atol=1e-5)"
        ),
    ),
    Program(
        "torch.tensor of a list of tensors",
        "number of many",
        """
        features = [torch.randn(4) for _ in range(3)]
        assert torch.tensor(features).shape == (3, 4)  # raises
        """,
        "",
        "torch.stack(features)",
        (("torch.tensor(features)", "torch.stack(features)"),),
        purpose="assert torch.equal(torch.stack(features)[1], features[1])",
    ),
    Program(
        "A context without a time beside states over time",
        "concatenation of dimensions",
        """
        states, context = torch.randn(2, 5, 8), torch.randn(2, 8)
        both = torch.cat([states, context], dim=-1)  # raises
        """,
        "",
        "context.unsqueeze(1).expand(-1, 5, -1)",
        (("context], ", "context.unsqueeze(1).expand(-1, 5, -1)], "),),
        purpose=(
            "rows = [torch.cat([states[:, t], context], -1) for t in range(5)]\n"
            "assert torch.equal(both, torch.stack(rows, 1))"
        ),
    ),
    Program(
        "A class token without a time before tokens",
        "concatenation of dimensions",
        """
        token, states = torch.randn(2, 8), torch.randn(2, 5, 8)
        torch.cat([token, states], 1)  # raises
        """,
        "",
        "token.unsqueeze(1)",
        (("[token,", "[token.unsqueeze(1),"),),
        purpose="assert torch.equal(result[:, 0], token) and torch.equal(result[:, 1:], states)",
    ),
]
