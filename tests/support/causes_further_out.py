"""Programs whose mistake stands in another function than the line that raises."""

from __future__ import annotations

from typing import NamedTuple


class FarProgram(NamedTuple):
    """A program of one mistake.

    Attributes:
        name: of the program.
        source: it; the line of the mistake ends in ``# cause``.
        says: what the note must say, beside the line of the mistake.
        changes: what is replaced in the source to repair it.
        purpose: code that fails unless the repaired program does what it is for.
    """

    name: str
    source: str
    says: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]
    purpose: str


PROGRAMS = (
    FarProgram(
        "a_layer_of_a_default",
        """
        class Head(nn.Module):
            def __init__(self, width=96):  # cause
                super().__init__()
                self.fc = nn.Linear(width, 3)

            def forward(self, x):
                return self.fc(x)

        head = Head()
        features = torch.randn(4, 24)
        out = head(features)
        """,
        (r"width is 96", r"give 24 there"),
        (("Head()", "Head(24)"),),
        "assert out.shape == (4, 3) and head.fc.in_features == 24",
    ),
    FarProgram(
        "a_layer_of_two_constructors",
        """
        class Squeeze(nn.Module):
            def __init__(self, channels):
                super().__init__()
                self.down = nn.Linear(channels, 2)

            def forward(self, x):
                return self.down(x.mean((2, 3)))

        class Block(nn.Module):
            def __init__(self, planes):
                super().__init__()
                self.conv = nn.Conv2d(3, planes * 4, 1)
                self.squeeze = Squeeze(planes)  # cause

            def forward(self, x):
                return self.squeeze(self.conv(x))

        block = Block(4)
        out = block(torch.randn(2, 3, 5, 5))
        """,
        (r"Squeeze\(planes\)", r"give 16 there"),
        (("Squeeze(planes)", "Squeeze(planes * 4)"),),
        "assert out.shape == (2, 2) and block.conv.out_channels == 16",
    ),
    FarProgram(
        "a_dataclass_of_sizes",
        """
        from dataclasses import dataclass

        @dataclass
        class Config:
            vocab: int = 20
            width: int = 8  # cause

        class Model(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.embed = nn.Embedding(config.vocab, 16)
                self.head = nn.Linear(config.width, 5)

            def forward(self, tokens):
                return self.head(self.embed(tokens))

        model = Model(Config())
        out = model(torch.tensor([[1, 2, 3]]))
        """,
        (r"config\.width is 8",),
        (("width: int = 8", "width: int = 16"),),
        "assert out.shape == (1, 3, 5)",
    ),
    FarProgram(
        "a_dataclass_given_a_number",
        """
        from dataclasses import dataclass

        @dataclass
        class Config:
            vocab: int = 20
            width: int = 16

        class Model(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.embed = nn.Embedding(20, 16)
                self.head = nn.Linear(config.width, 5)

            def forward(self, tokens):
                return self.head(self.embed(tokens))

        config = Config(width=12)  # cause
        model = Model(config)
        out = model(torch.tensor([[1, 2, 3]]))
        """,
        (r"config\.width is 12",),
        (("width=12", "width=16"),),
        "assert out.shape == (1, 3, 5)",
    ),
    FarProgram(
        "a_dictionary_of_sizes",
        """
        CONFIG = {"hidden": 32, "classes": 4}  # cause

        class Net(nn.Module):
            def __init__(self, config):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(6, 24), nn.ReLU())
                self.head = nn.Linear(config["hidden"], config["classes"])

            def forward(self, x):
                return self.head(self.body(x))

        net = Net(CONFIG)
        out = net(torch.randn(5, 6))
        """,
        (r'config\["hidden"\] is 32',),
        (('"hidden": 32', '"hidden": 24'),),
        "assert out.shape == (5, 4)",
    ),
    FarProgram(
        "options_of_the_command_line",
        """
        import argparse

        class Net(nn.Module):
            def __init__(self, args):
                super().__init__()
                self.rnn = nn.GRU(args.inputs, 5, batch_first=True)

            def forward(self, x):
                return self.rnn(x)[0]

        parser = argparse.ArgumentParser()
        parser.add_argument("--inputs", type=int, default=10)  # cause
        args = parser.parse_args([])
        net = Net(args)
        out = net(torch.randn(2, 7, 3))
        """,
        (r"args\.inputs is 10",),
        (("default=10", "default=3"),),
        "assert out.shape == (2, 7, 5)",
    ),
    FarProgram(
        "a_namespace_of_sizes",
        """
        from types import SimpleNamespace

        def make_head(cfg):
            return nn.Linear(cfg.width, 2)

        class Net(nn.Module):
            def __init__(self, cfg):
                super().__init__()
                self.cfg = cfg
                self.head = make_head(self.cfg)

            def forward(self, x):
                return self.head(x)

        cfg = SimpleNamespace(width=7)  # cause
        net = Net(cfg)
        out = net(torch.randn(3, 9))
        """,
        (r"cfg\.width is 7",),
        (("width=7", "width=9"),),
        "assert out.shape == (3, 2)",
    ),
    FarProgram(
        "keywords_of_a_dictionary",
        """
        class Net(nn.Module):
            def __init__(self, in_features, classes):
                super().__init__()
                self.fc = nn.Linear(in_features, classes)

            def forward(self, x):
                return self.fc(x)

        sizes = {"in_features": 12, "classes": 2}  # cause
        net = Net(**sizes)
        out = net(torch.randn(3, 10))
        """,
        (r"in_features is 12",),
        (('"in_features": 12', '"in_features": 10'),),
        "assert out.shape == (3, 2)",
    ),
    FarProgram(
        "a_base_class_with_a_number",
        """
        class Base(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.head = nn.Linear(width, 2)

        class Net(Base):
            def __init__(self):
                super().__init__(width=30)  # cause
                self.body = nn.Linear(4, 20)

            def forward(self, x):
                return self.head(self.body(x))

        net = Net()
        out = net(torch.randn(3, 4))
        """,
        (r"width is 30", r"give 20 there"),
        (("width=30", "width=20"),),
        "assert out.shape == (3, 2)",
    ),
    FarProgram(
        "a_batch_of_a_dictionary",
        """
        class Pictures(torch.utils.data.Dataset):
            def __len__(self):
                return 4

            def __getitem__(self, at):
                picture = torch.rand(8, 8, 3)
                return {"image": picture, "label": at % 2}  # cause

        def train_step(model, batch):
            return model(batch["image"]).mean()

        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        loader = torch.utils.data.DataLoader(Pictures(), batch_size=2)
        for batch in loader:
            loss = train_step(model, batch)
        """,
        (r"movedim\(-1, 1\)",),
        (("torch.rand(8, 8, 3)", "torch.rand(8, 8, 3).movedim(-1, 0)"),),
        "assert batch['image'].shape == (2, 3, 8, 8)",
    ),
    FarProgram(
        "labels_of_a_data_set",
        """
        class Words(torch.utils.data.Dataset):
            def __init__(self, classes):
                self.classes = classes

            def __len__(self):
                return 6

            def __getitem__(self, at):
                return torch.randn(5), at % self.classes + 1  # cause

        class Trainer:
            def __init__(self, model, loader):
                self.model, self.loader = model, loader

            def fit(self):
                losses = []
                for x, y in self.loader:
                    losses.append(self.loss(self.model(x), y))
                return losses

            def loss(self, logits, target):
                return F.cross_entropy(logits, target)

        loader = torch.utils.data.DataLoader(Words(3), batch_size=3)
        losses = Trainer(nn.Linear(5, 3), loader).fit()
        """,
        (r"target is .*at % self\.classes \+ 1",),
        (("at % self.classes + 1", "at % self.classes"),),
        "assert len(losses) == 2",
    ),
    FarProgram(
        "targets_of_a_tensor_data_set",
        """
        from torch.utils.data import DataLoader, TensorDataset

        def evaluate(model, loader):
            total = 0.0
            for x, y in loader:
                total += F.binary_cross_entropy(model(x).sigmoid().squeeze(1), y).item()
            return total

        x = torch.randn(6, 2)
        y = torch.tensor([0, 255, 0, 255, 255, 0]).float()  # cause
        total = evaluate(nn.Linear(2, 1), DataLoader(TensorDataset(x, y), batch_size=3))
        """,
        (r"y comes from torch\.tensor\(\[0, 255",),
        (("]).float()", "]).float() / 255"),),
        "assert 0 < total < 5",
    ),
    FarProgram(
        "a_collate_function",
        """
        def collate(samples):
            xs, ys = zip(*samples)
            return torch.stack(xs), torch.tensor(ys).float()  # cause

        def run(loader, model):
            for x, y in loader:
                yield F.cross_entropy(model(x), y)

        samples = [(torch.randn(4), n % 3) for n in range(6)]
        loader = torch.utils.data.DataLoader(samples, batch_size=3, collate_fn=collate)
        losses = list(run(loader, nn.Linear(4, 3)))
        """,
        (r"torch\.tensor\(ys\)",),
        (("torch.tensor(ys).float()", "torch.tensor(ys)"),),
        "assert len(losses) == 2 and all(one > 0 for one in losses)",
    ),
    FarProgram(
        "an_attribute_of_a_trainer",
        """
        class Trainer:
            def __init__(self, model):
                self.model = model
                self.weight = torch.ones(4)  # cause

            def step(self, x, y):
                return F.cross_entropy(self.model(x), y, weight=self.weight)

        trainer = Trainer(nn.Linear(5, 3))
        loss = trainer.step(torch.randn(2, 5), torch.tensor([0, 2]))
        """,
        (r"self\.weight is torch\.ones\(4\)",),
        (("torch.ones(4)", "torch.ones(3)"),),
        "assert loss > 0 and trainer.weight.shape == (3,)",
    ),
    FarProgram(
        "a_helper_that_returns_the_mask",
        """
        def padding_mask(lengths, longest):
            return torch.arange(longest)[:, None] < lengths  # cause

        class Pool(nn.Module):
            def forward(self, x, mask):
                return (x * mask.unsqueeze(-1)).sum(1)

        lengths = torch.tensor([3, 5])
        mask = padding_mask(lengths, 5)
        out = Pool()(torch.ones(2, 5, 4), mask)
        """,
        (r"mask is torch\.arange\(longest\)\[:, None\] < lengths",),
        (("torch.arange(longest)[:, None] < lengths", "torch.arange(longest) < lengths[:, None]"),),
        "assert out[:, 0].tolist() == [3.0, 5.0]",
    ),
    FarProgram(
        "a_closure_over_the_noise",
        """
        def make_step(model, noise):
            def step(x):
                return model(x + noise)
            return step

        def build():
            model = nn.Linear(4, 2)
            noise = torch.randn(8, 5)  # cause
            return make_step(model, noise)

        step = build()
        out = step(torch.randn(8, 4))
        """,
        (r"x and noise have 4 and 5",),
        (("torch.randn(8, 5)", "torch.randn(8, 4)"),),
        "assert out.shape == (8, 2)",
    ),
    FarProgram(
        "a_tuple_of_a_helper",
        """
        def load():
            images = torch.rand(6, 1, 8, 8)
            labels = torch.arange(6).float()  # cause
            return images, labels

        def fit(model, data, target):
            return F.cross_entropy(model(data), target)

        data, target = load()
        loss = fit(nn.Sequential(nn.Flatten(), nn.Linear(64, 6)), data, target)
        """,
        (r"target is .*torch\.arange\(6\)",),
        (("torch.arange(6).float()", "torch.arange(6)"),),
        "assert loss > 0",
    ),
    FarProgram(
        "heads_by_default",
        """
        class Encoder(nn.Module):
            def __init__(self, dim, heads=6):  # cause
                super().__init__()
                self.attention = self.make(dim, heads)

            def make(self, width, count):
                return nn.MultiheadAttention(width, count, batch_first=True)

            def forward(self, x):
                return self.attention(x, x, x)[0]

        encoder = Encoder(16)
        out = encoder(torch.randn(2, 3, 16))
        """,
        (r"count is heads in .* which is 6, its default",),
        (("heads=6", "heads=4"),),
        "assert out.shape == (2, 3, 16)",
    ),
    FarProgram(
        "groups_of_a_call",
        """
        def conv(cin, cout, groups):
            return nn.Conv2d(cin, cout, 3, groups=groups)

        class Net(nn.Module):
            def __init__(self, groups):
                super().__init__()
                self.one = conv(12, 24, groups)

        def build(groups):
            return Net(groups)

        net = build(5)  # cause
        """,
        (r"groups is 5",),
        (("build(5)", "build(4)"),),
        "assert net.one.groups == 4",
    ),
    FarProgram(
        "an_embedding_of_a_vocabulary",
        """
        def vocabulary(text):
            return sorted(set(text))

        class Model(nn.Module):
            def __init__(self, num_tokens):
                super().__init__()
                self.embed = nn.Embedding(num_tokens, 4)

            def forward(self, ids):
                return self.embed(ids)

        text = "hello world"
        vocab = vocabulary(text)
        ids = torch.tensor([vocab.index(c) for c in text])
        model = Model(7)  # cause
        out = model(ids)
        """,
        (r"num_tokens is 7", r"Model\(7\)"),
        (("Model(7)", "Model(len(vocab))"),),
        "assert out.shape == (11, 4) and model.embed.num_embeddings == 8",
    ),
    FarProgram(
        "a_norm_of_the_input",
        """
        class Projector(nn.Module):
            def __init__(self, dim, hidden):
                super().__init__()
                self.fc = nn.Linear(dim, hidden)
                self.norm = nn.BatchNorm1d(dim)  # cause

            def forward(self, x):
                return self.norm(self.fc(x))

        class Learner(nn.Module):
            def __init__(self, backbone):
                super().__init__()
                self.backbone = backbone
                self.projector = Projector(6, 10)

            def forward(self, x):
                return self.projector(self.backbone(x))

        out = Learner(nn.Linear(3, 6))(torch.randn(4, 3))
        """,
        (r"nn\.BatchNorm1d\(dim\)",),
        (("nn.BatchNorm1d(dim)", "nn.BatchNorm1d(hidden)"),),
        "assert out.shape == (4, 10)",
    ),
    FarProgram(
        "a_state_of_another_batch",
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(3, 5, batch_first=True)

            def start(self, batch):
                return torch.zeros(1, batch, 5), torch.zeros(1, batch, 5)

            def forward(self, x, state):
                return self.lstm(x, state)

        model = Model()
        state = model.start(8)  # cause
        out, state = model(torch.randn(6, 7, 3), state)
        """,
        (r"torch\.zeros\(1, batch, 5\)",),
        (("model.start(8)", "model.start(6)"),),
        "assert out.shape == (6, 7, 5)",
    ),
    FarProgram(
        "double_of_numpy",
        """
        import numpy as np

        class Data:
            def __init__(self):
                self.x = torch.from_numpy(np.ones((4, 3)))  # cause

            def batches(self):
                for at in range(0, 4, 2):
                    yield self.x[at : at + 2]

        def train(model, data):
            return [model(batch) for batch in data.batches()]

        outs = train(nn.Linear(3, 1), Data())
        """,
        (r"float64",),
        (("np.ones((4, 3))", "np.ones((4, 3), dtype=np.float32)"),),
        "assert len(outs) == 2",
    ),
    FarProgram(
        "half_of_a_config",
        """
        SETTINGS = {"dtype": torch.float16, "width": 4}

        def prepare(x, settings):
            return x.to(settings["dtype"])  # cause

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(4, 4))

            def forward(self, x):
                return x @ self.scale

        net = Net()
        out = net(prepare(torch.randn(2, 4), SETTINGS))
        """,
        (r"float16|Half",),
        (("torch.float16", "torch.float32"),),
        "assert out.shape == (2, 4)",
    ),
    FarProgram(
        "a_lightning_like_step",
        """
        class Module(nn.Module):
            def __init__(self, hparams):
                super().__init__()
                self.hparams = hparams
                self.net = nn.Linear(hparams["inputs"], 1)

            def training_step(self, batch, at):
                x, y = batch
                return F.mse_loss(self.net(x), y)

        class Fit:
            def run(self, module, data):
                for at, batch in enumerate(data):
                    self.last = self.step(module, batch, at)

            def step(self, module, batch, at):
                return module.training_step(batch, at)

        data = [(torch.randn(2, 6), torch.randn(2, 1))]
        module = Module({"inputs": 5})  # cause
        fit = Fit()
        fit.run(module, data)
        """,
        (r'hparams\["inputs"\] is 5',),
        (('"inputs": 5', '"inputs": 6'),),
        "assert fit.last >= 0",
    ),
    FarProgram(
        "a_reshape_of_a_config",
        """
        class Heads(nn.Module):
            def __init__(self, heads, size):
                super().__init__()
                self.heads, self.size = heads, size

            def forward(self, x):
                return x.view(x.shape[0], -1, self.heads, self.size)

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.split = Heads(4, 5)  # cause

            def forward(self, x):
                return self.split(x)

        out = Block()(torch.randn(2, 3, 16))
        """,
        (r"view",),
        (("Heads(4, 5)", "Heads(4, 4)"),),
        "assert out.shape == (2, 3, 4, 4)",
    ),
    FarProgram(
        "the_size_of_the_last_batch",
        """
        class Model(nn.Module):
            def __init__(self, batch):
                super().__init__()
                self.batch = batch
                self.fc = nn.Linear(4, 3)

            def forward(self, x):
                return torch.zeros(self.batch, 3) + self.fc(x)

        def validate(model, loader):
            return [model(x) for (x,) in loader]

        data = torch.utils.data.TensorDataset(torch.randn(7, 4))
        loader = torch.utils.data.DataLoader(data, batch_size=4)
        model = Model(4)  # cause
        outs = validate(model, loader)
        """,
        (r"self\.batch",),
        (("torch.zeros(self.batch, 3)", "torch.zeros(len(x), 3)"),),
        "assert [len(one) for one in outs] == [4, 3]",
    ),
    FarProgram(
        "an_optimizer_of_a_generator",
        """
        def trained(model):
            return [name for name, _ in model.named_parameters()]  # cause

        def make_optimizer(model):
            params = trained(model)
            return torch.optim.SGD(params, lr=0.1)

        model = nn.Linear(2, 2)
        optimizer = make_optimizer(model)
        """,
        (r"params is \[name for name, _",),
        (("[name for name, _", "[one for _, one"),),
        "assert len(optimizer.param_groups[0]['params']) == 2",
    ),
    FarProgram(
        "positions_of_a_short_table",
        """
        class Positions(nn.Module):
            def __init__(self, longest, width):
                super().__init__()
                self.table = nn.Embedding(longest, width)

            def forward(self, x):
                return x + self.table(torch.arange(x.shape[1]))

        class Transformer(nn.Module):
            def __init__(self, longest=6):  # cause
                super().__init__()
                self.positions = Positions(longest, 4)

            def forward(self, x):
                return self.positions(x)

        model = Transformer()
        out = model(torch.randn(2, 9, 4))
        """,
        (r"longest is 6, its default", r"Positions\(longest, 4\) of train.py:\d+: give 9 there"),
        (("longest=6", "longest=9"),),
        "assert out.shape == (2, 9, 4)",
    ),
    FarProgram(
        "a_normalised_shape",
        """
        class Norm(nn.Module):
            def __init__(self, shape):
                super().__init__()
                self.norm = nn.LayerNorm(shape)

            def forward(self, x):
                return self.norm(x)

        def mixer(width):
            return nn.Sequential(nn.Linear(5, width), Norm(8))  # cause

        model = mixer(10)
        out = model(torch.randn(3, 5))
        """,
        (r"shape is 8 in Norm\(8\)", r"give 10 there"),
        (("Norm(8)", "Norm(width)"),),
        "assert out.shape == (3, 10)",
    ),
    FarProgram(
        "layers_of_a_list",
        """
        class Net(nn.Module):
            def __init__(self, widths):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in widths])

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return x

        net = Net([(4, 8), (6, 2)])  # cause
        out = net(torch.randn(3, 4))
        """,
        (r"nn\.Linear\(a, b\)",),
        (("(6, 2)", "(8, 2)"),),
        "assert out.shape == (3, 2)",
    ),
    FarProgram(
        "an_index_of_a_helper",
        """
        def last_of(lengths):
            return (lengths - 1).float()  # cause

        def pick(x, lengths):
            at = last_of(lengths)
            return x.gather(1, at[:, None])

        out = pick(torch.arange(8.0).view(2, 4), torch.tensor([2, 4]))
        """,
        (r"last_of|lengths - 1",),
        (("(lengths - 1).float()", "lengths - 1"),),
        "assert out.flatten().tolist() == [1.0, 7.0]",
    ),
    FarProgram(
        "a_parameter_of_a_factory",
        """
        class Factory:
            width = 12  # cause

            def head(self):
                return nn.Linear(self.width, 2)

        class Net(nn.Module):
            def __init__(self, factory):
                super().__init__()
                self.head = factory.head()

            def forward(self, x):
                return self.head(x)

        net = Net(Factory())
        out = net(torch.randn(3, 6))
        """,
        (r"self\.width is 12",),
        (("width = 12", "width = 6"),),
        "assert out.shape == (3, 2)",
    ),
    FarProgram(
        "a_wrapped_model",
        """
        class Backbone(nn.Module):
            def __init__(self, channels):
                super().__init__()
                self.stem = nn.Conv2d(channels, 4, 3)

            def forward(self, x):
                return self.stem(x)

        def build(channels=1):  # cause
            return Backbone(channels)

        class Detector(nn.Module):
            def __init__(self):
                super().__init__()
                self.backbone = build()

            def forward(self, x):
                return self.backbone(x)

        out = nn.DataParallel(Detector())(torch.randn(2, 3, 8, 8))
        """,
        (r"channels",),
        (("channels=1", "channels=3"),),
        "assert out.shape == (2, 4, 6, 6)",
    ),
    FarProgram(
        "a_property_of_the_data",
        """
        class Series:
            def __init__(self, features):
                self.values = torch.randn(50, features)
                self.num_features = features

        class Forecaster(nn.Module):
            def __init__(self, num_features):
                super().__init__()
                self.rnn = nn.LSTM(num_features, 4, batch_first=True)

            def forward(self, x):
                return self.rnn(x)[0]

        series = Series(3)
        model = Forecaster(1)  # cause
        out = model(series.values.view(5, 10, 3))
        """,
        (r"num_features is 1 in Forecaster\(1\)", r"give 3 there"),
        (("Forecaster(1)", "Forecaster(series.num_features)"),),
        "assert out.shape == (5, 10, 4)",
    ),
    FarProgram(
        "a_cell_of_a_notebook",
        """
        hidden = 20  # cause
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(hidden, 1))

        def predict(x):
            return model(x)

        out = predict(torch.randn(2, 4))
        """,
        (r"hidden is 20",),
        (("hidden = 20", "hidden = 16"),),
        "assert out.shape == (2, 1)",
    ),
    FarProgram(
        "weights_of_the_classes",
        """
        def class_weights(counts):
            return 1.0 / counts

        class Task:
            def __init__(self, counts):
                self.criterion = nn.CrossEntropyLoss(weight=class_weights(counts))

            def loss(self, logits, labels):
                return self.criterion(logits, labels)

        task = Task(torch.tensor([10.0, 5.0]))  # cause
        loss = task.loss(torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
        """,
        (r"class_weights\(counts\)",),
        (("[10.0, 5.0]", "[10.0, 5.0, 2.0]"),),
        "assert loss > 0",
    ),
    FarProgram(
        "a_list_of_scores",
        """
        def scores(model, xs):
            return [model(x).item() for x in xs]  # cause

        def objective(model, xs):
            parts = scores(model, xs)
            return torch.stack(parts).mean()

        model = nn.Linear(2, 1)
        loss = objective(model, torch.randn(3, 2))
        loss.backward()
        """,
        (r"parts is \[model\(x\)\.item\(\) for x in xs\]",),
        (("model(x).item()", "model(x)"),),
        "assert model.weight.grad is not None",
    ),
    FarProgram(
        "a_module_inside_a_dictionary",
        """
        class Multi(nn.Module):
            def __init__(self, sizes):
                super().__init__()
                self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(sizes["b"], 2)})

            def forward(self, x, task):
                return self.heads[task](x)

        multi = Multi({"a": 4, "b": 3})  # cause
        out = multi(torch.randn(2, 4), "b")
        """,
        (r'sizes\["b"\] is 3',),
        (('"b": 3', '"b": 4'),),
        "assert out.shape == (2, 2)",
    ),
    FarProgram(
        "a_scheduler_of_a_config",
        """
        class Settings:
            def __init__(self, epochs, steps):
                self.total = epochs * steps

        def schedule(optimizer, settings):
            return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=settings.total)

        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        settings = Settings(2, 3.0)  # cause
        scheduler = schedule(optimizer, settings)
        """,
        (r"settings\.total is epochs \* steps",),
        (("Settings(2, 3.0)", "Settings(2, 3)"),),
        "assert scheduler.total_steps == 6",
    ),
    FarProgram(
        "a_norm_made_in_forward",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 4)

            def forward(self, x):
                return nn.BatchNorm1d(4)(self.fc(x))  # cause

        net = Net()
        net.eval()
        out = net(torch.randn(1, 3))
        """,
        (
            r"1\. Net makes nn\.BatchNorm1d\(4\) anew in each call of its forward",
            r"(?s)^(?!.*model\.eval)",
        ),
        (
            (
                "self.fc = nn.Linear(3, 4)",
                "self.fc, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)",
            ),
            ("nn.BatchNorm1d(4)(self.fc(x))", "self.norm(self.fc(x))"),
        ),
        "assert out.shape == (1, 4) and len(list(net.parameters())) == 4",
    ),
    FarProgram(
        "layers_in_a_plain_list_of_another_dtype",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = [nn.Linear(3, 3) for _ in range(2)]

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)  # cause
                return x

        net = Net().double()
        out = net(torch.randn(4, 3).double())
        """,
        (r"1\. Net keeps its modules in a plain list, self\.layers", r"(?s)^(?!.*model\.to\()"),
        (
            (
                "[nn.Linear(3, 3) for _ in range(2)]",
                "nn.ModuleList(nn.Linear(3, 3) for _ in range(2))",
            ),
        ),
        "assert out.dtype == torch.float64 and len(list(net.parameters())) == 4",
    ),
    FarProgram(
        "a_conversion_that_is_dropped",
        """
        net = nn.Linear(3, 1)
        rows = torch.randn(4, 3, dtype=torch.float64)
        rows.float()  # cause
        out = net(rows)
        """,
        (r"1\. train\.py:\d+ computes rows\.float\(\) and drops it.* rows = rows\.float\(\)\.",),
        (("rows.float()", "rows = rows.float()"),),
        "assert out.shape == (4, 1) and rows.dtype == torch.float32",
    ),
    FarProgram(
        "a_mask_of_the_batch",
        """
        x = torch.randn(6, 5, 8)
        layer = nn.MultiheadAttention(8, 2, batch_first=True)
        mask = torch.ones(x.size(0), x.size(0), dtype=torch.bool).triu(1)  # cause
        out, _ = layer(x, x, x, attn_mask=mask)
        """,
        (r"counts dimension 0 of x, 6: if dimension 1, of 5, is meant",),
        (("torch.ones(x.size(0), x.size(0)", "torch.ones(x.size(1), x.size(1)"),),
        "assert out.shape == (6, 5, 8)",
    ),
    FarProgram(
        "a_system_turned_round",
        """
        matrix = torch.randn(3, 3).double() + 4 * torch.eye(3).double()
        right = torch.randn(3, 2).double()
        solved = torch.linalg.solve(right, matrix)  # cause
        """,
        (r"1\. If right and matrix stand in each other's place, .*solve\(matrix, right\)",),
        (("solve(right, matrix)", "solve(matrix, right)"),),
        "assert torch.allclose(matrix @ solved, right)",
    ),
    FarProgram(
        "an_index_before_its_dimension",
        """
        x = torch.arange(12.0).view(3, 4)
        index = torch.tensor([[0], [1], [2]])
        chosen = x.gather(index, 1)  # cause
        """,
        (r"1\. If index and 1 stand in each other's place, exchange them: x\.gather\(1, index\)",),
        (("x.gather(index, 1)", "x.gather(1, index)"),),
        "assert chosen.flatten().tolist() == [0, 5, 10]",
    ),
    FarProgram(
        "a_join_of_one",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(3, 4)

            def forward(self, x, old):
                keys = torch.cat((old,), dim=1)  # cause
                return torch.randn(2, 1, 7).softmax(-1) @ keys

        x, old = torch.randn(2, 1, 4), torch.randn(2, 6, 4)
        out = Net()(x, old)
        """,
        (r"1\. torch\.cat\(\(old,\), dim=1\) of train\.py:\d+ joins one tensor alone",),
        (("torch.cat((old,), dim=1)", "torch.cat((old, x), dim=1)"),),
        "assert out.shape == (2, 1, 4)",
    ),
    FarProgram(
        "a_parameter_of_another_dtype",
        """
        class Shift(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.shift = nn.Parameter(torch.zeros(width).double())

            def forward(self, x):
                return x + self.shift

        net = nn.Sequential(nn.Linear(3, 4), Shift(4), nn.Linear(4, 2), nn.Linear(2, 2))
        out = net(torch.randn(5, 3))  # cause
        """,
        (r"1\. net\[1\]\.shift holds float64, the others float32",),
        (("torch.zeros(width).double()", "torch.zeros(width)"),),
        "assert out.dtype == torch.float32",
    ),
)
