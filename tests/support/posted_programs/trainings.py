"""Posted: recurrences and their states, scalers, indices, further batches and shapes."""

from __future__ import annotations

from posted_programs.posted import Posted

GITHUB = "https://github.com/"

POSTED = [
    Posted(
        "a scaler for parameters of float16",
        GITHUB + "yk7333/d3po/issues/6",
        "gradients of float16",
        """
        net = nn.Linear(4, 1).half()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(torch.randn(8, 4)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        """,
        r"float16",
        r"float32|net\.float\(\)",
        (("nn.Linear(4, 1).half()", "nn.Linear(4, 1)"),),
        "assert net.weight.dtype is torch.float32 and (net.weight.grad != 0).any()",
    ),
    Posted(
        "a state for more samples than the last batch has",
        GITHUB + "gabrielloye/LSTM_Sentiment-Analysis/issues/4",
        "state of a recurrence",
        """
        from torch.utils.data import DataLoader

        lstm, batch_size = nn.LSTM(3, 5, batch_first=True), 4
        seen = []
        for x in DataLoader(torch.randn(10, 6, 3), batch_size=batch_size):
            h = torch.zeros(1, batch_size, 5), torch.zeros(1, batch_size, 5)
            out, h = lstm(x, h)
            seen.append(out)
        """,
        r"batch.*(2|4)",
        r"(x\.size\(0\)|x\.shape\[0\]|batch of 2)",
        (("(1, batch_size, 5)", "(1, x.size(0), 5)"),),
        "assert [len(one) for one in seen] == [4, 4, 2]",
    ),
    Posted(
        "a batch in the first dimension, for a recurrence that has time there",
        GITHUB + "bentrevett/pytorch-seq2seq/issues/162",
        "state of a recurrence",
        """
        decoder = nn.GRU(3, 5, num_layers=2)
        state = torch.randn(2, 4, 5)
        embedded = torch.randn(4, 1, 3)
        output, state = decoder(embedded, state)
        """,
        r"batch",
        r"embedded\.transpose\(0, 1\)|batch_first",
        (("decoder(embedded,", "decoder(embedded.transpose(0, 1),"),),
        "assert output.shape == (1, 4, 5)",
    ),
    Posted(
        "a state for two directions, and a recurrence with one",
        GITHUB + "ngarneau/understanding-pytorch-batching-lstm/issues/1",
        "state of a recurrence",
        """
        lstm = nn.LSTM(3, 5)
        hidden = torch.zeros(2, 4, 5), torch.zeros(2, 4, 5)
        out, _ = lstm(torch.randn(6, 4, 3), hidden)
        """,
        r"(layers|directions)",
        r"1, 4, 5",
        (
            (
                "torch.zeros(2, 4, 5), torch.zeros(2, 4, 5)",
                "torch.zeros(1, 4, 5), torch.zeros(1, 4, 5)",
            ),
        ),
        "assert out.shape == (6, 4, 5)",
    ),
    Posted(
        "pictures smaller than the kernels of a discriminator",
        GITHUB + "avalonstrel/GatedConvolution_pytorch/issues/31",
        "kernel too large",
        """
        net = nn.Sequential(
            *(nn.Conv2d(1, 1, 4, stride=2, padding=1) for _ in range(4)), nn.Conv2d(1, 1, 4)
        )
        picture = torch.rand(2, 1, 48, 48)
        score = net(picture)
        """,
        r"kernel of 4 x 4.*3 x 3",
        r"larger input",
        (("net(picture)", "net(F.interpolate(picture, size=(64, 64)))"),),
        "assert score.shape == (2, 1, 1, 1)",
    ),
    Posted(
        "tokens that the embedding does not have",
        GITHUB + "huggingface/transformers/issues/5228",
        "index of an embedding",
        """
        net = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
        ids = torch.tensor([[1, 5, 12]])
        out = net(ids)
        """,
        r"12.*10|10.*12",
        r"Embedding\(13, 4\)|row for each",
        (("nn.Embedding(10, 4)", "nn.Embedding(13, 4)"),),
        "assert out.shape == (1, 3, 2)",
    ),
    Posted(
        "anchors of another size of picture",
        GITHUB + "opconty/pytorch_ctpn/issues/6",
        "index",
        """
        scores, labels = torch.randn(6, 2), torch.tensor([1, -1, 0, -1, 1, -1, -1, 0])
        kept = (labels >= 0).nonzero()[:, 0]
        chosen = scores[kept]
        """,
        r"7.*6|6.*7",
        r"0|-6 to 5",
        (("scores, labels = torch.randn(6, 2)", "scores, labels = torch.randn(8, 2)"),),
        "assert torch.equal(chosen, scores[[0, 2, 4, 7]])",
        wrong="clamp",
    ),
    Posted(
        "frames of videos for a network of pictures",
        GITHUB + "facebookresearch/ConvNeXt/issues/140",
        "dimensions of a convolution",
        """
        net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.ReLU())
        frames = torch.rand(2, 5, 3, 8, 8)
        found = net(frames)
        """,
        r"\[2, 5, 3, 8, 8\]",
        r"frames\.flatten\(0, 1\)",
        (("net(frames)", "net(frames.flatten(0, 1))"),),
        "assert torch.allclose(found[6], net(frames[1, 1][None])[0], atol=1e-6)",
    ),
    Posted(
        "samples of a test set without a label",
        GITHUB + "nitsaick/kits19-challenge/issues/7",
        "None in a batch",
        """
        from torch.utils.data import DataLoader

        samples = [{"image": torch.full((2,), float(at)), "label": None} for at in range(2)]
        (batch,) = DataLoader(samples, batch_size=2)
        """,
        r"label.*None|None.*label",
        r"'label'",
        (('"label": None', '"label": torch.tensor(-1)'),),
        "assert batch['image'].tolist() == [[0, 0], [1, 1]]",
    ),
    Posted(
        "a model that scores each token of a sentence",
        GITHUB + "CSAILVision/semantic-segmentation-pytorch/issues/291",
        "target of another size",
        """
        net = nn.Linear(4, 2)
        logits, labels = net(torch.randn(6, 5, 4)), torch.randint(0, 2, (6,))
        loss = F.cross_entropy(logits, labels)
        """,
        r"\[6, 5, 2\].*\[6\]",
        r"logits\[:, 0\]",
        (("(logits, labels)", "(logits[:, 0], labels)"),),
        "assert torch.allclose(loss, -logits[:, 0].log_softmax(1)[range(6), labels].mean())",
    ),
    Posted(
        "an attribute that TorchScript does not find",
        GITHUB + "pytorch/pytorch/issues/20495",
        "attribute missing in a script",
        """
        class A(nn.Module):
            def forward(self, x):
                return x + self.whatisgoingon

        net = torch.jit.script(A())
        out = net(torch.ones(2))
        """,
        r"whatisgoingon",
        r"self\.whatisgoingon.*__init__",
        (
            (
                "    def forward(self, x):",
                "    def __init__(self):\n        super().__init__()\n"
                "        self.whatisgoingon = 2.0\n\n    def forward(self, x):",
            ),
        ),
        "assert out.tolist() == [3, 3]",
    ),
    Posted(
        "pictures stacked by a collate function of one's own",
        GITHUB + "Suanmd/TR-MISR/issues/3",
        "stack",
        """
        from torch.utils.data import DataLoader

        class Collate:
            def __call__(self, batch):
                return torch.stack(batch, dim=0)

        pictures = [torch.rand(4, 6, 8), torch.rand(4, 8, 6)]
        (batch,) = DataLoader(pictures, batch_size=2, collate_fn=Collate())
        """,
        r"\[4, 6, 8\].*\[4, 8, 6\]",
        r"[Rr]esize|size=",
        (
            (
                "torch.stack(batch, dim=0)",
                "torch.stack([F.interpolate(x[None], size=(8, 8))[0] for x in batch], dim=0)",
            ),
        ),
        "assert batch.shape == (2, 4, 8, 8)",
    ),
    Posted(
        "words of captchas of several lengths",
        GITHUB + "abhishekkrthakur/captcha-recognition-pytorch/issues/1",
        "stack",
        """
        from torch.utils.data import DataLoader

        words = [torch.tensor([3, 1, 4]), torch.tensor([1, 5])]
        (batch,) = DataLoader(words, batch_size=2)
        """,
        r"\[3\].*\[2\]",
        r"collate_fn.*pad_sequence",
        (
            (
                "batch_size=2)",
                "batch_size=2, collate_fn=lambda one: \n"
                "    nn.utils.rnn.pad_sequence(one, batch_first=True))",
            ),
        ),
        "assert batch.tolist() == [[3, 1, 4], [1, 5, 0]]",
    ),
    Posted(
        "a mask of more tokens than the model kept",
        GITHUB + "unslothai/unsloth/issues/1717",
        "broadcast",
        """
        longest = 8
        ids, attention_mask = torch.randint(0, 9, (2, 12)), torch.ones(2, 12)
        embed = nn.Embedding(9, 4)
        inputs_embeds = embed(ids[:, :longest])
        inputs_embeds = inputs_embeds * attention_mask.unsqueeze(-1)
        """,
        r"inputs_embeds.*attention_mask.*8 and 12",
        r"attention_mask.*8",
        (("attention_mask.unsqueeze", "attention_mask[:, :longest].unsqueeze"),),
        "assert torch.equal(inputs_embeds, embed(ids[:, :8]))",
    ),
    Posted(
        "the optimizer of a part, with the state of the whole",
        GITHUB + "pytorch/pytorch/issues/40769",
        "broadcast",
        """
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(3, 1))
        x = torch.randn(2, 1, 3, 3)

        def trained(one):
            optimizer = torch.optim.Adam(one, lr=0.1)
            net(x).sum().backward()
            optimizer.step()
            return optimizer

        saved = trained([net[0].weight, net[1].weight]).state_dict()
        optimizer = torch.optim.Adam([net[1].weight, net[3].weight], lr=0.1)
        optimizer.load_state_dict(saved)
        net(x).sum().backward()
        optimizer.step()
        """,
        r"state that the Adam holds.*shape",
        r"same parameters, in the same order",
        (
            (
                "torch.optim.Adam([net[1].weight, net[3].weight]",
                "torch.optim.Adam([net[0].weight, net[1].weight]",
            ),
        ),
        "assert optimizer.state[net[0].weight]['step'] == 2",
    ),
    Posted(
        "scores of one kind and a weight of none",
        GITHUB + "pytorch/pytorch/issues/118280",
        "class dtype",
        """
        net = nn.Linear(3, 4)
        x = torch.randn(2, 3)
        labels = torch.tensor([[1.0], [3.0]])
        loss = F.cross_entropy(net(x), labels.squeeze(1))
        """,
        r"labels\.squeeze\(1\).*float32",
        r"labels\.squeeze\(1\)\.long\(\)",
        (("labels.squeeze(1))", "labels.squeeze(1).long())"),),
        "assert torch.allclose(loss, -net(x).log_softmax(1)[[0, 1], [1, 3]].mean())",
    ),
]
