"""Posted: losses and their targets, batches, files, numpy."""

from __future__ import annotations

from posted_programs.posted import Posted

GITHUB = "https://github.com/"

POSTED = [
    Posted(
        "words of a language model, classes last",
        GITHUB + "markhliu/DGAI/issues/7",
        "target of another size",
        """
        net = nn.Linear(8, 12)
        inputs, targets = torch.randn(4, 5, 8), torch.randint(0, 12, (4, 5))
        loss = nn.CrossEntropyLoss()(net(inputs), targets)
        """,
        r"classes? in (dimension 1|its second dimension)|dimension 1",
        r"\.(transpose\(1, 2\)|movedim\(-1, 1\))",
        (("net(inputs), targets", "net(inputs).movedim(-1, 1), targets"),),
        "by_hand = -net(inputs).log_softmax(-1).gather(2, targets[..., None]).mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "captions longer than what was predicted",
        GITHUB + "sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning/issues/195",
        "target of another size",
        """
        scores, targets = torch.randn(3, 4, 9), torch.randint(0, 9, (3, 6))
        lengths = [4, 4, 4]
        loss = nn.CrossEntropyLoss()(scores, targets)
        """,
        r"scores.*\[3, 4, 9\]",
        r".",
        (("(scores, targets)", "(scores.movedim(-1, 1), targets[:, :4])"),),
        "by_hand = -scores.log_softmax(-1).gather(2, targets[:, :4, None]).mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "classes counted from 1",
        GITHUB + "avisheknag17/public_ml_models/issues/2",
        "class range",
        """
        net, labels = nn.Linear(4, 5), torch.tensor([1, 2, 3, 4, 5])
        x = torch.randn(5, 4)
        loss = F.nll_loss(net(x).log_softmax(1), labels)
        """,
        r"labels.*(1 to 5|from 1|5).*(0 to 4|5 classes)|5 classes.*1 to 5",
        r"labels - 1",
        (("log_softmax(1), labels)", "log_softmax(1), labels - 1)"),),
        "assert torch.allclose(loss, -net(x).log_softmax(1).diagonal().mean())",
    ),
    Posted(
        "sentiments of -1, 0 and 1",
        GITHUB + "EricFillion/happy-transformer/issues/248",
        "class range",
        """
        net, values = nn.Linear(4, 3), torch.tensor([-1, 0, 1, 1])
        x = torch.randn(4, 4)
        loss = F.cross_entropy(net(x), values)
        """,
        r"values.*-1 to 1",
        r"values \+ 1|values - values\.min\(\)|values - -1",
        (("net(x), values", "net(x), values + 1"),),
        "by_hand = -net(x).log_softmax(1)[torch.arange(4), torch.tensor([0, 1, 2, 2])].mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "more classes in the labels than in the head",
        GITHUB + "TencentGameMate/gnn_cross_lingual/issues/5",
        "class range",
        """
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 12))
        labels = torch.tensor([0, 3, 17, 12])
        loss = F.cross_entropy(net(torch.randn(4, 4)), labels)
        """,
        r"12 classes.*0 to 17|0 to 17.*12",
        r"(18|nn\.Linear\(8, 18\))",
        (("nn.Linear(8, 12)", "nn.Linear(8, 18)"),),
        "assert loss.isfinite()",
    ),
    Posted(
        "pixels marked 255 that are to be left out",
        GITHUB + "open-mmlab/mmsegmentation/issues/3609",
        "class range",
        """
        net = nn.Conv2d(3, 2, 1)
        masks = torch.tensor([[[0, 1], [1, 255]]])
        picture = torch.randn(1, 3, 2, 2)
        loss = F.cross_entropy(net(picture), masks)
        """,
        r"255",
        r"ignore_index=255",
        (("net(picture), masks", "net(picture), masks, ignore_index=255"),),
        "logs = net(picture).log_softmax(1)[0].flatten(1)\n"
        "assert torch.allclose(loss, -(logs[0, 0] + logs[1, 1] + logs[1, 2]) / 3)",
    ),
    Posted(
        "labels that a table gave as float64",
        GITHUB + "ahmedbesbes/character-based-cnn/issues/5",
        "class dtype",
        """
        import numpy as np

        net = nn.Linear(3, 4)
        x, labels = torch.randn(4, 3), torch.from_numpy(np.array([0.0, 3.0, 1.0, 2.0]))
        loss = nn.CrossEntropyLoss()(net(x), labels)
        """,
        r"labels.*float64",
        r"labels\.long\(\)",
        (("net(x), labels", "net(x), labels.long()"),),
        "by_hand = -net(x).log_softmax(1)[torch.arange(4), torch.tensor([0, 3, 1, 2])].mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "labels of int32",
        GITHUB + "jfzhang95/pytorch-video-recognition/issues/71",
        "class dtype",
        """
        net = nn.Linear(3, 4)
        x, labels = torch.randn(4, 3), torch.tensor([0, 3, 1, 2], dtype=torch.int32)
        loss = F.cross_entropy(net(x), labels)
        """,
        r"labels.*int32",
        r"labels\.long\(\)",
        (("net(x), labels", "net(x), labels.long()"),),
        "by_hand = -net(x).log_softmax(1)[torch.arange(4), labels.long()].mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "masks of a segmentation as floats",
        GITHUB + "qubvel-org/segmentation_models.pytorch/issues/197",
        "class dtype",
        """
        net = nn.Conv2d(3, 4, 1)
        x, masks = torch.randn(2, 3, 5, 5), torch.randint(0, 4, (2, 5, 5)).float()
        loss = nn.CrossEntropyLoss()(net(x), masks)
        """,
        r"masks.*float32",
        r"masks\.long\(\)",
        (("net(x), masks", "net(x), masks.long()"),),
        "by_hand = -net(x).log_softmax(1).gather(1, masks.long()[:, None]).mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "weights of classes from numpy",
        GITHUB + "sebsk/CS224N-Project/pull/2",
        "dtypes of an operation",
        """
        import numpy as np

        net, labels = nn.Linear(3, 2), torch.tensor([0, 1, 1])
        x, weight = torch.randn(3, 3), torch.tensor(np.array([0.3, 0.7]))
        loss = F.cross_entropy(net(x), labels, weight=weight)
        """,
        r"weight.*float64",
        r"weight\.(float\(\)|to\(torch\.float32\))",
        (("weight=weight)", "weight=weight.float())"),),
        "logs = -net(x).log_softmax(1)[torch.arange(3), labels]\n"
        "assert torch.allclose(loss, (logs * torch.tensor([0.3, 0.7, 0.7])).sum() / 1.7)",
    ),
    Posted(
        "answers of yes and no without a column",
        GITHUB + "FernandoLpz/Text-Classification-LSTMs-PyTorch/issues/9",
        "binary size",
        """
        net = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
        x, y = torch.randn(6, 4), torch.tensor([0.0, 1, 1, 0, 1, 0])
        loss = F.binary_cross_entropy(net(x), y)
        """,
        r"\[6\].*\[6, 1\]|\[6, 1\].*\[6\]",
        r"y\.unsqueeze\((1|-1)\)|\.squeeze\((1|-1)\)",
        (("net(x), y)", "net(x), y.unsqueeze(1))"),),
        "p = net(x)[:, 0]\nassert torch.allclose(loss, -torch.where(y > 0, p, 1 - p).log().mean())",
    ),
    Posted(
        "the first row in place of the output",
        GITHUB + "jeonsworld/MLP-Mixer-Pytorch/issues/3",
        "target of another size",
        """
        model = nn.Linear(4, 10)
        x, y = torch.randn(16, 4), torch.randint(0, 10, (16,))
        logits = model(x)[0]
        loss = F.cross_entropy(logits, y)
        """,
        r"\[10\].*\[16\]|logits",
        r"model\(x\)|\[0\]",
        (("model(x)[0]", "model(x)"),),
        "assert torch.allclose(loss, -model(x).log_softmax(1)[torch.arange(16), y].mean())",
    ),
    Posted(
        "tokens flattened, and their labels not",
        GITHUB + "singhsourabh/Resume-NER/issues/6",
        "batch of a loss",
        """
        net = nn.Linear(4, 3)
        logits, labels = net(torch.randn(2, 5, 4)), torch.randint(0, 3, (2, 5))
        loss = F.cross_entropy(logits.view(-1, 3), labels)
        """,
        r"10.*\[2, 5\]|\[2, 5\].*10",
        r"labels\.(view\(-1\)|flatten\(\)|reshape\(-1\))",
        (("3), labels)", "3), labels.flatten())"),),
        "assert torch.allclose(loss, -logits.log_softmax(-1).gather(2, labels[..., None]).mean())",
    ),
    Posted(
        "classes put third",
        GITHUB + "kyegomez/HeptapodLM/issues/7",
        "target of another size",
        """
        net = nn.Linear(6, 7)
        labels = torch.randint(0, 7, (2, 3, 4))
        logits = net(torch.randn(2, 3, 4, 6)).permute(0, 1, 3, 2)
        loss = F.cross_entropy(logits, labels)
        """,
        r"\[2, 3, 7, 4\].*\[2, 3, 4\]|\[2, 3, 4\].*\[2, 3, 7, 4\]",
        r"movedim\(2, 1\)",
        (("cross_entropy(logits,", "cross_entropy(logits.movedim(2, 1),"),),
        "by_hand = -logits.log_softmax(2).movedim(2, 3).gather(3, labels[..., None]).mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
    Posted(
        "pictures of several sizes in a batch",
        GITHUB + "milesial/Pytorch-UNet/issues/285",
        "stack",
        """
        from torch.utils.data import DataLoader

        pictures = [torch.rand(3, 8, 6), torch.rand(3, 6, 8)]
        for batch in DataLoader(pictures, batch_size=2):
            pass
        """,
        r"\[3, 8, 6\].*\[3, 6, 8\]",
        r"[Rr]esize|size=",
        (
            (
                "pictures = [torch.rand(3, 8, 6), torch.rand(3, 6, 8)]",
                "sizes = (3, 8, 6), (3, 6, 8)\n"
                "pictures = [F.interpolate(torch.rand(1, *one), size=(8, 8))[0] for one in sizes]",
            ),
        ),
        "assert batch.shape == (2, 3, 8, 8)",
    ),
    Posted(
        "another number of boxes in each picture",
        GITHUB + "amdegroot/ssd.pytorch/issues/546",
        "stack",
        """
        from torch.utils.data import DataLoader

        samples = [(torch.rand(3, 4, 4), torch.rand(n, 5)) for n in (1, 2)]
        loader = DataLoader(samples, batch_size=2)
        for pictures, boxes in loader:
            pass
        """,
        r"\[1, 5\].*\[2, 5\]",
        r"collate_fn=lambda",
        (
            (
                "batch_size=2)",
                "batch_size=2, collate_fn=lambda batch: tuple(zip(*batch)))",
            ),
        ),
        "assert [len(one) for one in boxes] == [1, 2] and torch.stack(pictures).shape[0] == 2\n"
        "assert torch.equal(boxes[1], samples[1][1])",
    ),
    Posted(
        "a grey picture among coloured ones",
        GITHUB + "open-edge-platform/anomalib/issues/1862",
        "stack",
        """
        from torch.utils.data import DataLoader

        pictures = [torch.rand(6, 6), torch.rand(3, 6, 6)]
        for batch in DataLoader(pictures, batch_size=2):
            pass
        """,
        r"\[6, 6\].*\[3, 6, 6\]",
        r"expand\(3, -1, -1\)",
        (
            (
                "[torch.rand(6, 6), torch.rand(3, 6, 6)]",
                "[torch.rand(6, 6).expand(3, -1, -1), torch.rand(3, 6, 6)]",
            ),
        ),
        "assert batch.shape == (2, 3, 6, 6)",
    ),
    Posted(
        "annotations in lists of several lengths",
        GITHUB + "pytorch/vision/issues/2624",
        "lists in a batch",
        """
        from torch.utils.data import DataLoader

        samples = [(torch.rand(3, 4, 4), [{"id": n} for n in range(at)]) for at in (1, 2)]
        loader = DataLoader(samples, batch_size=2)
        for pictures, notes in loader:
            pass
        """,
        r"list",
        r"collate_fn=lambda",
        (("batch_size=2)", "batch_size=2, collate_fn=lambda batch: tuple(zip(*batch)))"),),
        "assert [len(one) for one in notes] == [1, 2] and notes[1][1] == {'id': 1}",
    ),
    Posted(
        "a sample that could not be read is None",
        GITHUB + "Megvii-BaseDetection/YOLOX/issues/1523",
        "None in a batch",
        """
        from torch.utils.data import DataLoader, default_collate

        samples = [torch.ones(2), None, torch.zeros(2), torch.ones(2)]
        batches = list(DataLoader(samples, batch_size=4))
        """,
        r"None",
        r"collate_fn=.*is not None",
        (
            (
                "batch_size=4)",
                "batch_size=4, collate_fn=lambda batch: default_collate(\n"
                "    [one for one in batch if one is not None]))",
            ),
        ),
        "assert batches[0].tolist() == [[1, 1], [0, 0], [1, 1]]",
    ),
    Posted(
        "pictures of PIL in a batch",
        GITHUB + "tristandeleu/pytorch-meta/issues/35",
        "sample of a batch",
        """
        import numpy
        from PIL import Image
        from torch.utils.data import DataLoader

        class Pictures:
            def __len__(self):
                return 2

            def __getitem__(self, at):
                picture = Image.fromarray(numpy.full((4, 4), at, dtype="uint8"))
                return picture, at

        (batch, labels), = DataLoader(Pictures(), batch_size=2)
        """,
        r"Image",
        r"(ToTensor|numpy)",
        (("return picture,", "return torch.from_numpy(numpy.array(picture)),"),),
        "assert batch.shape == (2, 4, 4) and (batch[1] == 1).all()",
    ),
    Posted(
        "samples of a class of one's own",
        GITHUB + "guglielmocamporese/hands-segmentation-pytorch/issues/2",
        "sample of a batch",
        """
        from torch.utils.data import DataLoader

        class Sample:
            def __init__(self, at):
                self.x = torch.full((2,), float(at))

        (batch,) = DataLoader([Sample(0), Sample(1)], batch_size=2)
        """,
        r"Sample",
        r"(vars\(|dict|tensor)",
        (("[Sample(0), Sample(1)]", "[vars(Sample(0)), vars(Sample(1))]"),),
        "assert batch['x'].tolist() == [[0, 0], [1, 1]]",
    ),
    Posted(
        "samples of several sizes, stacked in a worker",
        GITHUB + "ykdai/BasicPBC/issues/3",
        "storage of a batch",
        """
        from torch.utils.data import DataLoader

        rows = [torch.arange(3.0), torch.arange(2.0)]

        def padded(batch):
            return nn.utils.rnn.pad_sequence(batch, batch_first=True)

        (batch,) = DataLoader(rows, batch_size=2, num_workers=1)
        """,
        r"(shapes|sizes)",
        r"collate_fn",
        (("num_workers=1)", "num_workers=1, collate_fn=padded)"),),
        "assert batch.tolist() == [[0, 1, 2], [0, 1, 0]]",
    ),
    Posted(
        "map_location beside torch.load",
        GITHUB + "NisargPethani/FACE-MASK-DETECTION-USING-YOLO-V3/issues/2",
        "unknown argument",
        """
        import io

        model, file = nn.Linear(2, 2), io.BytesIO()
        torch.save(nn.Linear(2, 2).state_dict(), file)
        file.seek(0)
        model.load_state_dict(torch.load(file), map_location="cpu")
        """,
        r"map_location",
        r"torch\.load\(.*map_location",
        (('torch.load(file), map_location="cpu")', 'torch.load(file, map_location="cpu"))'),),
        "file.seek(0)\nassert torch.equal(model.weight, torch.load(file)['weight'])",
    ),
    Posted(
        "a file of a GPU, where there is none",
        GITHUB + "hkchengrex/Cutie/issues/37",
        "file of a GPU",
        """
        import io

        torch.serialization.register_package(0, lambda one: "cuda:0", lambda one, place: None)
        file = io.BytesIO()
        torch.save({"w": torch.arange(3.0)}, file)
        torch.serialization._package_registry.pop(0)
        file.seek(0)
        state = torch.load(file)
        """,
        r"CUDA",
        r"map_location=.cpu.",
        (("torch.load(file)", 'torch.load(file, map_location="cpu")'),),
        "assert state['w'].tolist() == [0, 1, 2]",
    ),
    Posted(
        "bfloat16 for numpy",
        GITHUB + "TransformerLensOrg/TransformerLens/pull/1346",
        "dtype without numpy",
        """
        acts = nn.Linear(2, 2).to(torch.bfloat16)(torch.ones(1, 2, dtype=torch.bfloat16))
        shown = acts.detach().numpy()
        """,
        r"bfloat16",
        r"\.float\(\)\.numpy\(\)",
        ((".detach().numpy()", ".detach().float().numpy()"),),
        "assert shown.dtype == 'float32' and shown.shape == (1, 2)",
    ),
]
