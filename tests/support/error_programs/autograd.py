"""A backward that cannot run, and what is done with gradients."""

from __future__ import annotations

from error_programs.program import Program

PROGRAMS = [
    Program(
        "A hidden state is detached inside the forward",
        "no graph",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                return self.fc(x).detach()  # writes

        net = Net()
        loss = net(torch.randn(2, 4)).sum()
        loss.backward()  # raises
        """,
        "net (Net)",
        "Take the .detach() away",
        ((".detach()", ""),),
        purpose=(
            "assert torch.allclose(net.fc.weight.grad[0], net.fc.weight.grad[2])\n"
            "assert torch.equal(net.fc.bias.grad, torch.full((3,), 2.0))"
        ),
    ),
    Program(
        "A loss is made of numbers of Python",
        "no graph",
        """
        net = nn.Linear(4, 3)
        total = 0.0
        for _ in range(2):
            total += net(torch.randn(2, 4)).sum().item()  # writes
        loss = torch.tensor(total)
        loss.backward()  # raises
        """,
        "",
        "Take the .item() away",
        ((".item()", ""), ("torch.tensor(total)", "total")),
        purpose="assert torch.equal(net.bias.grad, torch.full((3,), 4.0))",
    ),
    Program(
        "All parameters are frozen",
        "no graph",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        net.requires_grad_(False)
        net(torch.randn(2, 4)).sum().backward()  # raises
        """,
        "",
        "If parameters are to be trained: set requires_grad_(True) on them",
        (("net.requires_grad_(False)", "net[0].weight.requires_grad_(True)"),),
        ("no parameter of net (Sequential) requires grad",),
        purpose="assert set(net[0].bias.grad.tolist()) <= {0, 1, 2}",
    ),
    Program(
        "A forward runs under no_grad",
        "no graph",
        """
        net = nn.Linear(4, 3)
        with torch.no_grad():  # writes
            loss = net(torch.randn(2, 4)).sum()
        loss.backward()  # raises
        """,
        "",
        "Take torch.no_grad() away",
        (("with torch.no_grad():", "if True:"),),
        purpose="assert torch.equal(net.bias.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "A loss of class numbers",
        "no graph",
        """
        net = nn.Linear(4, 3)
        right = net(torch.randn(2, 4)).argmax(1) == 1
        loss = right.sum()
        loss.backward()  # raises
        """,
        "",
        "Compute the loss from floats",
        (
            (
                "right = net(torch.randn(2, 4)).argmax(1) == 1",
                "right = net(torch.randn(2, 4))[:, 1]",
            ),
        ),
        ("int64[]",),
        purpose="assert net.bias.grad.tolist() == [0, 2, 0]",
    ),
    Program(
        "A gradient penalty without create_graph",
        "no graph",
        """
        critic = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        x = torch.randn(2, 4, requires_grad=True)
        grad, = torch.autograd.grad(critic(x).sum(), x)
        penalty = grad.norm(2, dim=1).sub(1).pow(2).mean()
        penalty.backward()  # raises
        """,
        "",
        "create_graph=True",
        (("critic(x).sum(), x)", "critic(x).sum(), x, create_graph=True)"),),
        purpose=(
            "first, last = critic[0], critic[2]\n"
            "h = torch.tanh(x @ first.weight.T + first.bias)\n"
            "slope = ((1 - h**2) * last.weight) @ first.weight\n"
            "twin = slope.norm(dim=1).sub(1).pow(2).mean()\n"
            "want = torch.autograd.grad(twin, first.weight)[0]\n"
            "assert torch.allclose(first.weight.grad, want, atol=1e-5)"
        ),
    ),
    Program(
        "A forward in inference mode",
        "no graph",
        """
        net = nn.Linear(4, 3)
        with torch.inference_mode():  # writes
            loss = net(torch.randn(2, 4)).sum()
        loss.backward()  # raises
        """,
        "",
        "outside of torch.inference_mode()",
        (("with torch.inference_mode():", "if True:"),),
        purpose="assert torch.equal(net.bias.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "Backward twice through one loss",
        "backward twice",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())
        loss = net(torch.randn(2, 4)).sum()
        loss.backward()
        loss.backward()  # raises
        """,
        "1 (Sigmoid)",
        "Give retain_graph=True to the first backward",
        (("loss.backward()\nloss", "loss.backward(retain_graph=True)\nloss"),),
        purpose="assert (net[0].bias.grad > 0).all() and (net[0].bias.grad <= 2 * 2 / 4).all()",
    ),
    Program(
        "A hidden state is carried from batch to batch",
        "backward twice",
        """
        rnn = nn.GRUCell(4, 3)
        state = torch.zeros(2, 3)
        for _ in range(2):
            state = rnn(torch.randn(2, 4), state)
            loss = state.sum()
            loss.backward()  # raises
        """,
        "rnn (GRUCell)",
        "state = state.detach()",
        (("rnn(torch.randn(2, 4), state)", "rnn(torch.randn(2, 4), state.detach())"),),
        purpose="assert rnn.weight_hh.grad is not None and rnn.weight_ih.grad.shape == (9, 4)",
    ),
    Program(
        "Two losses share a part that is freed",
        "backward twice",
        """
        trunk, head = nn.Linear(4, 3), nn.Linear(3, 1)
        shared = trunk(torch.randn(2, 4)).tanh()
        shared.sum().backward()
        loss = head(shared).sum()
        loss.backward()  # raises
        """,
        "trunk (Linear)",
        "Give retain_graph=True to the earlier backward",
        (("shared.sum().backward()", "shared.sum().backward(retain_graph=True)"),),
        ("shared carries it over", "if both are to train trunk (Linear)"),
        purpose=(
            "want = ((1 + head.weight) * (1 - shared**2)).sum(0)\n"
            "assert torch.allclose(trunk.bias.grad, want, atol=1e-5)"
        ),
    ),
    Program(
        "Backward from a loss per sample",
        "no scalar",
        """
        net = nn.Linear(4, 1)
        loss = F.mse_loss(net(torch.randn(8, 4)), torch.randn(8, 1), reduction="none")
        loss.backward()  # raises
        """,
        "",
        "loss.mean().backward()",
        (("loss.backward()", "loss.mean().backward()"),),
        ("float32[8, 1]",),
        purpose="assert net.bias.grad.abs() <= 2 * loss.sqrt().mean() + 1e-6",
    ),
    Program(
        "A gradient of another shape is handed to backward",
        "gradient of another shape",
        """
        net = nn.Linear(4, 3)
        out = net(torch.randn(2, 4))
        out.backward(torch.ones(3))  # raises
        """,
        "",
        "torch.ones_like(out)",
        (("torch.ones(3)", "torch.ones_like(out)"),),
        purpose="assert torch.equal(net.bias.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "A gradient with respect to an input that does not require grad",
        "input without grad",
        """
        net = nn.Linear(4, 1)
        image = torch.randn(2, 4)
        saliency, = torch.autograd.grad(net(image).sum(), image)  # raises
        """,
        "",
        "image.requires_grad_()",
        (("torch.randn(2, 4)", "torch.randn(2, 4).requires_grad_()"),),
        purpose="assert torch.equal(saliency, net.weight.expand(2, 4))",
    ),
    Program(
        "A gradient with respect to a parameter that was not used",
        "input not used",
        """
        net = nn.ModuleDict({"used": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
        loss = net["used"](torch.randn(2, 4)).sum()
        torch.autograd.grad(loss, list(net.parameters()))  # raises
        """,
        "spare (Linear)",
        "allow_unused=True",
        (("list(net.parameters())", "list(net.parameters()), allow_unused=True"),),
        ("spare.weight",),
        purpose=(
            "assert result[0].shape == (1, 4) and result[1].item() == 2\n"
            "assert result[2] is None and result[3] is None"
        ),
    ),
    Program(
        "A second derivative through a function that has none",
        "differentiated once",
        """
        from torch.autograd.function import once_differentiable

        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            @once_differentiable
            def backward(ctx, grad):
                return 2 * ctx.saved_tensors[0] * grad

        x = torch.randn(3, requires_grad=True)
        grad, = torch.autograd.grad(Square.apply(x).pow(2).sum(), x, create_graph=True)
        grad.sum().backward()  # raises
        """,
        "",
        "Take @once_differentiable away",
        (("    @once_differentiable\n", ""),),
        purpose="assert torch.allclose(grad, 4 * x**3) and torch.allclose(x.grad, 12 * x**2)",
    ),
    Program(
        "A custom function returns a gradient of the wrong shape",
        "function gave another shape",
        """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(x, factor)
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                x, factor = ctx.saved_tensors
                return grad * factor, (grad * x).sum()

        x, factor = torch.randn(2, 3), torch.ones(3, requires_grad=True)
        Scale.apply(x, factor).sum().backward()  # raises
        """,
        "",
        "grad.sum_to_size(shape)",
        (("(grad * x).sum()", "(grad * x).sum_to_size(factor.shape)"),),
        ("Scale.backward", "argument 1"),
        purpose="assert torch.allclose(factor.grad, x.sum(0))",
    ),
    Program(
        "A custom function returns too few gradients",
        "function gave another number",
        """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.factor = factor
                return x * factor

            @staticmethod
            def backward(ctx, grad):  # writes
                return grad * ctx.factor

        x = torch.randn(2, 3, requires_grad=True)
        Scale.apply(x, 2.0).sum().backward()  # raises
        """,
        "",
        "None for those that have none",
        (("return grad * ctx.factor", "return grad * ctx.factor, None"),),
        ("Scale.backward returned 1 gradients",),
        purpose="assert torch.equal(x.grad, torch.full((2, 3), 2.0))",
    ),
    Program(
        "A custom function returns a number",
        "function gave no tensor",
        """
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):  # writes
                return 2

        x = torch.randn(3, requires_grad=True)
        Double.apply(x).sum().backward()  # raises
        """,
        "",
        "Return a tensor of the shape of the argument",
        (("return 2\n", "return 2 * grad\n"),),
        purpose="assert torch.equal(x.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "A second derivative of fused attention",
        "no derivative",
        """
        q = torch.randn(1, 1, 4, 8, requires_grad=True)
        out = F.scaled_dot_product_attention(q, q, q)
        grad, = torch.autograd.grad(out.pow(2).sum(), q, create_graph=True)
        grad.sum().backward()  # raises
        """,
        "",
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
        (
            (
                "out = F",
                "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
                "with sdpa_kernel(SDPBackend.MATH): out = F",
            ),
        ),
        purpose=(
            "twin = q.detach().clone().requires_grad_()\n"
            "by_hand = (twin @ twin.mT / 8**0.5).softmax(-1) @ twin\n"
            "(g,) = torch.autograd.grad(by_hand.pow(2).sum(), twin, create_graph=True)\n"
            "g.sum().backward()\n"
            "assert torch.allclose(q.grad, twin.grad, atol=1e-3)"
        ),
    ),
    Program(
        "A second derivative of what is linear",
        "no graph",
        """
        net = nn.Linear(4, 3)
        x = torch.randn(2, 4, requires_grad=True)
        net.requires_grad_(False)
        grad, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        grad.sum().backward()  # raises
        """,
        "",
        "set requires_grad_(True) on them",
        (("requires_grad_(False)", "requires_grad_(True)"),),
        purpose="assert torch.equal(net.weight.grad, torch.full((3, 4), 2.0))",
    ),
    Program(
        "A row of a gradient that is None",
        "item of None",
        """
        table = nn.Embedding(5, 3)
        first = table.weight.grad[0]  # raises
        """,
        "table (Embedding)",
        "Call backward() before its gradient is read",
        (("first =", "table(torch.tensor([0])).sum().backward()\nfirst ="),),
        purpose="assert torch.equal(first, torch.ones(3)) and (table.weight.grad[1:] == 0).all()",
    ),
    Program(
        "A custom function without backward",
        "function without backward",
        """
        class Round(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.round()

        x = torch.randn(3, requires_grad=True)
        Round.apply(x).sum().backward()  # raises
        """,
        "",
        "Write a static method backward(ctx, grad_output)",
        (
            (
                "        return x.round()\n",
                "        return x.round()\n\n    @staticmethod\n    def backward(ctx, grad):\n"
                "        return grad\n",
            ),
        ),
        purpose="assert torch.equal(x.grad, torch.ones(3))",
    ),
    Program(
        "A root of zero, with anomaly detection",
        "nan in backward",
        """
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            (x.sqrt() * 0).sum().backward()  # raises
        """,
        "",
        "(x + 1e-6).sqrt()",
        (("(x.sqrt() * 0)", "((x + 1e-6).sqrt() * 0)"),),
        ("SqrtBackward0",),
        purpose="assert torch.equal(x.grad, torch.zeros(3))",
    ),
    Program(
        "The gradient of a parameter before any backward",
        "attribute of None",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        net(torch.randn(2, 4)).sum()
        norm = net[0].weight.grad.norm()  # raises
        """,
        "0 (Linear)",
        "Call backward() before its gradient is read",
        ((".sum()\n", ".sum().backward()\n"),),
        ("The gradient of 0.weight is None",),
        purpose="assert norm == net[0].weight.grad.norm()",
    ),
    Program(
        "The gradient of a tensor that was computed",
        "attribute of None",
        """
        net = nn.Linear(4, 3)
        hidden = net(torch.randn(2, 4))
        hidden.pow(2).sum().backward()
        print(hidden.grad.shape)  # raises
        """,
        "",
        "Call hidden.retain_grad() before the backward",
        (("hidden.pow", "hidden.retain_grad()\nhidden.pow"),),
        purpose="assert torch.allclose(hidden.grad, 2 * hidden)",
    ),
    Program(
        "Clipping by hand, where a parameter has no gradient",
        "attribute of None",
        """
        net = nn.ModuleDict({"used": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
        net["used"](torch.randn(2, 4)).sum().backward()
        for p in net.parameters():
            p.grad.clamp_(-1, 1)  # raises
        """,
        "spare (Linear)",
        "if p.grad is not None",
        (("    p.grad.clamp_", "    if p.grad is not None: p.grad.clamp_"),),
        ("spare.weight",),
        purpose=(
            'assert net["used"].bias.grad.item() == 1 and net["spare"].bias.grad is None\n'
            'assert net["used"].weight.grad.abs().max() <= 1'
        ),
    ),
    Program(
        "A norm over all gradients, where one is None",
        "None among tensors",
        """
        net = nn.ModuleDict({"used": nn.Linear(4, 1), "spare": nn.Linear(4, 1)})
        net["used"](torch.randn(2, 4)).sum().backward()
        bias = [p.grad for p in net.parameters() if p.dim() == 1]
        norm = torch.stack([p.grad for p in net.parameters()][1::2])  # raises
        """,
        "spare (Linear)",
        "leave out what has none",
        (
            (
                "for p in net.parameters()][1::2]",
                "for p in net.parameters() if p.grad is not None][1::2]",
            ),
        ),
        purpose="assert norm.tolist() == [[2]]",
    ),
    Program(
        "A step of gradient descent by hand, without a gradient",
        "operator on None",
        """
        w = torch.randn(3, requires_grad=True)
        with torch.no_grad():
            w -= 0.1 * w.grad  # raises
        """,
        "",
        "Call backward() before its gradient is read",
        (("with torch.no_grad():", "w.sum().backward()\nwith torch.no_grad():"),),
        purpose="assert w.is_leaf and w.requires_grad and torch.equal(w.grad, torch.ones(3))",
    ),
    Program(
        "requires_grad of whole numbers",
        "integer with grad",
        """
        x = torch.arange(3)
        x.requires_grad_()  # raises
        """,
        "",
        "x.float().requires_grad_()",
        (("x.requires_grad_()", "x.float().requires_grad_()"),),
        purpose="result.pow(2).sum().backward()\nassert torch.equal(result.grad, 2.0 * x)",
    ),
    Program(
        "requires_grad is switched off on a result",
        "flag of a non-leaf",
        """
        net = nn.Linear(4, 3)
        out = net(torch.randn(2, 4))
        out.requires_grad = False  # raises
        """,
        "",
        "out.detach()",
        (("out.requires_grad = False", "out = out.detach()"),),
        purpose="assert out.is_leaf and not out.requires_grad and out.shape == (2, 3)",
    ),
    Program(
        "An output as an array of numpy",
        "numpy of a graph",
        """
        net = nn.Linear(4, 3)
        out = net(torch.randn(2, 4))
        values = out.numpy()  # raises
        """,
        "",
        "out.detach().numpy()",
        (("out.numpy()", "out.detach().numpy()"),),
        ("made by net (Linear)",),
        purpose="assert torch.equal(torch.from_numpy(values), out)",
    ),
    Program(
        "A copy of a model that keeps an activation",
        "copy of a non-leaf",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                self.hidden = self.fc(x)
                return self.hidden.sum()

        net = Net()
        net(torch.randn(2, 4))
        best = copy.deepcopy(net)  # raises
        """,
        "net (Net)",
        "keep it without its graph",
        (
            (
                "self.hidden = self.fc(x)\n        return self.hidden.sum()",
                "hidden = self.fc(x)\n        self.hidden = hidden.detach()\n        return "
                "hidden.sum()",
            ),
        ),
        ("hidden",),
        purpose=(
            "assert torch.equal(best.hidden, net.hidden) and best.hidden is not net.hidden\n"
            "assert torch.equal(best.fc.weight, net.fc.weight) and best.fc is not net.fc"
        ),
    ),
    Program(
        "An optimizer of a model whose layers are in a list",
        "optimizer without parameters",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(4, 4) for _ in range(2)]

        net = Net()
        torch.optim.SGD(net.parameters(), lr=0.1)  # raises
        """,
        "",
        "nn.ModuleList",
        (
            (
                "[nn.Linear(4, 4) for _ in range(2)]",
                "nn.ModuleList(nn.Linear(4, 4) for _ in range(2))",
            ),
        ),
        ("keeps modules in a plain list or dict, 'layers'",),
        purpose="assert [p.numel() for p in net.parameters()] == [16, 4, 16, 4]",
    ),
    Program(
        "An optimizer of a tensor that was moved after requires_grad",
        "optimizer of a non-leaf",
        """
        w = torch.zeros(3, requires_grad=True).to(torch.float64)
        torch.optim.SGD([w], lr=0.1)  # raises
        """,
        "",
        "Move or convert before requires_grad_()",
        (
            (
                "torch.zeros(3, requires_grad=True).to(torch.float64)",
                "torch.zeros(3, dtype=torch.float64, requires_grad=True)",
            ),
        ),
        purpose="assert w.is_leaf and w.requires_grad and w.dtype is torch.float64",
    ),
    Program(
        "A result is written with out=",
        "out with grad",
        """
        w, buffer = torch.randn(3, requires_grad=True), torch.empty(3)
        torch.mul(w, 2.0, out=buffer)  # raises
        """,
        "",
        "Take the result instead of out=",
        (("torch.mul(w, 2.0, out=buffer)", "buffer = torch.mul(w, 2.0)"),),
        purpose="buffer.sum().backward()\nassert torch.equal(w.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "Two losses share a part of the graph",
        "backward twice",
        """
        trunk, one, two = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 1)
        h = trunk(torch.randn(3, 2)).tanh()
        first, second = one(h).sum(), two(h).sum()
        first.backward()  # writes
        second.backward()  # raises
        """,
        "trunk (Linear)",
        "Give retain_graph=True to the earlier backward",
        (("first.backward()", "first.backward(retain_graph=True)"),),
        ("h carries it over", "earlier train.py:10: first.backward()"),
        purpose=(
            "want = ((one.weight + two.weight) * (1 - h**2)).sum(0)\n"
            "assert torch.allclose(trunk.bias.grad, want, atol=1e-5)"
        ),
    ),
    Program(
        "A state that is a tuple is carried over",
        "backward twice",
        """
        rnn, state = nn.LSTM(2, 3), None
        for _ in range(2):
            out, state = rnn(torch.randn(4, 1, 2), state)
            loss = out.sum()
            loss.backward()  # raises
        """,
        "rnn (LSTM)",
        "state = tuple(one.detach() for one in state)",
        (
            (
                "loss.backward()  # raises",
                "loss.backward()\n    state = tuple(one.detach() for one in state)",
            ),
        ),
        ("state carries it over",),
        purpose=(
            "assert rnn.weight_hh_l0.grad is not None\n"
            "assert not any(one.requires_grad for one in state)"
        ),
    ),
    Program(
        "A custom function is gone through twice",
        "backward twice",
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

        loss = Square.apply(torch.ones(2, requires_grad=True)).sum()
        loss.backward(); loss.backward()
        """,
        "",
        "Give retain_graph=True to the first backward",
        (("loss.backward(); ", "loss.backward(retain_graph=True); "),),
        ("freed SquareBackward", "first train.py:19: loss.backward()"),
        purpose=(
            "leaf = loss.grad_fn.next_functions[0][0].next_functions[0][0].variable\n"
            "assert torch.equal(leaf.grad, torch.full((2,), 4.0))"
        ),
    ),
    Program(
        "The backward of a custom function raises",
        "dot product",
        """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(weight)
                return x @ weight[:2]

            @staticmethod
            def backward(ctx, grad):
                (weight,) = ctx.saved_tensors
                return grad @ weight, None  # raises

        x = torch.ones(2, 2, requires_grad=True)
        Scale.apply(x, torch.ones(5)).sum().backward()
        """,
        "",
        "Make what produces grad or weight so wide",
        (("grad @ weight", "torch.outer(grad, weight[:2])"),),
        ("the last dimension of grad, which is 2", "weight, which is 5"),
        purpose="assert torch.equal(x.grad, torch.ones(2, 2))",
    ),
    Program(
        "A comparison is trained on, beside a detach that is none of it",
        "no graph",
        """
        net, log = nn.Linear(2, 2), []
        out = net(torch.ones(3, 2))
        log.append(out.detach().mean())
        hits = (out > 0.5).float()  # writes
        loss = hits.mean()
        loss.backward()  # raises
        """,
        "",
        "Compute the loss from floats",
        (("(out > 0.5).float()", "out.sigmoid()"),),
        ("cut train.py:10: (out > 0.5).float()",),
        purpose=(
            "slope = hits * (1 - hits)\n"
            "assert torch.allclose(net.bias.grad, slope.sum(0) / 6) and len(log) == 1"
        ),
    ),
    Program(
        "Gradients are switched off by a call",
        "no graph",
        """
        net = nn.Linear(2, 2)
        with torch.enable_grad():
            torch.set_grad_enabled(False)  # writes
            loss = net(torch.ones(3, 2)).sum()
        loss.backward()  # raises
        """,
        "",
        "Take torch.set_grad_enabled(False) away",
        (("    torch.set_grad_enabled(False)", "    pass"),),
        purpose="assert torch.equal(net.bias.grad, torch.full((2,), 3.0))",
    ),
    Program(
        "A GAN uses a fake again whose graph the critic's backward freed",
        "backward twice",
        """
        def train():
            generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
            for _ in range(2):
                fake = generator(torch.randn(6, 4))
                critic_loss = critic(fake).mean()
                critic_loss.backward()
                generator.zero_grad()
                loss = -critic(fake).mean()
                loss.backward()  # raises
            return generator, critic

        generator, critic = train()
        """,
        "generator (Linear)",
        "give fake.detach() where that one is computed",
        (("critic_loss = critic(fake)", "critic_loss = critic(fake.detach())"),),
        ("it then does not train generator (Linear)",),
        purpose="assert torch.allclose(generator.bias.grad, -critic.weight[0])",
    ),
    Program(
        "The derivative of a batch of outputs",
        "no scalar",
        """
        net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
        x = torch.rand(10, 1, requires_grad=True)
        u = net(x)
        (u_x,) = torch.autograd.grad(u, x, create_graph=True)  # raises
        """,
        "",
        "Give grad_outputs=torch.ones_like(u)",
        (("create_graph", "grad_outputs=torch.ones_like(u), create_graph"),),
        ("torch.autograd.grad was asked for gradients of u",),
        purpose=(
            "h = torch.tanh(net[0](x))\n"
            "want = ((1 - h**2) * net[0].weight.T) @ net[2].weight.T\n"
            "assert torch.allclose(u_x, want, atol=1e-6) and u_x.requires_grad"
        ),
    ),
    Program(
        "A parameter is made anew of its own gradient",
        "attribute of None",
        """
        x, y = torch.randn(8, 3), torch.randn(8)
        w = torch.randn(3, requires_grad=True)
        for _ in range(2):
            ((x @ w - y) ** 2).mean().backward()
            w = w - 0.1 * w.grad
            w.grad.zero_()  # raises
        """,
        "",
        "with torch.no_grad(): w -= step * w.grad",
        (("    w = w -", "    with torch.no_grad():\n        w -="),),
        ("w = w - 0.1 * w.grad, made another tensor of that name",),
        purpose="assert w.is_leaf and torch.equal(w.grad, torch.zeros(3))",
    ),
]
