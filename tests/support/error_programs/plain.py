"""Objects of Python where PyTorch's are meant: None, texts, arrays, tuples, names of a batch."""

from __future__ import annotations

from error_programs.program import Program

_NET = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 2)

            def forward(self, x):
                return self.fc(x)
"""
PROGRAMS = [
    Program(
        "A layer is None, as by its default",
        "None that is called",
        """
        class Block(nn.Module):
            def __init__(self, down=None):
                super().__init__()
                self.conv = nn.Conv2d(3, 3, 3, padding=1)
                self.down = down

            def forward(self, x):
                return self.conv(x) + self.down(x)  # raises

        x = torch.rand(1, 3, 8, 8)
        block = Block()
        out = block(x)
        """,
        "block (Block)",
        "use it only if self.down is not None",
        (("self.down(x)", "(x if self.down is None else self.down(x))"),),
        ("self.down is None, which is the default of down in Block", "give it, Block(..., down="),
        "assert torch.equal(out, block.conv(x) + x)",
    ),
    Program(
        "A Sequential with None in it",
        "None that is called",
        """
        act = None
        net = nn.Sequential(nn.Linear(4, 4), act)
        out = net(torch.rand(2, 4))  # raises
        """,
        "net (Sequential)",
        "give nn.Identity() in its place",
        (("act = None", "act = nn.Identity()"),),
        ("Member '1' of net (Sequential) is None",),
        "assert out.shape == (2, 4)",
    ),
    Program(
        "A transform that was not given",
        "None that is called",
        """
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __init__(self, transform=None):
                self.x, self.transform = torch.ones(4, 3), transform

            def __len__(self):
                return 4

            def __getitem__(self, i):
                return self.transform(self.x[i])  # raises

        batch = next(iter(DataLoader(Data(), batch_size=2)))
        """,
        "",
        "give it, Data(..., transform=...)",
        (("Data()", "Data(transform=lambda x: 2 * x)"),),
        (),
        "assert batch.tolist() == [[2.0, 2.0, 2.0]] * 2",
    ),
    Program(
        "A function that builds a model without a return",
        "None that is called",
        f"""{_NET}
        def build():
            net = Net()

        net = build()
        out = net(torch.rand(1, 4))  # raises
        """,
        "",
        "Return the value at the end of build.",
        (("    net = Net()\n", "    return Net()\n"),),
        ("build has no return with a value",),
        "x = torch.rand(1, 4)\nassert out.shape == (1, 2) and torch.equal(net(x), net.fc(x))",
    ),
    Program(
        "A train of its own that returns nothing",
        "None that is called",
        f"""{_NET}
            def train(self, mode=True):
                super().train(mode)

        model = Net()
        model = model.eval()
        out = model(torch.rand(1, 4))  # raises
        """,
        "",
        "return self at its end",
        (("super().train(mode)", "return super().train(mode)"),),
        ("model is None, which model.eval(), line 19, returned.",),
        "assert out.shape == (1, 2) and not model.training",
    ),
    Program(
        "The result of load_state_dict as the model",
        "None that is called",
        """
        net, other = nn.Linear(4, 2), nn.Linear(4, 2)
        net = net.load_state_dict(other.state_dict())
        out = net(torch.ones(1, 4))  # raises
        """,
        "",
        "call it on a line of its own, and keep the module",
        (("net = net.load", "net.load"),),
        (),
        "assert torch.equal(out, other(torch.ones(1, 4)))",
    ),
    Program(
        "A loader that is called",
        "None that is called",
        """
        from torch.utils.data import DataLoader
        loader = DataLoader([1, 2, 3])
        seen = [int(x) for x in loader()]  # raises
        """,
        "",
        "Go through it: for batch in loader",
        (("loader()", "loader"),),
        (),
        "assert seen == [1, 2, 3]",
    ),
    Program(
        "A text where a model is meant",
        "None that is called",
        """
        makers = {"small": lambda: nn.Linear(4, 2)}
        model = "small"
        out = model(torch.rand(1, 4))  # raises
        """,
        "",
        "give that itself, as by getattr(module, model) or a dict of names",
        (('model = "small"', 'model = makers["small"]()'),),
        ("model is of type str 'small'",),
        "assert out.shape == (1, 2)",
    ),
    Program(
        "A forward without a return, whose result is used",
        "member of an object",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 2)

            def forward(self, x):
                x = self.fc(x)

        net = Net()
        out = net(torch.ones(1, 4)).sum()  # raises
        """,
        "",
        "Return the value at the end of the forward of net (Net)",
        (("x = self.fc(x)", "return self.fc(x)"),),
        (),
        "assert torch.equal(out, net.fc(torch.ones(1, 4)).sum())",
    ),
    Program(
        "The output of an LSTM with its state",
        "member of an object",
        """
        lstm, fc = nn.LSTM(4, 6, batch_first=True), nn.Linear(18, 2)
        x = torch.rand(2, 3, 4)
        out = lstm(x)
        out = fc(out.flatten(1))  # raises
        """,
        "",
        "Take the tensor that is meant out of it: out[0].",
        (("out.flatten", "out[0].flatten"),),
        ("out is a tuple, which lstm (LSTM) returned", "out, state = ..."),
        "assert torch.equal(out, fc(lstm(x)[0].flatten(1)))",
    ),
    Program(
        "An array of NumPy that is moved to a device",
        "member of an object",
        """
        import numpy as np
        x = np.ones((2, 4), dtype=np.float32)
        out = nn.Linear(4, 2)(x.to("cpu"))  # raises
        """,
        "",
        "Make a tensor of it first: torch.from_numpy(x).",
        (("(x.to", "(torch.from_numpy(x).to"),),
        (),
        "assert out.shape == (2, 2) and torch.equal(out[0], out[1])",
    ),
    Program(
        "An array of NumPy that is brought to the CPU",
        "member of an object",
        """
        out = nn.Linear(4, 2)(torch.ones(1, 4)).detach().numpy()
        total = out.cpu().sum()  # raises
        """,
        "",
        "leave .cpu() out",
        (("out.cpu()", "out"),),
        (),
        "assert total == out.sum()",
    ),
    Program(
        "Texts among the tensors of a batch",
        "member of an object",
        """
        batch = {"x": torch.rand(2), "name": "a"}
        for key, value in batch.items():
            batch[key] = value.to("cpu")  # raises
        """,
        "",
        "value.to(...) if isinstance(value, torch.Tensor) else value",
        (("value.to(", "value if isinstance(value, str) else value.to("),),
        (),
        'assert batch["name"] == "a"',
    ),
    Program(
        "A dict of a model that is read by attributes",
        "member of an object",
        """
        net = nn.Linear(4, 2)
        out = {"logits": net(torch.ones(1, 4)), "loss": torch.zeros(())}
        best = out.logits.argmax(1)  # raises
        """,
        "",
        "Read it by its key: out['logits'].",
        (("out.logits", "out['logits']"),),
        (),
        "assert torch.equal(best, out['logits'].argmax(1))",
    ),
    Program(
        "The backward of a dict with a loss",
        "member of an object",
        """
        net = nn.Linear(4, 2)
        out = {"logits": net(torch.ones(1, 4)), "loss": net(torch.ones(1, 4)).sum()}
        out.backward()  # raises
        """,
        "",
        "Call it of the loss: out['loss'].backward().",
        (("out.backward", "out['loss'].backward"),),
        (),
        "assert torch.equal(net.bias.grad, torch.ones(2))",
    ),
    Program(
        "Parameters of a plain list of layers",
        "member of an object",
        """
        layers = [nn.Linear(4, 4), nn.Linear(4, 2)]
        names = list(layers.parameters())  # raises
        """,
        "",
        "nn.ModuleList(layers)",
        (("layers.parameters", "nn.ModuleList(layers).parameters"),),
        (),
        "assert len(names) == 4",
    ),
    Program(
        "A label of a data set that is a number",
        "member of an object",
        """
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            def __init__(self):
                self.y = [1, 2, 3]

            def __len__(self):
                return 3

            def __getitem__(self, i):
                y = self.y[i]
                return y.float()  # raises

        batch = next(iter(DataLoader(Data(), batch_size=3)))
        """,
        "",
        "make one: torch.tensor(y)",
        (("y.float()", "torch.tensor(y).float()"),),
        (),
        "assert batch.tolist() == [1.0, 2.0, 3.0]",
    ),
    Program(
        "A batch of enumerate that has one name",
        "tuple among tensors",
        """
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.rand(6, 3), torch.arange(6))
        sizes = []
        for x, y in enumerate(DataLoader(data, batch_size=3)):
            sizes.append(y.size(0))  # raises
        """,
        "",
        "name its parts, for i, (x, y) in enumerate(DataLoader(data, batch_size=3))",
        (("for x, y in", "for i, (x, y) in"),),
        (),
        "assert sizes == [3, 3]",
    ),
    Program(
        "Three names for what enumerate gives",
        "more names than values",
        """
        from torch.utils.data import DataLoader, TensorDataset
        loader = DataLoader(TensorDataset(torch.rand(6, 3), torch.arange(6)), batch_size=3)
        seen = []
        for i, x, y in enumerate(loader):  # raises
            seen += y.tolist()
        """,
        "",
        "names of their own: i, (x, y).",
        (("for i, x, y in", "for i, (x, y) in"),),
        (),
        "assert seen == [0, 1, 2, 3, 4, 5]",
    ),
    Program(
        "Two names for a batch that is one tensor",
        "more names than values",
        """
        from torch.utils.data import DataLoader
        loader = DataLoader(torch.arange(6.0), batch_size=3)
        total = 0
        for x, y in loader:  # raises
            total += x.sum()
        """,
        "",
        "Give it one name: for x in loader.",
        (("for x, y in", "for x in"),),
        (),
        "assert total == 15",
    ),
    Program(
        "Names for a batch that is a dict",
        "more names than values",
        """
        from torch.utils.data import DataLoader
        loader = DataLoader([{"a": 1, "b": 2, "c": 3}] * 4, batch_size=2)
        total = 0
        for x, y in loader:  # raises
            total += int(x.sum() + y.sum())
        """,
        "",
        "for batch in loader, then batch['a'], batch['b']",
        (("for x, y in loader:", "for batch in loader:\n    x, y = batch['a'], batch['b']"),),
        (),
        "assert total == 12",
    ),
    Program(
        "Four names for a shape of three",
        "more names than values",
        """
        picture = torch.rand(3, 8, 8)
        n, c, h, w = picture.shape  # raises
        """,
        "",
        "If it lacks the dimension of the batch: picture.unsqueeze(0)",
        (("picture.shape", "picture.unsqueeze(0).shape"),),
        ("picture has 3 dimensions (3, 8, 8), and 4 names were given for its shape.",),
        "assert (n, c, h, w) == (1, 3, 8, 8)",
    ),
    Program(
        "Two names for the output of a layer",
        "more names than values",
        """
        net = nn.Linear(4, 2)
        out, state = net(torch.rand(5, 4))  # raises
        """,
        "",
        "It returns one tensor, which is unpacked along its first dimension: out = ",
        (("out, state =", "out ="),),
        (),
        "assert out.shape == (5, 2)",
    ),
    Program(
        "Three names for what an LSTM returns",
        "more names than values",
        """
        lstm = nn.LSTM(3, 4)
        out, h, c = lstm(torch.rand(2, 3))  # raises
        """,
        "",
        "It returns the output, and a state: out, (h, c) = ...",
        (("out, h, c", "out, (h, c)"),),
        (),
        "assert out.shape == (2, 4) and torch.equal(out[-1:], h) and c.shape == (1, 4)",
    ),
    Program(
        "A path with a space in the list of a data set",
        "more names than values",
        """
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            lines = ["a.png 1", "b c.png 2"]

            def __len__(self):
                return 2

            def __getitem__(self, i):
                path, label = self.lines[i].split()  # raises
                return path, int(label)

        paths, labels = next(iter(DataLoader(Data(), batch_size=2)))
        """,
        "",
        "self.lines[i].rsplit(maxsplit=1)",
        ((".split()", ".rsplit(maxsplit=1)"),),
        (),
        'assert list(paths) == ["a.png", "b c.png"] and labels.tolist() == [1, 2]',
    ),
    Program(
        "A property that reads a missing attribute",
        "no such attribute",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.size = 3

            @property
            def width(self):
                return self.sized * 2

        net = Net()
        out = net.width  # raises
        """,
        "net (Net)",
        "Look for the attribute that the property reads",
        (("self.sized", "self.size"),),
        ("Net has the property 'width', and an attribute that it reads is missing",),
        "assert out == 6",
    ),
    Program(
        "A constructor whose name has one underscore",
        "no such attribute",
        """
        class Net(nn.Module):
            def _init_(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                return self.fc(x)  # raises

        out = Net()(torch.rand(1, 2))
        """,
        "the Net itself",
        "Call it __init__, with two underscores on each side: the class defines _init_.",
        (("_init_(self)", "__init__(self)"),),
        (),
        "assert out.shape == (1, 2)",
    ),
    Program(
        "A model that is not wrapped",
        "no such attribute",
        """
        net = nn.Sequential(nn.Linear(2, 2))
        state = net.module.state_dict()  # raises
        """,
        "net (Sequential)",
        "leave .module out",
        (("net.module.", "net."),),
        (),
        'assert list(state) == ["0.weight", "0.bias"]',
    ),
    Program(
        "A layer that another method makes",
        "no such attribute",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def build(self, classes):
                self.head = nn.Linear(2, classes)

            def forward(self, x):
                return self.head(self.fc(x))  # raises

        net = Net()
        out = net(torch.rand(1, 2))
        """,
        "net (Net)",
        "build assigns self.head, and has not done so: call it before",
        (("net = Net()", "net = Net()\nnet.build(5)"),),
        (),
        (
            "x = torch.rand(1, 2)\n"
            "assert out.shape == (1, 5) and torch.equal(net(x), net.head(net.fc(x)))"
        ),
    ),
    Program(
        "A layer of a model that an older release saved whole",
        "no such attribute",
        """
        net = nn.Conv2d(1, 1, 3)
        del net.__dict__["padding_mode"]  # As a file of an older release gives it.
        out = net(torch.rand(1, 1, 5, 5))  # raises
        """,
        "net (Conv2d)",
        "set it to the default of Conv2d in each, padding_mode='zeros'",
        (("out = net(", "net.padding_mode = 'zeros'\nout = net("),),
        ("If the model was saved whole by another release of PyTorch",),
        (
            "x = torch.rand(1, 1, 3, 3)\n"
            "want = (net.weight * x).sum() + net.bias\n"
            "assert out.shape == (1, 1, 3, 3) and torch.allclose(net(x), want.view(1, 1, 1, 1))"
        ),
    ),
    Program(
        "A whole model whose class is gone",
        "class of a pickle",
        """
        import io, sys, types

        class Net(nn.Linear):
            __module__ = "old_models"

        sys.modules["old_models"] = types.ModuleType("old_models")
        sys.modules["old_models"].Net = Net
        file = io.BytesIO()
        torch.save(Net(4, 2), file)
        del sys.modules["old_models"].Net
        file.seek(0)
        net = torch.load(file, weights_only=False)  # raises
        """,
        "",
        "put it where Python finds it",
        (('del sys.modules["old_models"].Net\n', ""),),
        ("needs the class or function Net of old_models", "save model.state_dict()"),
        "assert net.weight.shape == (2, 4)",
    ),
    Program(
        "The iterator of a loader that has ended",
        "end of a loader",
        """
        from torch.utils.data import DataLoader
        loader = DataLoader([1, 2])
        batches = iter(loader)
        total = 0
        for step in range(3):
            total += int(next(batches))  # raises
        """,
        "",
        "make the iterator anew, batches = iter(loader)",
        (
            (
                "total += int(next(batches))",
                "if step == 2:\n        batches = iter(loader)\n    total += int(next(batches))",
            ),
        ),
        (),
        "assert total == 4",
    ),
    Program(
        "A rank outside of torchrun",
        "variable that is not set",
        """
        import os
        os.environ.pop("LOCAL_RANK", None)
        rank = int(os.environ["LOCAL_RANK"])  # raises
        """,
        "",
        "os.environ.get('LOCAL_RANK', '0')",
        (('os.environ["LOCAL_RANK"]', "os.environ.get('LOCAL_RANK', '0')"),),
        ("torchrun --nproc-per-node=2 train.py",),
        "assert rank == 0",
    ),
    Program(
        "A port that is in use",
        "port in use",
        """
        import socket
        import torch.distributed as dist
        used = socket.create_server(("127.0.0.1", 0))
        port = used.getsockname()[1]
        free = socket.create_server(("127.0.0.1", 0))
        other = free.getsockname()[1]
        free.close()
        place = "tcp://127.0.0.1:{}"
        try:
            dist.init_process_group("gloo", place.format(port), rank=0, world_size=1)  # raises
            ranks = dist.get_world_size()
            dist.destroy_process_group()
        finally:
            used.close()
        """,
        "",
        "give this one a port of its own",
        (("place.format(port)", "place.format(other)"),),
        ("is in use",),
        "assert ranks == 1",
    ),
    Program(
        "A cycle of the momentum that the optimizer has not",
        "momentum of a cycle",
        """
        optimizer = torch.optim.Adagrad(nn.Linear(2, 2).parameters())
        rates = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.2)  # raises
        """,
        "",
        "cycle_momentum=False",
        (("0.1, 0.2", "0.1, 0.2, cycle_momentum=False"),),
        ("CyclicLR changes the momentum against the rate, and Adagrad has none",),
        "assert rates.get_last_lr() == [0.1]",
    ),
    Program(
        "A weight norm of the new kind that the old function takes off",
        "norm that is not there",
        """
        from torch.nn.utils.parametrizations import weight_norm
        conv = weight_norm(nn.Conv1d(2, 2, 3))
        before = conv.weight.detach().clone()
        torch.nn.utils.remove_weight_norm(conv)  # raises
        """,
        "",
        "torch.nn.utils.parametrize.remove_parametrizations(conv, 'weight')",
        (
            (
                "torch.nn.utils.remove_weight_norm(conv)",
                "torch.nn.utils.parametrize.remove_parametrizations(conv, 'weight')",
            ),
        ),
        ("weight_norm was to be taken off ParametrizedConv1d",),
        "assert isinstance(conv.weight, nn.Parameter) and torch.allclose(conv.weight, before)",
    ),
    Program(
        "A table that is asked for a label, in a worker",
        "error in a worker",
        """
        from torch.utils.data import DataLoader, Dataset

        class Data(Dataset):
            held = {"a": 1.0, "b": 2.0}

            def __len__(self):
                return 2

            def __getitem__(self, index):
                return self.held[index]

        batch = next(iter(DataLoader(Data(), batch_size=2, num_workers=1)))  # raises
        """,
        "",
        "held[list(held)[index]]",
        (("self.held[index]", "self.held[list(self.held)[index]]"),),
        ("The data set raised KeyError in a worker of the DataLoader: no key 0.",),
        "assert batch.tolist() == [1.0, 2.0]",
    ),
    Program(
        "A module whose constructor has one underscore, in an optimizer",
        "optimizer without parameters",
        """
        class Net(nn.Module):
            def _init_(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # raises
        """,
        "",
        "the class defines _init_",
        (("_init_(self)", "__init__(self)"),),
        (),
        "assert len(optimizer.param_groups[0]['params']) == 2",
    ),
    Program(
        "Weights of a file that are plain tensors of a module",
        "optimizer without parameters",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.ones(2, 2)

        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)  # raises
        """,
        "",
        "make a parameter where it is assigned, self.weight = nn.Parameter(...)",
        (("torch.ones(2, 2)", "nn.Parameter(torch.ones(2, 2))"),),
        (),
        "assert optimizer.param_groups[0]['params'][0] is net.weight",
    ),
    Program(
        "Shares of a split that are cut off",
        "lengths of a split",
        """
        from torch.utils.data import random_split
        dataset = list(range(13))
        parts = random_split(dataset, [int(0.8 * 13), int(0.2 * 13)])  # raises
        """,
        "",
        "give the last one the rest, len(dataset) - 10",
        (("int(0.2 * 13)", "len(dataset) - 10"),),
        ("10 + 2 is 12, for 13",),
        "assert [len(one) for one in parts] == [10, 3]",
    ),
    Program(
        "A step of a scaler that a round skips",
        "unscaled twice",
        """
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        steps = 0
        for x in (torch.tensor([[1.0, float("inf")]]), torch.ones(1, 2)):
            optimizer.zero_grad()
            scaler.scale(net(x).sum()).backward()
            scaler.unscale_(optimizer)  # raises
            if not torch.isfinite(net.weight.grad).all():
                continue
            scaler.step(optimizer)
            scaler.update()
            steps += 1
        """,
        "",
        "leaves scaler.update() out in a round that does not step: call it there, too",
        (("        continue", "        scaler.update()\n        continue"),),
        ("The continue in line 16",),
        "assert steps == 1",
    ),
    Program(
        "A mask written into one of several views",
        "one of several views",
        """
        whole = torch.tensor([[1.0, 2.0], [0.0, 4.0]], requires_grad=True)
        eps = 1e-3
        x, t = (whole * 1).unbind(0)
        t[t.abs() < eps] = eps  # raises
        out = (x / t).sum()
        out.backward()
        """,
        "",
        "t = torch.where(t.abs() < eps, eps, t)",
        (("t[t.abs() < eps] = eps", "t = torch.where(t.abs() < eps, eps, t)"),),
        (),
        "assert torch.allclose(out, torch.tensor(1000.5)) and whole.grad[1, 0] == 0",
    ),
    Program(
        "And and or, to choose between a tensor and another",
        "truth of many",
        """
        x, first = torch.rand(2, 2), True
        out = first and x or x * 2  # raises
        """,
        "",
        "x if first else x * 2.",
        (("first and x or x * 2", "x if first else x * 2"),),
        (),
        "assert out is x",
    ),
    Program(
        "Losses with their graph in a list that becomes an array",
        "numpy of a graph",
        """
        import numpy as np
        net, losses = nn.Linear(2, 1), []
        for _ in range(2):
            loss = net(torch.ones(1, 2)).sum()
            losses.append(loss)
        curve = np.array(losses)  # raises
        """,
        "",
        "append numbers where it is filled, loss.item()",
        (("append(loss)", "append(loss.item())"),),
        ("[one.detach() for one in losses]",),
        "assert curve.shape == (2,)",
    ),
    Program(
        "The rate of an optimizer, as an attribute",
        "member of an optimizer",
        """
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        rate = optimizer.lr  # raises
        """,
        "",
        "optimizer.param_groups[0]['lr']",
        (("optimizer.lr", "optimizer.param_groups[0]['lr']"),),
        ("scheduler.get_last_lr()",),
        "assert rate == 0.1",
    ),
    Program(
        "A ModuleDict of a list",
        "modules of a dict",
        """
        parts = nn.ModuleDict([nn.Linear(2, 2), nn.ReLU()])  # raises
        """,
        "the ModuleDict itself",
        "nn.ModuleDict({'first': ..., 'last': ...})",
        (("[nn.Linear(2, 2), nn.ReLU()]", "{'first': nn.Linear(2, 2), 'last': nn.ReLU()}"),),
        (),
        "assert list(parts) == ['first', 'last']",
    ),
    Program(
        "A Sequential of a generator",
        "member of a sequential",
        """
        net = nn.Sequential(nn.Linear(2, 2) for _ in range(3))  # raises
        """,
        "the Sequential itself",
        "Unpack it with a star where it stands",
        (("(nn.Linear(2, 2) for _ in range(3))", "(*(nn.Linear(2, 2) for _ in range(3)))"),),
        (),
        "assert len(net) == 3",
    ),
    Program(
        "A Sequential with a class in it",
        "member of a sequential",
        """
        net = nn.Sequential(nn.Linear(2, 2), nn.ReLU)  # raises
        """,
        "the Sequential itself",
        "Make an object of the class: ReLU()",
        (("nn.ReLU)", "nn.ReLU())"),),
        ("got the class ReLU",),
        "assert net(torch.rand(1, 2)).min() >= 0",
    ),
    Program(
        "The output of a layer, under the name of the layer",
        "no module or buffer",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(2, 2)

            def forward(self, x):
                self.fc = self.fc(x)  # raises
                return self.fc

        net, x = Net(), torch.rand(1, 2)
        out = net(x)
        """,
        "net (Net)",
        "give it a name of its own, out = self.fc(...)",
        (("self.fc = self.fc(x)", "out = self.fc(x)"), ("return self.fc", "return out")),
        (),
        "assert torch.equal(out, net.fc(x))",
    ),
    Program(
        "The shape of a loader",
        "attribute of a subset",
        """
        from torch.utils.data import DataLoader
        loader = DataLoader([1, 2, 3], batch_size=3)
        size = loader.shape  # raises
        """,
        "",
        "for x in loader: x.shape",
        (("size = loader.shape", "for x in loader: size = x.shape"),),
        (),
        "assert size == (3,)",
    ),
    Program(
        "A backward of the model in place of the loss",
        "no such attribute",
        """
        net = nn.Linear(2, 1)
        loss = net(torch.ones(1, 2)).sum()
        net.backward()  # raises
        """,
        "net (Linear)",
        "backward is of a loss: loss.backward()",
        (("net.backward", "loss.backward"),),
        (),
        "assert torch.equal(net.weight.grad, torch.ones(1, 2))",
    ),
    Program(
        "The function torch.tensor as a type of TorchScript",
        "type of a script",
        """
        class Net(nn.Module):
            def forward(self, x: torch.tensor) -> torch.Tensor:
                return x * 2

        net = torch.jit.script(Net())  # raises
        """,
        "",
        "the type is torch.Tensor",
        (("x: torch.tensor", "x: torch.Tensor"),),
        (),
        "assert torch.equal(net(torch.ones(2)), torch.full((2,), 2.0))",
    ),
    Program(
        "A schedule that begins at epoch 0",
        "scheduler without a beginning",
        """
        optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        from torch.optim.lr_scheduler import LambdaLR
        rates = LambdaLR(optimizer, lambda epoch: 0.5**epoch, last_epoch=0)  # raises
        """,
        "",
        "If a training begins anew: last_epoch=-1",
        (("last_epoch=0", "last_epoch=-1"),),
        (),
        "assert rates.get_last_lr() == [0.1]",
    ),
]
