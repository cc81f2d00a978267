"""Programs that PyTorch's own checks of arguments refuse, and how they run."""

from __future__ import annotations

from error_programs.program import Program


def _one(
    title: str,
    message: str,
    source: str,
    way: str,
    change: tuple[str, str],
    purpose: str = "",
    module: str = "",
) -> Program:
    return Program(title, message, source, module, way, (change,), purpose=purpose)


_X = "x = torch.arange(6.0).view(2, 3)\n"
MADE = [
    _one(
        "A loss that is indexed",
        "index of a scalar",
        "loss = torch.tensor(3.0)\nvalue = loss[0]  # raises",
        "loss.item()",
        ("loss[0]", "loss.item()"),
        "assert value == 3",
    ),
    _one(
        "Half of an index",
        "index that is no integer",
        "x = torch.arange(4)\nmiddle = x[len(x) / 2]  # raises",
        "// in place of /",
        ("/ 2", "// 2"),
        "assert middle == 2",
    ),
    _one(
        "A batch in which nothing was found",
        "nothing to join",
        "found = []\nrows = torch.cat(found) if True else None  # raises",
        "if found: ...",
        ("if True", "if found"),
        "assert rows is None",
    ),
    Program(
        "Boxes of which none is sure enough",
        "nothing to join",
        "boxes, scores, kept = torch.ones(2, 4), [0.3, 0.6], []\n"
        "for box, score in zip(boxes, scores):\n    if score > 0.9:\n        kept.append(box)\n"
        "x = torch.stack(kept)  # raises",
        "",
        "It stands under if score > 0.9, in the loop over zip(boxes, scores)",
        (("0.9", "0.5"),),
        says=("train.py:10 never appended to it",),
        purpose="assert x.tolist() == [[1.0, 1.0, 1.0, 1.0]]",
    ),
    _one(
        "A method in place of a size",
        "size of another kind",
        "x = torch.ones(2, 3)\nrows = x.reshape(1, x.numel)  # raises",
        "x.numel(...)",
        ("x.numel)", "x.numel())"),
        "assert rows.shape == (1, 6)",
    ),
    _one(
        "A width that has no number",
        "size in a tuple",
        "width = None\nmask = torch.zeros((width, 4))  # raises",
        "Give it a number where it comes from",
        ("None", "2"),
        "assert mask.shape == (2, 4)",
    ),
    _one(
        "A name in place of a dimension",
        "argument of another kind",
        "x = torch.ones(2, 3)\ny = torch.unsqueeze(x, 'rows')  # raises",
        "Give int there",
        ("'rows'", "0"),
        "assert y.shape == (1, 2, 3)",
    ),
    _one(
        "Sentences in a list of lists",
        "lists of different lengths",
        "ids = [[1, 2, 3], [4, 5]]\nbatch = torch.tensor(ids)  # raises",
        "pad_sequence([torch.tensor(one) for one in ids], batch_first=True)",
        (
            "torch.tensor(ids)",
            "nn.utils.rnn.pad_sequence([torch.tensor(one) for one in ids], batch_first=True)",
        ),
        "assert batch.tolist() == [[1, 2, 3], [4, 5, 0]]",
    ),
    _one(
        "Labels as words",
        "tensor of strings",
        "classes, labels = ['cat', 'dog'], ['dog', 'cat']\ny = torch.tensor(labels)  # raises",
        "[classes.index(one) for one in labels]",
        ("tensor(labels)", "tensor([classes.index(one) for one in labels])"),
        "assert y.tolist() == [1, 0]",
    ),
    _one(
        "A column of a table that holds objects",
        "array of objects",
        "import numpy\n\nrows = numpy.array([1, 2.5], dtype=object)\n"
        "x = torch.tensor(rows)  # raises",
        "rows.astype('float32')",
        ("tensor(rows)", "tensor(rows.astype('float32'))"),
        "assert x.tolist() == [1, 2.5]",
    ),
    _one(
        "A picture that is mirrored by numpy",
        "array turned around",
        "import numpy\n\npicture = numpy.arange(4.0)[::-1]\n"
        "x = torch.from_numpy(picture)  # raises",
        "picture.copy()",
        ("from_numpy(picture)", "from_numpy(picture.copy())"),
        "assert x.tolist() == [3, 2, 1, 0]",
    ),
    _one(
        "A list for from_numpy",
        "no array",
        "rows = [1, 2]\nx = torch.from_numpy(rows)  # raises",
        "torch.tensor(rows)",
        ("from_numpy(rows)", "tensor(rows)"),
        "assert x.tolist() == [1, 2]",
    ),
    _one(
        "Whole numbers as a weight",
        "integer gradients",
        "net = nn.Linear(2, 2)\nnet.weight.data = torch.eye(2).long()  # raises",
        "tensor.float()",
        (".long()", ".float()"),
        "assert torch.equal(net.weight, torch.eye(2))",
    ),
    _one(
        "A gradient of a part for the whole",
        "gradient of another size",
        "w = torch.ones(2, 2, requires_grad=True)\nw.grad = torch.ones(2)  # raises",
        "Give a gradient of the size of the tensor.",
        ("torch.ones(2)  #", "torch.ones(2, 2)  #"),
        "assert w.grad.shape == (2, 2)",
    ),
    _one(
        "A size that is computed too small",
        "negative size",
        "have, wanted = 5, 3\nfill = torch.zeros(wanted - have)  # raises",
        "it has to be 0 or more",
        ("wanted - have", "max(0, wanted - have)"),
        "assert fill.numel() == 0",
    ),
    _one(
        "A dtype in quotes",
        "device without a build",
        "x = torch.ones(2).to('float64')  # raises",
        "Give the dtype itself: torch.float64.",
        ("'float64'", "torch.float64"),
        "assert x.dtype is torch.float64",
    ),
    _one(
        "Parts that are not the whole",
        "sizes of a split",
        _X + "a, b = x.split([1, 3], dim=1)  # raises",
        "Give sizes whose sum is 3",
        ("[1, 3]", "[1, 2]"),
        "assert a.tolist() == [[0], [3]] and b.tolist() == [[1, 2], [4, 5]]",
    ),
    _one(
        "The best five of three",
        "more than there are",
        _X + "best = x.topk(5)  # raises",
        "min(5, x.size(-1))",
        ("topk(5)", "topk(min(5, x.size(-1)))"),
        "assert best.values[0].tolist() == [2, 1, 0]",
    ),
    _one(
        "A mask of zeros and ones",
        "mask of numbers",
        _X + "mask = torch.tensor([0.0, 1.0, 0.0])\nfilled = x.masked_fill(mask, -1)  # raises",
        "mask > 0",
        ("(mask, -1)", "(mask > 0, -1)"),
        "assert filled[0].tolist() == [0, -1, 2]",
    ),
    _one(
        "More values than the mask has places",
        "values of an index",
        _X + "x[x > 3] = torch.ones(6)  # raises",
        "Give values of shape [2]",
        ("torch.ones(6)", "torch.ones(2)"),
        "assert x[1].tolist() == [3, 1, 1]",
    ),
    _one(
        "A product of a batch with a matrix by mm",
        "no matrices",
        "a, b = torch.randn(2, 3, 4), torch.randn(4, 5)\nc = torch.mm(a, b)  # raises",
        "a @ b",
        ("torch.mm(a, b)", "a @ b"),
        "assert torch.allclose(c[1], a[1].mm(b))",
    ),
    _one(
        "An inverse of a matrix of too few rows",
        "singular",
        "rows = torch.tensor([[1.0, 2.0]])\nA = rows.T @ rows\nB = torch.linalg.inv(A)  # raises",
        "A + 1e-5 * torch.eye(A.size(-1))",
        ("inv(A)", "inv(A + 1e-1 * torch.eye(A.size(-1)))"),
        "assert torch.allclose((A + 0.1 * torch.eye(2)) @ B, torch.eye(2), atol=1e-5)",
    ),
    _one(
        "An inverse of a matrix that is not square",
        "no square matrix",
        _X + "back = torch.linalg.inv(x)  # raises",
        "torch.linalg.pinv",
        ("linalg.inv", "linalg.pinv"),
        "assert torch.allclose(x @ back, torch.eye(2), atol=1e-5)",
    ),
    _one(
        "A decomposition of NaN",
        "not finite in a matrix",
        "x = torch.tensor([[0.0, 1.0], [1.0, 1.0]]).log() * 0\n"
        "u, s, v = torch.linalg.svd(x)  # raises",
        "tt.locate(",
        (".log()", ".exp().log()"),
        "assert s.isfinite().all()",
    ),
]
REFUSED = [
    _one(
        "A model for an optimizer",
        "parameters of an optimizer",
        "net = nn.Linear(2, 2)\noptimizer = torch.optim.SGD(net, lr=0.1)  # raises",
        "net.parameters()",
        ("SGD(net,", "SGD(net.parameters(),"),
        "assert len(optimizer.param_groups[0]['params']) == 2",
    ),
    _one(
        "A model for load_state_dict",
        "state of a module",
        "a, b = nn.Linear(2, 2), nn.Linear(2, 2)\na.load_state_dict(b)  # raises",
        "b.state_dict()",
        ("(b)", "(b.state_dict())"),
        "assert torch.equal(a.weight, b.weight)",
        "a (Linear)",
    ),
    _one(
        "A function in a Sequential",
        "member of a sequential",
        "net = nn.Sequential(nn.Linear(2, 2), torch.relu)  # raises",
        "nn.ReLU()",
        ("torch.relu", "nn.ReLU()"),
        "assert (net(torch.randn(3, 2)) >= 0).all()",
        "the Sequential itself",
    ),
    _one(
        "Groups that do not fit",
        "groups that do not divide",
        "norm = nn.GroupNorm(3, 4)  # raises",
        "1, 2, 4",
        ("(3, 4)", "(2, 4)"),
        "assert norm(torch.randn(1, 4, 2)).shape == (1, 4, 2)",
        "the GroupNorm itself",
    ),
    _one(
        "A dropout in percent",
        "share that is none",
        "drop = nn.Dropout(50)  # raises",
        "0.5 for half",
        ("50", "0.5"),
        "assert drop.p == 0.5",
        "the Dropout itself",
    ),
    _one(
        "A scheduler that is stepped once a batch, and planned for epochs",
        "more steps than planned",
        "optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)\n"
        "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)\n"
        "for _ in range(6):\n    optimizer.step()\n    scheduler.step()  # raises",
        "total_steps=epochs * len(loader)",
        ("total_steps=2", "total_steps=2 * 3"),
        "assert scheduler.last_epoch == 6",
    ),
    _one(
        "A shape that is called",
        "no method",
        _X + "rows = x.shape(0)  # raises",
        "x.shape[0]",
        ("shape(0)", "shape[0]"),
        "assert rows == 2",
    ),
    _one(
        "A result that a branch did not give",
        "None in a list",
        "def seen(at):\n    if at != 1:\n        return torch.full((2,), float(at))\n\n"
        "rows = [seen(at) for at in range(3)]\nx = torch.stack(rows)  # raises",
        "leave it out, [one for one in rows if one is not None]",
        ("stack(rows)", "stack([one for one in rows if one is not None])"),
        "assert x.tolist() == [[0, 0], [2, 2]]",
    ),
    _one(
        "Layers in a list that is called",
        "list of modules",
        "layers = [nn.Linear(2, 3), nn.Linear(3, 1)]\nx = torch.ones(1, 2)\n"
        "x = layers(x)  # raises",
        "nn.Sequential(*layers)",
        ("x = layers(x)", "x = nn.Sequential(*layers)(x)"),
        "assert torch.equal(x, layers[1](layers[0](torch.ones(1, 2))))",
    ),
    _one(
        "One state for a cell that has two",
        "pair of states",
        "cell = nn.LSTMCell(2, 3)\nh = torch.zeros(4, 3)\n"
        "found = cell(torch.ones(4, 2), h)  # raises",
        "(h, torch.zeros_like(h))",
        (", h)", ", (h, torch.zeros_like(h)))"),
        (
            "gates = torch.ones(4, 2) @ cell.weight_ih.T + cell.bias_ih + cell.bias_hh\n"
            "first, _, third, _ = gates.chunk(4, 1)\n"
            "assert torch.allclose(found[1], first.sigmoid() * third.tanh(), atol=1e-6)"
        ),
        "cell (LSTMCell)",
    ),
    _one(
        "A data set of a folder that is empty",
        "empty data set",
        "from torch.utils.data import DataLoader\n\nfiles = []\n"
        "loader = DataLoader(files, shuffle=True)  # raises",
        "len(dataset)",
        ("files = []", "files = [0, 1]"),
        "assert len(loader) == 2",
    ),
    _one(
        "More inputs than targets",
        "tensors of a data set",
        "from torch.utils.data import TensorDataset\n\nx, y = torch.ones(3, 2), torch.ones(2)\n"
        "data = TensorDataset(x, y)  # raises",
        "as many targets as inputs",
        ("torch.ones(2)\n", "torch.ones(3)\n"),
        "assert len(data) == 3",
    ),
    _one(
        "A split of more than there is",
        "lengths of a split",
        "from torch.utils.data import random_split\n\n"
        "parts = random_split(range(5), [4, 2])  # raises",
        "[0.8, 0.2]",
        ("[4, 2]", "[0.8, 0.2]"),
        "assert [len(one) for one in parts] == [4, 1]",
    ),
    _one(
        "A sampler and shuffle",
        "order of a sampler",
        "from torch.utils.data import DataLoader\n\n"
        "loader = DataLoader([5, 6], shuffle=True, sampler=[1, 0])  # raises",
        "Leave shuffle=True out",
        ("shuffle=True, ", ""),
        "assert [one.item() for one in loader] == [6, 5]",
    ),
    _one(
        "A file that is read from its end",
        "file that is none",
        "import io\n\nfile = io.BytesIO()\ntorch.save(torch.ones(2), file)\n"
        "found = torch.load(file)  # raises",
        "file.seek(0)",
        ("found = ", "file.seek(0)\nfound = "),
        "assert found.tolist() == [1, 1]",
    ),
    _one(
        "A weight for too few classes",
        "weight of classes",
        "loss = F.cross_entropy(torch.ones(2, 4), torch.tensor([0, 1]), torch.ones(3))  # raises",
        "each of the 4 classes",
        ("ones(3)", "ones(4)"),
        "assert torch.allclose(loss.exp(), torch.tensor(4.0))",
    ),
    _one(
        "An action that the policy does not have",
        "value of a distribution",
        "policy = torch.distributions.Categorical(torch.ones(3), validate_args=True)\n"
        "chance = policy.log_prob(torch.tensor(3))  # raises",
        "Give values of that range",
        ("tensor(3))", "tensor(2))"),
        "assert torch.allclose(chance.exp(), torch.tensor(1 / 3))",
    ),
    _one(
        "More draws than there are",
        "too many draws",
        "drawn = torch.multinomial(torch.ones(3), 5)  # raises",
        "replacement=True",
        ("5)", "5, replacement=True)"),
        "assert drawn.shape == (5,) and set(drawn.tolist()) <= {0, 1, 2}",
    ),
    _one(
        "One grid for a batch",
        "batch of a grid",
        "x, grid = torch.rand(2, 3, 4, 4), torch.zeros(1, 4, 4, 2)\n"
        "found = F.grid_sample(x, grid, align_corners=False)  # raises",
        "grid.expand(len(input), -1, -1, -1)",
        ("(x, grid,", "(x, grid.expand(len(x), -1, -1, -1),"),
        (
            "middle = x[:, :, 1:3, 1:3].mean((2, 3), keepdim=True)\n"
            "assert torch.allclose(found, middle.expand(2, 3, 4, 4), atol=1e-6)"
        ),
    ),
    _one(
        "A size and a factor",
        "both sizes",
        "x = F.interpolate(torch.rand(1, 1, 4, 4), size=8, scale_factor=2)  # raises",
        "Leave one of the two out.",
        (", scale_factor=2", ""),
        "assert x.shape == (1, 1, 8, 8)",
    ),
    _one(
        "A mask of whole numbers for an attention",
        "dtype of a mask",
        "q = torch.randn(1, 3, 4)\nmask = torch.ones(3, 3, dtype=torch.int64).tril()\n"
        "out = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)  # raises",
        "mask.bool()",
        ("attn_mask=mask", "attn_mask=mask.bool()"),
        "assert torch.allclose(out[0, 0], q[0, 0])",
    ),
    _one(
        "The gradient of a function with several outputs",
        "scalar of a transform",
        "g = torch.func.grad(lambda x: x**2)(torch.ones(2))  # raises",
        ".sum()",
        ("x**2)", "(x**2).sum())"),
        "assert g.tolist() == [2, 2]",
    ),
    _one(
        "Noise inside of vmap",
        "random in a transform",
        "def noisy(x):\n    return x + torch.randn(2)  # raises\n\n\n"
        "found = torch.vmap(noisy)(torch.ones(3, 2))",
        "randomness='different'",
        ("vmap(noisy)", "vmap(noisy, randomness='different')"),
        "assert len(found.unique()) == 6",
    ),
    _one(
        "A selection inside of vmap",
        "shape in a transform",
        "def kept(x):\n    return x[x > 0].sum()  # raises\n\n\n"
        "found = torch.vmap(kept)(torch.tensor([[1.0, -1.0], [2.0, 3.0]]))",
        "torch.where(mask, x, 0)",
        ("x[x > 0]", "torch.where(x > 0, x, 0)"),
        "assert found.tolist() == [1, 5]",
    ),
    _one(
        "Two batches of different sizes for vmap",
        "sizes in a transform",
        "a, b = torch.ones(2, 3), torch.ones(3)\nfound = torch.vmap(torch.add)(a, b)  # raises",
        "in_dims=None",
        ("vmap(torch.add)", "vmap(torch.add, in_dims=(0, None))"),
        "assert torch.equal(found, torch.full((2, 3), 2.0))",
    ),
    _one(
        "A reduction without ranks",
        "no process group",
        "import torch.distributed as dist\n\nx = torch.ones(2)\n"
        "dist.all_reduce(x) if True else None  # raises",
        "init_process_group('gloo')",
        ("if True", "if dist.is_initialized()"),
        "assert x.tolist() == [1, 1]",
    ),
    _one(
        "A list that is added to a tensor",
        "closed to numbers",
        "x = torch.ones(2) + [1, 2]  # raises",
        "torch.tensor(...)",
        ("[1, 2]", "torch.tensor([1, 2])"),
        "assert x.tolist() == [2, 3]",
    ),
    _one(
        "Actions in a column",
        "shape of a distribution",
        "dist = torch.distributions.Categorical(logits=torch.zeros(4, 3))\n"
        "actions = torch.tensor([[0, 2], [2, 1], [1, 1]])\n"
        "value = dist.log_prob(actions)  # raises",
        "Make the distribution of the batch that the values belong to.",
        ("zeros(4, 3)", "zeros(3, 1, 3)"),
        "assert torch.allclose(value, torch.full((3, 2), -1.0986), atol=1e-4)",
    ),
]
