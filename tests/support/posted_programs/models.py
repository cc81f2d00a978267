"""Posted: shapes, pictures, sequences, attention, dtypes, indices, optimizers, compilers."""

from __future__ import annotations

from posted_programs.posted import Posted

GITHUB = "https://github.com/"

POSTED = [
    Posted(
        "a picture with an alpha channel",
        GITHUB + "milesial/Pytorch-UNet/issues/452",
        "channels",
        """
        net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 1, 1))
        picture = torch.rand(1, 4, 10, 12)
        mask = net(picture)
        """,
        r"3 channels.*has 4",
        r"picture\[:, :3\]",
        (("net(picture)", "net(picture[:, :3])"),),
        "assert torch.equal(mask, net(picture[:, [0, 1, 2]]))",
    ),
    Posted(
        "a picture with its channels last",
        GITHUB + "midasklr/facelandmarks/issues/4",
        "channels",
        """
        net = nn.Sequential(nn.Conv2d(3, 10, 3))
        picture = torch.rand(1, 36, 42, 3)
        found = net(picture)
        """,
        r"3 channels.*has 36",
        r"(permute\(0, 3, 1, 2\)|movedim\(-1, 1\))",
        (("net(picture)", "net(picture.movedim(-1, 1))"),),
        "assert found.shape == (1, 10, 34, 40)",
    ),
    Posted(
        "grey pictures without a dimension for the channel",
        GITHUB + "harshitbansal05/Image-Colorization/issues/1",
        "channels",
        """
        net = nn.Sequential(nn.Conv2d(1, 6, 3))
        l_images = torch.rand(12, 32, 32)
        found = net(l_images)
        """,
        r"1 channel.*12",
        r"unsqueeze\(1\)",
        (("net(l_images)", "net(l_images.unsqueeze(1))"),),
        "assert found.shape == (12, 6, 30, 30)",
    ),
    Posted(
        "one picture without a batch, into a classifier",
        GITHUB + "Brain-Bridge-Lab/resmem/issues/1",
        "matrix product",
        """
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 2))
        image_x = torch.rand(3, 8, 8)
        prediction = model(image_x)
        """,
        r"216 features.*36",
        r"image_x\.unsqueeze\(0\)",
        (("model(image_x)", "model(image_x.unsqueeze(0))"),),
        "assert prediction.shape == (1, 2)",
    ),
    Posted(
        "grey pictures for a network of coloured ones",
        GITHUB + "LambdaLabsML/examples/issues/39",
        "channels",
        """
        net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        pictures = torch.rand(3, 1, 8, 8)
        found = net(pictures)
        """,
        r"3 channels.*has 1",
        r"pictures\.(expand\(-1, 3, -1, -1\)|repeat\(1, 3, 1, 1\))",
        (("net(pictures)", "net(pictures.expand(-1, 3, -1, -1))"),),
        "assert torch.allclose(found, net(torch.cat([pictures] * 3, 1)))",
    ),
    Posted(
        "a grey picture that is permuted as a coloured one",
        GITHUB + "hengliusky/UltraSound_SSSR/issues/4",
        "dimensions of a permutation",
        """
        picture = torch.rand(6, 5)
        given = picture.permute(2, 0, 1).unsqueeze(0)
        """,
        r"picture.*2 dimensions",
        r"picture\.unsqueeze\(-1\)",
        (("picture.permute", "picture.unsqueeze(-1).permute"),),
        "assert given.shape == (1, 1, 6, 5)",
    ),
    Posted(
        "a tokenizer's mask given as tgt_mask",
        "https://openillumi.com/en/en-pytorch-transformer-attention-mask-fix",
        "attention mask",
        """
        layer = nn.TransformerDecoderLayer(8, 2, batch_first=True, dropout=0)
        decoder = nn.TransformerDecoder(layer, 1)
        tgt, memory = torch.randn(4, 6, 8), torch.randn(4, 3, 8)
        attention_mask = (torch.arange(6) < torch.tensor([6, 5, 4, 3])[:, None]).float()
        out = decoder(tgt, memory, tgt_mask=attention_mask)
        """,
        r"\[4, 6\]",
        r"key_padding_mask.*== 0",
        (("tgt_mask=attention_mask", "tgt_key_padding_mask=(attention_mask == 0)"),),
        "other = tgt.clone()\nother[3, 3:] = 7\n"
        "again = decoder(other, memory, tgt_key_padding_mask=(attention_mask == 0))\n"
        "assert torch.allclose(out[3, :3], again[3, :3], atol=1e-5)",
    ),
    Posted(
        "a table of positions that is too short",
        GITHUB + "SamLynnEvans/Transformer/issues/20",
        "broadcast",
        """
        class Positions(nn.Module):
            def __init__(self, width, longest):
                super().__init__()
                self.register_buffer("pe", torch.randn(1, longest, width))

            def forward(self, x):
                return x + self.pe[:, : x.size(1)]

        net = nn.Sequential(Positions(4, 8), nn.Linear(4, 2))
        out = net(torch.randn(2, 12, 4))
        """,
        r"12.*8|8.*12",
        r"(self\.pe|12|longer|shorter|cut)",
        (("Positions(4, 8)", "Positions(4, 12)"),),
        "assert out.shape == (2, 12, 2)",
    ),
    Posted(
        "tokens beyond the positions of a model",
        GITHUB + "lavis-nlp/spert/issues/60",
        "expand",
        """
        class Embeddings(nn.Module):
            def __init__(self):
                super().__init__()
                self.word = nn.Embedding(20, 4)
                self.register_buffer("token_type_ids", torch.zeros(1, 16, dtype=torch.long))
                self.kind = nn.Embedding(2, 4)

            def forward(self, ids):
                batch, length = ids.shape
                kinds = self.token_type_ids[:, :length].expand(batch, length)
                return self.word(ids) + self.kind(kinds)

        net = Embeddings()
        ids = torch.randint(0, 20, (3, 24))
        out = net(ids)
        """,
        r"16.*24|24.*16",
        r"16",
        (("net(ids)", "net(ids[:, :16])"),),
        "assert out.shape == (3, 16, 4)",
    ),
    Posted(
        "a sum over a mask by scatter_add, in half precision",
        GITHUB + "flairNLP/flair/pull/3651",
        "dtypes of a scatter",
        """
        hidden = torch.zeros(3, dtype=torch.bfloat16)
        mask, index = torch.tensor([True, True, False, True]), torch.tensor([0, 0, 1, 2])
        counts = hidden.scatter_add(0, index, mask.float())
        """,
        r"bfloat16",
        r"mask\.float\(\)\.to\((hidden\.dtype|torch\.bfloat16)\)",
        (("mask.float())", "mask.float().to(hidden.dtype))"),),
        "assert counts.tolist() == [2, 0, 1]",
    ),
    Posted(
        "an index of floats for scatter_add",
        GITHUB + "rusty1s/pytorch_scatter/issues/281",
        "index of floats",
        """
        src, index = torch.ones(4), torch.tensor([0.0, 0.0, 1.0, 2.0])
        out = torch.zeros(3).scatter_add_(0, index, src)
        """,
        r"index.*float32",
        r"index\.long\(\)",
        (("0, index,", "0, index.long(),"),),
        "assert out.tolist() == [2, 1, 1]",
    ),
    Posted(
        "a cache of keys in another precision",
        GITHUB + "pytorch/torchchat/issues/596",
        "dtypes of a written index",
        """
        class Cache(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("k_cache", torch.zeros(1, 8, 4, dtype=torch.bfloat16))

            def forward(self, input_pos, k_val):
                self.k_cache[:, input_pos] = k_val
                return self.k_cache

        k = torch.randn(1, 2, 4)
        found = Cache()(torch.tensor([0, 1]), k)
        """,
        r"bfloat16.*float32|float32.*bfloat16",
        r"k_val\.to\(",
        (("= k_val\n", "= k_val.to(self.k_cache.dtype)\n"),),
        "assert torch.equal(found[:, :2], k.bfloat16())",
    ),
    Posted(
        "classes of int32 written among int64",
        GITHUB + "ZheLi2020/TimestampActionSeg/issues/6",
        "dtypes of a written index",
        """
        labels = torch.zeros(6, dtype=torch.long)
        at, found = torch.tensor([1, 3]), torch.tensor([5, 7], dtype=torch.int32)
        labels[at] = found
        """,
        r"int64.*int32|int32.*int64",
        r"found\.(to\(labels\.dtype\)|long\(\))",
        (("= found\n", "= found.to(labels.dtype)\n"),),
        "assert labels.tolist() == [0, 5, 0, 7, 0, 0]",
    ),
    Posted(
        "states of a decoder without the dimension of layers",
        GITHUB + "dion-jy/lstm-vae-torch/issues/2",
        "dimensions of a state",
        """
        fc, lstm = nn.Linear(2, 5), nn.LSTM(3, 5, batch_first=True)
        h_ = fc(torch.randn(4, 2))
        out, _ = lstm(torch.randn(4, 6, 3), (h_, h_))
        """,
        r"(2-D|layers)",
        r"(unsqueeze\(0\)|\[layers)",
        (("(h_, h_)", "(h_.unsqueeze(0), h_.unsqueeze(0))"),),
        "out.sum().backward()\nassert (fc.weight.grad != 0).any() and out.shape == (4, 6, 5)",
    ),
    Posted(
        "a recurrence in a Sequential",
        GITHUB + "pytorch/pytorch/issues/3349",
        "argument that is no tensor",
        """
        model = nn.Sequential(nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2))
        x = torch.randn(4, 6, 3)
        out = model(x)
        """,
        r"1 \(Linear\).*tuple",
        r"\[0\]",
        (("model(x)", "model[1](model[0](x)[0])"),),
        "assert torch.equal(out, model[1](model[0](x)[0])) and out.shape == (4, 6, 2)",
    ),
    Posted(
        "a loss of a tuple",
        GITHUB + "jefflai108/Attentive-Filtering-Network/issues/8",
        "tuple among tensors",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 1)

            def forward(self, x):
                scores = self.fc(x)
                return scores.sigmoid(), scores

        net, x, target = Net(), torch.randn(4, 3), torch.ones(4, 1)
        output = net(x)
        loss = F.binary_cross_entropy(output, target)
        """,
        r"(output|input).*tuple",
        r"output\[0\]",
        (("(output, target)", "(output[0], target)"),),
        "assert torch.allclose(loss, -net(x)[0].log().mean())",
    ),
    Posted(
        "values of a state in another order of parameters",
        GITHUB + "X-LANCE/text2sql-lgesql/issues/18",
        "broadcast",
        """
        net = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2))

        def make(parameters):
            return torch.optim.Adam(list(parameters))

        def step(optimizer):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()

        old = make(net.parameters())
        step(old)
        new = make(reversed(list(net.parameters())))
        new.load_state_dict(old.state_dict())
        step(new)
        """,
        r"(state|exp_avg).*(order|parameters)",
        r"same order",
        (("make(reversed(list(net.parameters())))", "make(net.parameters())"),),
        "assert new.state[net[0].weight]['step'] == 2",
    ),
    Posted(
        "the state of an Adam for an SGD",
        GITHUB + "pytorch/pytorch/issues/7499",
        "state of another class",
        """
        net = nn.Linear(2, 2)
        saved = torch.optim.Adam(net.parameters()).state_dict()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        optimizer.load_state_dict(saved)
        net(torch.ones(1, 2)).sum().backward()
        before = net.weight.detach().clone()
        optimizer.step()
        """,
        r"momentum",
        r"(same class|same kind|anew|without)",
        (("optimizer.load_state_dict(saved)\n", ""),),
        "assert torch.allclose(net.weight, before - 0.1)",
    ),
    Posted(
        "L-BFGS without a closure",
        GITHUB + "pnnl/neuromancer/issues/244",
        "step without a closure",
        """
        net, x = nn.Linear(2, 1), torch.randn(8, 2)
        y = x.sum(1, keepdim=True)
        optimizer = torch.optim.LBFGS(net.parameters())
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        """,
        r"LBFGS.*closure",
        r"optimizer\.step\(closure\)",
        (
            (
                "optimizer.zero_grad()\nloss = F.mse_loss(net(x), y)\nloss.backward()\n",
                "def closure():\n    optimizer.zero_grad()\n    loss = F.mse_loss(net(x), y)\n"
                "    loss.backward()\n    return loss\n",
            ),
            ("optimizer.step()", "optimizer.step(closure)"),
        ),
        "assert F.mse_loss(net(x), y) < 1e-3",
    ),
    Posted(
        "a policy whose probabilities are NaN",
        GITHUB + "thu-ml/tianshou/issues/823",
        "parameter of a distribution",
        """
        from torch.distributions import Categorical

        net = nn.Linear(3, 4)
        rewards = torch.tensor([2.0])
        rewards = (rewards - rewards.mean()) / rewards.std()
        logits = net(torch.ones(1, 3)) * rewards
        action = Categorical(logits=logits, validate_args=True).sample()
        """,
        r"4 NaN",
        r"tt\.locate|tt\.guard",
        ((" / rewards.std()", " / (rewards.std(correction=0) + 1e-8)"),),
        "assert 0 <= action.item() < 4",
    ),
    Posted(
        "logits taken for probabilities",
        GITHUB + "GeminiLight/hrl-acra/issues/4",
        "parameter of a distribution",
        """
        from torch.distributions import Categorical

        logits = torch.tensor([[2.0, -1.0, 0.5]])
        dist = Categorical(logits, validate_args=True)
        chances = dist.probs
        """,
        r"(below 0|Simplex)",
        r"Categorical\(logits=logits\)",
        (("Categorical(logits,", "Categorical(logits=logits,"),),
        "assert torch.allclose(chances, logits.softmax(-1))",
    ),
    Posted(
        "an attribute that is a number of numpy, in TorchScript",
        GITHUB + "facebookresearch/Pearl/issues/58",
        "attribute of a script",
        """
        import numpy as np

        class Net(nn.Module):
            def __init__(self, number):
                super().__init__()
                self.number = number

            def forward(self, x):
                return x * self.number

        net = torch.jit.script(Net(np.int64(3)))
        out = net(torch.ones(2))
        """,
        r"number.*numpy",
        r"int\(",
        (("self.number = number", "self.number = int(number)"),),
        "assert out.tolist() == [3, 3]",
    ),
    Posted(
        "an empty dict as an attribute, in TorchScript",
        GITHUB + "pytorch/pytorch/issues/23905",
        "attribute of a script",
        """
        from typing import Dict

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.x = {}

            def forward(self, input):
                self.x["last"] = input
                return self.x

        net = torch.jit.script(Net())
        out = net(torch.ones(2))
        """,
        r"'?x'?.*dict",
        r"(annotat|Dict\[|dict\[)",
        (("    def __init__(self):", "    x: Dict[str, torch.Tensor]\n\n    def __init__(self):"),),
        "assert out['last'].tolist() == [1, 1]",
    ),
    Posted(
        "an object of one's own class, in TorchScript",
        GITHUB + "pytorch/pytorch/issues/36910",
        "object in a script",
        """
        class Backend:
            def trace(self, a):
                return torch.trace(a)

        backend = Backend()

        @torch.jit.script
        def f(a):
            return backend.trace(a)

        found = f(torch.ones(3, 3))
        """,
        r"(TorchScript|script).*Backend|Backend.*(TorchScript|script)",
        r"(function|torch\.compile|script)",
        (("return backend.trace(a)", "return torch.trace(a)"),),
        "assert found == 3",
    ),
    Posted(
        "layers through one compiled function",
        GITHUB + "pytorch/pytorch/issues/167504",
        "compiled too often",
        """
        import torch._dynamo

        torch._dynamo.reset()

        def made(size):
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.fc = nn.Linear(4, size)

                def forward(self, x):
                    return self.fc(x).relu()

            return torch.compile(Net(), fullgraph=True, backend="eager")

        x = torch.randn(2, 4)
        with torch.no_grad():
            found = [made(size)(x) for size in range(1, 12)]
        """,
        r"compiled anew more often",
        r"recompile_limit",
        (
            (
                "torch._dynamo.reset()\n",
                "torch._dynamo.reset()\ntorch._dynamo.config.recompile_limit = 16\n",
            ),
        ),
        "assert [one.shape[1] for one in found] == list(range(1, 12))\n"
        "torch._dynamo.config.recompile_limit = 8\ntorch._dynamo.reset()",
    ),
    Posted(
        "a branch on a value, in one graph",
        GITHUB + "pytorch/pytorch/issues/194768",
        "graph break",
        """
        import torch._dynamo

        torch._dynamo.reset()

        @torch.compile(fullgraph=True, backend="eager")
        def bounded(x):
            if x.mean() < 0:
                return x + 2
            return x - 2

        found = bounded(torch.tensor([-1.0, -3.0]))
        """,
        r"(fullgraph|graph).*(branch|value)|(branch|value).*graph",
        r"torch\.where",
        (
            (
                "    if x.mean() < 0:\n        return x + 2\n    return x - 2",
                "    return torch.where(x.mean() < 0, x + 2, x - 2)",
            ),
        ),
        "assert found.tolist() == [1, -1]",
    ),
]
