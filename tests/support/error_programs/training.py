"""Hooks, modules, state dicts, and what runs models."""

from __future__ import annotations

from error_programs.program import Program

PROGRAMS = [
    Program(
        "A tensor hook returns a sum",
        "hook changed the size",
        """
        net = nn.Linear(4, 3)
        out = net(torch.randn(2, 4))
        out.register_hook(lambda grad: grad.sum())  # writes
        out.sum().backward()  # raises
        """,
        "",
        "Return a tensor of the same shape",
        (("grad.sum()", "grad * 2"),),
        ("on out: <lambda> at train.py:9",),
        purpose="assert torch.equal(net.bias.grad, torch.full((3,), 4.0))",
    ),
    Program(
        "A tensor hook returns another dtype",
        "hook changed the type",
        """
        out = nn.Linear(4, 3)(torch.randn(2, 4))
        out.register_hook(lambda grad: grad.double())  # writes
        out.sum().backward()  # raises
        """,
        "",
        "result.to(grad)",
        (("grad.double())", "grad.double().to(grad))"),),
        ("on out: <lambda> at train.py:8",),
        purpose=(
            "bias = out.grad_fn.next_functions[0][0].variable\n"
            "assert torch.equal(bias.grad, torch.full((3,), 2.0))"
        ),
    ),
    Program(
        "A tensor hook returns a number",
        "hook returned no tensor",
        """
        out = nn.Linear(4, 3)(torch.randn(2, 4))
        norms = []
        out.register_hook(lambda grad: norms.append(grad) or 1)  # writes
        out.sum().backward()  # raises
        """,
        "",
        "Return None",
        ((" or 1", ""),),
        purpose=(
            "bias = out.grad_fn.next_functions[0][0].variable\n"
            "assert torch.equal(bias.grad, torch.full((3,), 2.0))\n"
            "assert [norm.tolist() for norm in norms] == [[[1] * 3] * 2]"
        ),
    ),
    Program(
        "A node hook returns a bare tensor",
        "hook returned no tuple",
        """
        x = torch.randn(3, requires_grad=True)
        y = x * 2
        y.grad_fn.register_hook(lambda grad_in, grad_out: grad_in[0])
        y.sum().backward()  # raises
        """,
        "",
        "return (gradient,)",
        (("grad_in[0])", "(grad_in[0], None))"),),
        purpose="assert torch.equal(x.grad, torch.full((3,), 2.0))",
    ),
    Program(
        "A full backward hook returns too many gradients",
        "number of grad_input",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))

        def halve(module, grad_in, grad_out):  # writes
            return grad_in[0] / 2, None

        net[1].register_full_backward_hook(halve)
        net(torch.randn(2, 4)).sum().backward()  # raises
        """,
        "1 (Linear)",
        "Return a tuple of 1",
        (("grad_in[0] / 2, None", "(grad_in[0] / 2,)"),),
        ("halve at train.py:9",),
        purpose="assert torch.allclose(net[0].bias.grad, net[1].weight.sum(0), atol=1e-6)",
    ),
    Program(
        "A forward pre-hook returns its argument alone",
        "forward pre-hook",
        """
        net = nn.Sequential(nn.Linear(4, 3))

        def scale(module, args, kwargs):  # writes
            return args[0] * 2

        net[0].register_forward_pre_hook(scale, with_kwargs=True)
        net(torch.ones(1, 4))  # raises
        """,
        "0 (Linear)",
        "return (new_input,), kwargs",
        (("return args[0] * 2", "return (args[0] * 2,), kwargs"),),
        ("scale at train.py:9",),
        purpose=(
            "want = torch.full((1, 4), 2.0) @ net[0].weight.T + net[0].bias\n"
            "assert torch.allclose(result, want, atol=1e-6)"
        ),
    ),
    Program(
        "A forward hook returns a tuple",
        "argument that is no tensor",
        """
        net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
        net[0].register_forward_hook(lambda module, args, out: (out,))
        net(torch.randn(2, 4))  # raises
        """,
        "1 (ReLU)",
        "return a tensor from it",
        (("(out,))", "out)"),),
        ("which 0 (Linear) returned",),
        purpose=(
            "x = torch.randn(2, 4)\n"
            "want = (x @ net[0].weight.T + net[0].bias).clamp(min=0)\n"
            "assert torch.allclose(net(x), want, atol=1e-6)"
        ),
    ),
    Program(
        "Backward hooks of both kinds",
        "two kinds of backward hooks",
        """
        net = nn.Linear(4, 3)
        net.register_backward_hook(lambda module, grad_in, grad_out: None)
        net.register_full_backward_hook(lambda module, grad_in, grad_out: None)  # raises
        """,
        "net (Linear)",
        "register_full_backward_hook in place of",
        (("net.register_backward_hook", "net.register_full_backward_hook"),),
        purpose=(
            "net(torch.randn(2, 4)).sum().backward()\n"
            "assert torch.equal(net.bias.grad, torch.full((3,), 2.0))"
        ),
    ),
    Program(
        "A post-accumulate hook returns the gradient",
        "post-accumulate hook",
        """
        net = nn.Linear(4, 3)
        net.weight.register_post_accumulate_grad_hook(lambda p: p.grad.clamp_(-1, 1))
        net(torch.randn(2, 4)).sum().backward()  # raises
        """,
        "",
        "return nothing",
        (("p.grad.clamp_(-1, 1)", "(p.grad.clamp_(-1, 1), None)[1]"),),
        ("on weight: <lambda> at train.py:8",),
        purpose=(
            "assert net.weight.grad.abs().max() <= 1\n"
            "assert torch.equal(net.bias.grad, torch.full((3,), 2.0))"
        ),
    ),
    Program(
        "A hook on an input that does not require grad",
        "hook without grad",
        """
        image = torch.rand(3)
        image.register_hook(print)  # raises
        """,
        "",
        "image.requires_grad_()",
        (("image.register_hook", "image.requires_grad_().register_hook"),),
        purpose=(
            "seen = []\n"
            "image.register_hook(seen.append)\n"
            "image.pow(2).sum().backward()\n"
            "assert torch.equal(seen[0], 2 * image)"
        ),
    ),
    Program(
        "An LSTM in a Sequential",
        "argument that is no tensor",
        """
        net = nn.Sequential(nn.LSTM(4, 3), nn.Linear(3, 2))
        net(torch.randn(5, 2, 4))  # raises
        """,
        "1 (Linear)",
        "take the output, module(x)[0]",
        (
            (
                "net(torch.randn(5, 2, 4))",
                "output, _ = net[0](torch.randn(5, 2, 4))\nnet[1](output)",
            ),
        ),
        ("which 0 (LSTM) returned",),
        purpose="assert torch.allclose(result, output @ net[1].weight.T + net[1].bias, atol=1e-6)",
    ),
    Program(
        "A block without return",
        "argument that is no tensor",
        """
        class Block(nn.Module):
            def forward(self, x):
                x = x.relu()

        net = nn.Sequential(Block(), nn.Linear(4, 2))
        net(torch.randn(2, 4))  # raises
        """,
        "1 (Linear)",
        "Return the value at the end of the forward of 0 (Block)",
        (("x = x.relu()", "return x.relu()"),),
        ("the forward of 0 (Block) has no return with a value",),
        purpose="x = torch.randn(2, 4)\nassert torch.equal(net(x), net[1](x.clamp(min=0)))",
    ),
    Program(
        "A forward without one of its arguments",
        "arguments of forward",
        """
        class Decoder(nn.Module):
            def forward(self, x, memory):
                return x + memory

        net = Decoder()
        net(torch.rand(2))  # raises
        """,
        "net (Decoder)",
        "give what is missing in the call, memory=...",
        (("net(torch.rand(2))", "net(torch.rand(2), torch.rand(2))"),),
        ("missing 1 required positional argument: 'memory'", "(x, memory)"),
        purpose=(
            "x, memory = torch.rand(2), torch.rand(2)\n"
            "assert torch.equal(net(x, memory), x + memory)"
        ),
    ),
    Program(
        "A forward that is spelt otherwise",
        "no forward",
        """
        class Net(nn.Module):
            def foward(self, x):
                return x

        net = Net()
        net(torch.rand(2))  # raises
        """,
        "net (Net)",
        "Call it forward: the class defines 'foward'",
        (("foward", "forward"),),
        purpose="x = torch.rand(2)\nassert net(x) is x",
    ),
    Program(
        "A module without super().__init__()",
        "before init",
        """
        class Net(nn.Module):
            def __init__(self):
                self.fc = nn.Linear(4, 3)  # raises

        net = Net()
        """,
        "",
        "Call super().__init__()",
        (("        self.fc", "        super().__init__()\n        self.fc"),),
        purpose='assert [name for name, _ in net.named_parameters()] == ["fc.weight", "fc.bias"]',
    ),
    Program(
        "A submodule of another name",
        "no such attribute",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer1 = nn.Linear(4, 3)

            def forward(self, x):
                return self.layer_1(x)  # raises

        net = Net()
        net(torch.rand(2, 4))
        """,
        "net (Net)",
        "Did you mean 'layer1'",
        (("self.layer_1", "self.layer1"),),
        purpose="x = torch.rand(2, 4)\nassert torch.equal(net(x), net.layer1(x))",
    ),
    Program(
        "A tensor in the place of a parameter",
        "no parameter",
        """
        net = nn.ModuleDict({"fc": nn.Linear(4, 3)})
        net["fc"].weight = torch.zeros(3, 4)  # raises
        """,
        "fc (Linear)",
        "nn.Parameter(tensor)",
        (("torch.zeros(3, 4)", "nn.Parameter(torch.zeros(3, 4))"),),
        purpose=(
            'assert [name for name, _ in net.named_parameters()] == ["fc.weight", "fc.bias"]\n'
            'assert (net["fc"].weight == 0).all()'
        ),
    ),
    Program(
        "A state that was saved from DataParallel",
        "state dict",
        """
        net = nn.Sequential(nn.Linear(4, 3))
        state = {f"module.{key}": value for key, value in net.state_dict().items()}
        net.load_state_dict(state)  # raises
        """,
        "0 (Linear)",
        "key.removeprefix('module.')",
        (
            (
                "load_state_dict(state)",
                "load_state_dict({k.removeprefix('module.'): v for k, v in state.items()})",
            ),
        ),
        ("all its names begin with 'module.'",),
        purpose=(
            "now = net.state_dict()\n"
            'assert all(torch.equal(state[f"module.{key}"], value) for key, value in now.items())'
        ),
    ),
    Program(
        "A state of another number of classes",
        "state dict",
        """
        saved = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1000)).state_dict()
        net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 10))
        net.load_state_dict(saved)  # raises
        """,
        "1 (Linear)",
        "If the model is to be as it was saved: build it so",
        (("nn.Linear(8, 10))", "nn.Linear(8, 1000))"),),
        ("1.weight first: [1000, 8] for [10, 8]",),
        purpose=(
            "assert all(torch.equal(saved[key], value) for key, value in net.state_dict().items())"
        ),
    ),
    Program(
        "The parameters of a lazy module",
        "lazy parameter",
        """
        net = nn.LazyLinear(3)
        net.weight.sum()  # raises
        """,
        "",
        "Run one batch through the model first",
        (("net.weight", "net(torch.rand(2, 4))\nnet.weight"),),
        purpose="assert net.weight.shape == (3, 4)",
    ),
    Program(
        "An if over many elements",
        "truth of many",
        """
        x = torch.rand(3)
        bright = False
        if x > 0.5:  # raises
            bright = True
        """,
        "",
        "(x > 0.5).all()",
        (("if x > 0.5:", "if (x > 0.5).all():"),),
        purpose="assert bright == (x.min() > 0.5)",
    ),
    Program(
        "The number of a tensor with many",
        "number of many",
        """
        losses = torch.rand(4)
        print(losses.item())  # raises
        """,
        "",
        "losses.mean().item()",
        (("losses.item()", "losses.mean().item()"),),
        purpose="assert abs(losses.mean().item() - sum(losses.tolist()) / 4) < 1e-6",
    ),
    Program(
        "A value of a model on the meta device",
        "item of meta",
        """
        with torch.device("meta"):
            net = nn.Linear(4, 3)
        norm = net.weight.sum()
        norm.item()  # raises
        """,
        "",
        "model.to_empty(device='cpu')",
        (("norm = net", "net = net.to_empty(device='cpu')\nnorm = net"),),
        purpose='assert net.weight.device.type == "cpu" and norm.shape == ()',
    ),
    Program(
        "A checkpointed part that counts its calls",
        "checkpoint",
        """
        from torch.utils.checkpoint import checkpoint

        calls = []

        def part(x):
            calls.append(1)
            return x.exp().sin() if len(calls) == 1 else x.exp()

        x = torch.rand(3, requires_grad=True)
        checkpoint(part, x, use_reentrant=False).sum().backward()  # raises
        """,
        "",
        "Take out of the checkpointed part what changes",
        ((" if len(calls) == 1 else x.exp()", ""),),
        purpose="assert torch.allclose(x.grad, x.exp().cos() * x.exp()) and len(calls) == 2",
    ),
    Program(
        "DistributedDataParallel with a branch that is not used",
        "unused parameters",
        """
        import os

        import torch.distributed as dist

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.spare = nn.Linear(4, 1), nn.Linear(4, 1)

            def forward(self, x):
                return self.used(x).sum()

        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            net = nn.parallel.DistributedDataParallel(Net())
            for _ in range(2):
                loss = net(torch.rand(2, 4))  # raises
                loss.backward()
        finally:
            dist.destroy_process_group()
        """,
        "spare (Linear)",
        "find_unused_parameters=True",
        (("(Net())", "(Net(), find_unused_parameters=True)"),),
        ("spare.weight, spare.bias",),
        purpose=(
            "assert net.module.used.bias.grad.item() == 4\n"
            "assert net.module.spare.bias.grad is None"
        ),
    ),
    Program(
        "A GradScaler steps without a scaled loss",
        "scaler without scale",
        """
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        net(torch.rand(2, 4)).sum().backward()
        scaler.step(optimizer)  # raises
        """,
        "",
        "scaler.scale(loss).backward()",
        (
            (
                "net(torch.rand(2, 4)).sum().backward()",
                "scaler.scale(net(torch.rand(2, 4)).sum()).backward()",
            ),
        ),
        purpose="assert net.bias.grad.item() == 2",
    ),
]
