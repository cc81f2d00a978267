"""Writes in place, and inference tensors."""

from __future__ import annotations

from error_programs.program import Program

PROGRAMS = [
    Program(
        "A result that backward needs is overwritten",
        "overwritten",
        """
        x = torch.randn(3, requires_grad=True)
        y = x.exp()
        y += 1  # writes
        y.sum().backward()  # raises
        """,
        "",
        "y = y + 1.",
        (("y += 1", "y = y + 1"),),
        ("ExpBackward0",),
        purpose="assert torch.allclose(x.grad, x.exp()) and torch.allclose(y, x.exp() + 1)",
    ),
    Program(
        "An in-place ReLU behind a Sigmoid",
        "overwritten",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.ReLU(inplace=True))
        net(torch.randn(2, 4)).sum().backward()  # raises
        """,
        "1 (Sigmoid)",
        "Set inplace=False where 2 (ReLU) is made",
        (("inplace=True", "inplace=False"),),
        ("2 (ReLU), which has inplace=True",),
        purpose="assert (net[0].bias.grad > 0).all() and (net[0].bias.grad <= 2 / 4).all()",
    ),
    Program(
        "A residual is added in place to what tanh returned",
        "overwritten",
        """
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                out = torch.tanh(self.fc(x))
                out += x  # writes
                return out

        net = Block()
        net(torch.randn(2, 4)).sum().backward()  # raises
        """,
        "net (Block)",
        "out = out + x.",
        (("out += x", "out = out + x"),),
        ("TanhBackward0, after fc (Linear)",),
        purpose=(
            "assert (net.fc.bias.grad > 0).all() and (net.fc.bias.grad <= 2).all()\n"
            "x = torch.randn(2, 4)\n"
            "assert torch.equal(net(x), torch.tanh(net.fc(x)) + x)"
        ),
    ),
    Program(
        "A mask is written into what softmax returned",
        "overwritten",
        """
        net = nn.Linear(4, 4)
        weights = net(torch.randn(2, 4)).softmax(-1)
        weights[:, 0] = 0  # writes
        weights.sum().backward()  # raises
        """,
        "",
        "torch.where for x[mask] = y",
        (("weights[:, 0] = 0", "weights = torch.where(torch.arange(4) == 0, 0, weights)"),),
        ("SoftmaxBackward0, after net (Linear)",),
        purpose=(
            "assert (weights[:, 0] == 0).all() and (weights[:, 1:] > 0).all()\n"
            "assert net.bias.grad.sum().abs() < 1e-5"
        ),
    ),
    Program(
        "Weights are changed between the forward and the backward",
        "overwritten",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        loss = net(torch.randn(2, 4)).sum()
        loss.backward(retain_graph=True)
        optimizer.step()  # writes
        loss.backward()  # raises
        """,
        "1 (Linear)",
        "Or call all backwards before",
        (("optimizer.step()", "pass"),),
        ("1.weight",),
        purpose="assert net[1].bias.grad.item() == 4",
    ),
    Program(
        "A GAN trains its generator through a discriminator that has stepped",
        "overwritten",
        """
        generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
        step = torch.optim.SGD(critic.parameters(), lr=0.1)
        fake = generator(torch.randn(8, 2))
        score = critic(fake)
        score.mean().backward(retain_graph=True)
        step.step()  # writes
        (-score.mean()).backward()  # raises
        """,
        "critic (Linear)",
        "Compute ",
        (("(-score.mean())", "(-critic(fake).mean())"),),
        ("critic.weight",),
        purpose="assert torch.allclose(generator.bias.grad, 0.1 * fake.mean(0), atol=1e-6)",
    ),
    Program(
        "A parameter is written in place",
        "leaf in place",
        """
        net = nn.Linear(4, 3)
        net.weight.mul_(0.5)  # raises
        """,
        "net (Linear)",
        "put it inside torch.no_grad()",
        (("net.weight.mul_(0.5)", "torch.no_grad()(lambda: net.weight.mul_(0.5))()"),),
        ("the parameter weight",),
        purpose=(
            "assert net.weight.is_leaf and net.weight.requires_grad\n"
            "assert net.weight.abs().max() <= 0.5 / 4**0.5"
        ),
    ),
    Program(
        "A row of a parameter is set to zero",
        "leaf in place",
        """
        net = nn.ModuleDict({"emb": nn.Embedding(5, 3)})
        net["emb"].weight[0] = 0.0  # raises
        """,
        "emb (Embedding)",
        "put it inside torch.no_grad()",
        (('net["emb"].weight[0] = 0.0', 'with torch.no_grad(): net["emb"].weight[0] = 0.0'),),
        ("a part of the parameter emb.weight",),
        purpose=(
            'assert (net["emb"].weight[0] == 0).all() and (net["emb"].weight[1:] != 0).all()\n'
            'assert net["emb"].weight.requires_grad'
        ),
    ),
    Program(
        "A view of a custom function is written into",
        "view of a function",
        """
        class Flat(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.shape = x.shape
                return x.view(-1)

            @staticmethod
            def backward(ctx, grad):
                return grad.view(ctx.shape)

        flat = Flat.apply(torch.randn(2, 3, requires_grad=True) * 1)
        flat += 1  # raises
        """,
        "",
        "Compute out of place",
        (("flat += 1", "flat = flat + 1"),),
        ("custom function Flat",),
        purpose=(
            "before = flat.grad_fn.next_functions[0][0]\n"
            'assert flat.shape == (6,) and "Flat" in type(before).__name__'
        ),
    ),
    Program(
        "One of several chunks is written into",
        "one of several views",
        """
        net = nn.Linear(4, 6)
        gate, value = net(torch.randn(2, 4)).chunk(2, dim=-1)
        gate.sigmoid_()  # raises
        """,
        "",
        "Compute a new tensor in place of the write:",
        (("gate.sigmoid_()", "gate = gate.sigmoid()"),),
        ("gate, float32[2, 3]",),
        purpose=(
            "assert ((gate > 0) & (gate < 1)).all() and value.shape == (2, 3)\n"
            "(gate * value).sum().backward()\n"
            "assert net.weight.grad.shape == (6, 4)"
        ),
    ),
    Program(
        "A full backward hook in front of an in-place ReLU",
        "view of a backward hook",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
        net[0].register_full_backward_hook(lambda module, grad_in, grad_out: None)
        net(torch.randn(2, 4))  # raises
        """,
        "1 (ReLU)",
        "net[1].inplace = False",
        (("net(torch", "net[1].inplace = False\nnet(torch"),),
        ("hooked      0 (Linear)", "made by 0 (Linear)"),
        purpose=(
            "result.sum().backward()\n"
            "assert (result >= 0).all() and torch.equal(net[0].bias.grad, (result > "
            "0).sum(0).float())"
        ),
    ),
    Program(
        "A view is taken under no_grad and written into outside",
        "view of no_grad",
        """
        table = torch.zeros(4, 3, requires_grad=True) * 1
        with torch.no_grad():
            row = table[0]
        row.add_(1)  # raises
        """,
        "",
        "Write into a clone: row = row.clone()",
        (("row.add_(1)", "row = row.clone().add_(1)"),),
        ("train.py:9: row = table[0]",),
        purpose="assert torch.equal(row, torch.ones(3)) and torch.equal(table, torch.zeros(4, 3))",
    ),
    Program(
        "A view is taken in inference mode and written into outside",
        "view of inference",
        """
        table = torch.zeros(4, 3, requires_grad=True) * 1
        with torch.inference_mode():
            row = table[0]
        row.add_(1)  # raises
        """,
        "",
        "Write into a clone: row = row.clone()",
        (("row.add_(1)", "row = row.clone().add_(1)"),),
        ("train.py:9: row = table[0]",),
        purpose="assert torch.equal(row, torch.ones(3)) and torch.equal(table, torch.zeros(4, 3))",
    ),
    Program(
        "Features of inference mode are trained on",
        "inference saved",
        """
        backbone, head = nn.Linear(4, 3), nn.Linear(3, 2)
        with torch.inference_mode():
            features = backbone(torch.randn(8, 4))
        head(features).sum().backward()  # raises
        """,
        "head (Linear)",
        "features.clone()",
        (("head(features)", "head(features.clone())"),),
        ("features, float32[8, 3], made by backbone (Linear) at train.py:9",),
        purpose=(
            "assert torch.equal(head.bias.grad, torch.full((2,), 8.0))\n"
            "assert torch.allclose(head.weight.grad[0], features.clone().sum(0), atol=1e-5)\n"
            "assert backbone.weight.grad is None"
        ),
    ),
    Program(
        "An inference tensor is written into",
        "inference in place",
        """
        net = nn.Linear(4, 3)
        with torch.inference_mode():
            out = net(torch.randn(2, 4))
        out += 1  # raises
        """,
        "",
        "out = out.clone()",
        (("out += 1", "out = out.clone()\nout += 1"),),
        ("made by net (Linear)",),
        purpose="assert out.shape == (2, 3) and not out.is_inference()",
    ),
    Program(
        "An inference tensor is to require grad",
        "inference with grad",
        """
        with torch.inference_mode():
            noise = torch.randn(3)
        noise.requires_grad_()  # raises
        """,
        "",
        "noise.clone().requires_grad_()",
        (("noise.requires_grad_()", "noise.clone().requires_grad_()"),),
        purpose=(
            "result.pow(2).sum().backward()\nassert torch.equal(result.grad, 2 * noise.clone())"
        ),
    ),
    Program(
        "A parameter is written by a method of its class",
        "leaf in place",
        """
        net = nn.Linear(2, 2)
        nn.Parameter.zero_(net.bias)  # raises
        """,
        "net (Linear)",
        "put it inside torch.no_grad()",
        (
            (
                "nn.Parameter.zero_(net.bias)",
                "with torch.no_grad():\n    nn.Parameter.zero_(net.bias)",
            ),
        ),
        ("into the parameter bias",),
        purpose="assert torch.equal(net.bias, torch.zeros(2)) and net.bias.requires_grad",
    ),
    Program(
        "What a custom function saved is overwritten",
        "overwritten",
        """
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors  # raises
                return 2 * x * grad

        x = torch.ones(2, requires_grad=True) * 1
        loss = Square.apply(x).sum()
        x.add_(1)  # writes
        loss.backward()
        """,
        "",
        "x = x.add(1).",
        (("x.add_(1)  # writes", "x = x + 1"),),
        ("needs a tensor that it saved",),
        purpose=(
            "leaf = x.grad_fn.next_functions[0][0].next_functions[0][0].variable\n"
            "assert torch.equal(leaf.grad, torch.full((2,), 2.0))\n"
            "assert torch.equal(x, torch.full((2,), 2.0))"
        ),
    ),
    Program(
        "Two tensors are overwritten, and backward comes to one of them first",
        "overwritten",
        """
        x = torch.ones(3, requires_grad=True)
        a = x.exp()
        b = x.tanh()
        b.add_(1)  # writes
        a.mul_(2)
        (a.sum() + b.sum()).backward()  # raises
        """,
        "",
        "b = b.add(1).",
        (("b.add_(1)", "b = b + 1"), ("a.mul_(2)", "a = a * 2")),
        ("Backward of TanhBackward0 needs its own result", "written by train.py:10: b.add_(1)"),
        purpose="assert torch.allclose(x.grad, 2 * x.exp() + 1 - x.tanh() ** 2)",
    ),
    Program(
        "A result is overwritten by out=",
        "overwritten",
        """
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        with torch.no_grad():
            torch.mul(y, 2, out=y)  # writes
        y.sum().backward()  # raises
        """,
        "",
        "Write into a clone",
        (("with torch", "y = y.clone()\nwith torch"),),
        purpose="assert torch.allclose(x.grad, x.exp()) and torch.allclose(y, 2 * x.exp())",
    ),
    Program(
        "A buffer is changed after the forward has used it",
        "overwritten",
        """
        class Decayed(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))
                self.register_buffer("rate", torch.ones(2))

            def forward(self, x):
                y = x * self.weight * self.rate
                self.rate.mul_(0.9)  # writes
                return y.sum()

        net = Decayed()
        net(torch.ones(2)).backward()  # raises
        """,
        "net (Decayed)",
        "self.rate = self.rate.mul(0.9).",
        (("self.rate.mul_(0.9)", "self.rate = self.rate * 0.9"),),
        ("needs the buffer rate",),
        purpose=(
            "assert torch.equal(net.weight.grad, torch.ones(2))\n"
            "assert torch.allclose(net.rate, torch.full((2,), 0.9))"
        ),
    ),
    Program(
        "A buffer was made in inference mode, and the input was not",
        "inference saved",
        """
        class Bank(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.register_buffer("memory", torch.zeros(8, 4))

            def forward(self, x):
                return self.fc(x) @ self.memory.t()  # raises

        bank = Bank()
        with torch.inference_mode():
            bank.memory = torch.randn(8, 4)
        bank(torch.randn(3, 4))
        """,
        "bank (Bank)",
        "self.memory.clone()",
        (("self.memory.t()", "self.memory.clone().t()"),),
        ("self.memory was made in inference mode",),
        purpose=(
            "result.sum().backward()\n"
            "want = 3 * bank.memory.clone().sum(0)\n"
            "assert torch.allclose(bank.fc.bias.grad, want, atol=1e-5)"
        ),
    ),
    Program(
        "A loop writes into the items of a tensor",
        "one of several views",
        """
        def normalize(images, mean):
            for image, m in zip(images, mean):
                image.sub_(m)  # raises
            return images

        images = torch.rand(3, 2, 2, requires_grad=True) * 1.0
        before = images.detach().clone()
        assert torch.equal(normalize(images, [0.5] * 3), before - 0.5)
        """,
        "",
        "for i in range(len(images)), and images[i] for image",
        (
            ("for image, m in zip(images, mean)", "for i, m in enumerate(mean)"),
            ("image.s", "images[i].s"),
        ),
        ("views that a loop over images made",),
        purpose="images.sum().backward()\nassert torch.equal(images, before - 0.5)",
    ),
    Program(
        "A loop writes into a part of the items of a tensor",
        "one of several views",
        """
        batch = torch.zeros(2, 5, 5, requires_grad=True) * 1
        for i, one in enumerate(batch):
            one[:, 0] += 1  # raises
        assert batch.sum() == 10
        """,
        "",
        "batch[i][:, 0] for one[:, 0]",
        (("one[:, 0]", "batch[i][:, 0]"),),
        purpose="assert (batch[:, :, 0] == 1).all() and (batch[:, :, 1:] == 0).all()",
    ),
    Program(
        "What a view was taken of is written into",
        "overwritten",
        """
        class Gate(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)

            def forward(self, x):
                w = torch.sigmoid(self.fc(x.mean(-1)))
                y = x * w.unsqueeze(-1)
                w += 1  # writes
                return y

        Gate()(nn.Conv1d(2, 4, 1)(torch.randn(2, 2, 5))).sum().backward()  # raises
        """,
        "",
        "w = w + 1.",
        (("w += 1", "w = w + 1"),),
        purpose=(
            "gate, x = Gate(), torch.randn(2, 4, 5)\n"
            "share = torch.sigmoid(gate.fc(x.mean(-1)))\n"
            "assert torch.equal(gate(x), x * share[..., None])"
        ),
    ),
    Program(
        "A row that grows while it is added to",
        "broadcast in place",
        """
        row, table = torch.zeros(4), torch.ones(3, 4)
        row += table  # raises
        """,
        "",
        "row = row + table.",
        (("row += table", "row = row + table"),),
        ("has the shape [4]; the result has [3, 4]",),
        purpose="assert row.shape == (3, 4) and (row == 1).all()",
    ),
]
