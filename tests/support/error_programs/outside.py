"""Programs as people post them: attention, sequences, pictures, optimizers, compilers, values.

Each states what it is for: what must hold once the way out is applied, besides that it runs.
"""

from __future__ import annotations

from error_programs.program import Program

ATTENTION = [
    Program(
        "A mask for each sample, and not for each head",
        "attention mask",
        """
        attention = nn.MultiheadAttention(8, 4, batch_first=True)
        x = torch.randn(2, 5, 8)
        mask = torch.ones(2, 5, 5, dtype=torch.bool).triu(1)
        mask[1, :, 4] = True
        out, weights = attention(x, x, x, attn_mask=mask)  # raises
        """,
        "attention (MultiheadAttention)",
        "with .repeat_interleave(4, 0)",
        (("attn_mask=mask", "attn_mask=mask.repeat_interleave(4, 0)"),),
        purpose="assert (weights[mask] == 0).all() and (weights[~mask] > 0).all()",
    ),
    Program(
        "A padding mask as attn_mask",
        "attention mask",
        """
        attention = nn.MultiheadAttention(8, 2, batch_first=True)
        x = torch.randn(3, 5, 8)
        padding = torch.arange(5) >= torch.tensor([5, 3, 2])[:, None]
        out, weights = attention(x, x, x, attn_mask=padding)  # raises
        """,
        "attention (MultiheadAttention)",
        "key_padding_mask=padding",
        (("attn_mask=padding", "key_padding_mask=padding"),),
        purpose="assert (weights.transpose(1, 2)[padding] == 0).all()",
    ),
    Program(
        "A padding mask with time first",
        "padding mask",
        """
        attention = nn.MultiheadAttention(8, 2)
        x = torch.randn(5, 3, 8)
        padding = torch.arange(5)[:, None] >= torch.tensor([5, 3, 2])
        out, weights = attention(x, x, x, key_padding_mask=padding)  # raises
        """,
        "attention (MultiheadAttention)",
        "turn it: .T.",
        (("key_padding_mask=padding", "key_padding_mask=padding.T"),),
        purpose="assert (weights.transpose(1, 2)[padding.T] == 0).all()",
    ),
    Program(
        "A width that the heads do not divide",
        "attention heads",
        """
        layer = nn.TransformerEncoderLayer(10, 4)  # raises
        out = layer(torch.randn(3, 2, 10))
        """,
        "the MultiheadAttention itself",
        "Choose a number of heads that divides it: 1, 2, 5, 10.",
        (("(10, 4)", "(10, 5)"),),
        purpose="assert out.shape == (3, 2, 10) and out.mean(-1).abs().max() < 1e-5",
    ),
]
SEQUENCES = [
    Program(
        "A sequence without a batch, and states with one",
        "dimensions of a state",
        """
        lstm = nn.LSTM(3, 8)
        h, c = torch.zeros(1, 1, 8), torch.zeros(1, 1, 8)
        rows = torch.randn(5, 3)
        out, _ = lstm(rows, (h, c))  # raises
        """,
        "lstm (LSTM)",
        "Give the input a batch of one, with .unsqueeze(1)",
        (("lstm(rows,", "lstm(rows.unsqueeze(1),"),),
        purpose="assert torch.equal(out[:, 0], lstm(rows)[0])",
    ),
    Program(
        "A batch, and a state without one",
        "dimensions of a state",
        """
        gru = nn.GRU(3, 8, batch_first=True)
        state = torch.zeros(1, 8)
        out, _ = gru(torch.randn(2, 5, 3), state)  # raises
        """,
        "gru (GRU)",
        "Give each state a batch: [layers * directions, batch, hidden].",
        (("torch.zeros(1, 8)", "torch.zeros(1, 2, 8)"),),
        purpose="assert out.shape == (2, 5, 8)",
    ),
    Program(
        "Lengths that are not sorted",
        "lengths in no order",
        """
        from torch.nn.utils.rnn import pack_padded_sequence

        rows = torch.randn(3, 6, 4)
        lengths = torch.tensor([3, 6, 2])
        packed = pack_padded_sequence(rows, lengths, batch_first=True)  # raises
        out, state = nn.GRU(4, 5)(packed)
        """,
        "",
        "Give enforce_sorted=False",
        (("batch_first=True)", "batch_first=True, enforce_sorted=False)"),),
        purpose="assert nn.utils.rnn.pad_packed_sequence(out)[1].tolist() == [3, 6, 2]",
    ),
    Program(
        "Lengths on another device",
        "lengths elsewhere",
        """
        rows = torch.randn(2, 6, 4)
        lengths = torch.tensor([[6], [2]])
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)  # raises
        """,
        "",
        "Give one whole number for each sample",
        (("rows, lengths,", "rows, lengths.flatten(),"),),
        purpose="assert packed.batch_sizes.tolist() == [2, 2, 1, 1, 1, 1]",
    ),
    Program(
        "A sample without elements",
        "empty sequence",
        """
        rows, lengths = torch.randn(3, 6, 4), torch.tensor([6, 2, 0])
        packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)  # raises
        """,
        "",
        "a length is 0 at 2.",
        (
            ("torch.tensor([6, 2, 0])\n", "torch.tensor([6, 2, 0])\nkept = lengths > 0\n"),
            ("sequence(rows, lengths,", "sequence(rows[kept], lengths[kept],"),
        ),
        purpose="assert packed.batch_sizes.tolist() == [2, 2, 1, 1, 1, 1]",
    ),
]
PICTURES = [
    Program(
        "One picture is resized without a batch",
        "spatial dimensions",
        """
        picture = torch.rand(3, 8, 8)
        large = F.interpolate(picture, size=(16, 16), mode="bilinear")  # raises
        """,
        "",
        "F.interpolate(picture.unsqueeze(0), ...)[0].",
        (
            (
                '(picture, size=(16, 16), mode="bilinear")',
                '(picture.unsqueeze(0), size=(16, 16), mode="bilinear")[0]',
            ),
        ),
        purpose=(
            "assert large.shape == (3, 16, 16)\n"
            "assert torch.equal(large[:, 0, 0], picture[:, 0, 0])"
        ),
    ),
    Program(
        "One picture is scaled without a batch",
        "dimensions of a mode",
        """
        picture = torch.rand(3, 8, 8)
        large = F.interpolate(picture, scale_factor=2, mode="bilinear")  # raises
        """,
        "",
        "F.interpolate(picture.unsqueeze(0), ...)[0].",
        (
            (
                '(picture, scale_factor=2, mode="bilinear")',
                '(picture.unsqueeze(0), scale_factor=2, mode="bilinear")[0]',
            ),
        ),
        purpose=(
            "assert large.shape == (3, 16, 16)\n"
            "assert torch.equal(large[:, 0, 0], picture[:, 0, 0])"
        ),
    ),
    Program(
        "A grid with its coordinates in front",
        "grid of coordinates",
        """
        picture = torch.arange(16.0).view(1, 1, 4, 4)
        line = torch.linspace(-1, 1, 4)
        grid = torch.stack(torch.meshgrid(line, line, indexing="xy"))[None]
        same = F.grid_sample(picture, grid, align_corners=True)  # raises
        """,
        "",
        "Put the coordinates last: grid.movedim(1, -1).",
        (("picture, grid,", "picture, grid.movedim(1, -1),"),),
        purpose="assert torch.allclose(same, picture, atol=1e-5)",
    ),
    Program(
        "More padding than dimensions",
        "too much padding",
        """
        rows = torch.rand(3, 8)
        wide = F.pad(rows, (1, 1, 0, 0, 0, 0))  # raises
        """,
        "",
        "Give two numbers for each dimension that is padded",
        (("(1, 1, 0, 0, 0, 0)", "(1, 1)"),),
        purpose="assert torch.equal(wide[:, 1:-1], rows) and wide.shape == (3, 10)",
    ),
    Program(
        "A reflection that is wider than the picture",
        "reflected too far",
        """
        picture = torch.rand(1, 3, 8, 8)
        wide = F.pad(picture, (9, 9, 0, 0), mode="reflect")  # raises
        """,
        "",
        "mode='replicate'",
        (('mode="reflect"', 'mode="replicate"'),),
        purpose="assert torch.equal(wide[..., 9:-9], picture)",
    ),
    Program(
        "Masks of a segmentation with a channel",
        "spatial target",
        """
        net = nn.Conv2d(3, 5, 1)
        masks = torch.randint(0, 5, (2, 1, 8, 8))
        scores = net(torch.randn(2, 3, 8, 8))
        loss = F.cross_entropy(scores, masks)  # raises
        """,
        "",
        "Take its dimension of one away: masks.squeeze(1).",
        (("(scores, masks)", "(scores, masks.squeeze(1))"),),
        purpose="by_hand = -scores.log_softmax(1).gather(1, masks).mean()\n"
        "assert torch.allclose(loss, by_hand)",
    ),
]
OPTIMIZERS = [
    Program(
        "A saved state of another optimizer",
        "groups of an optimizer",
        """
        def build(everything):
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
            trained = model.parameters() if everything else model[1].parameters()
            return model, torch.optim.SGD(trained, lr=0.1, momentum=0.9)

        model, optimizer = build(True)
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()
        model, optimizer = build(False)
        optimizer.load_state_dict(saved)  # raises
        """,
        "",
        "Make the optimizer of the same parameters",
        (("build(False)", "build(True)"),),
        says=("an optimizer with 4 parameters in its groups, and this one has 2",),
        purpose="held = optimizer.state[model[0].weight]['momentum_buffer']\n"
        "assert torch.equal(held, saved['state'][0]['momentum_buffer'])",
    ),
    Program(
        "A head in a group of its own, and in the first one",
        "parameter in two groups",
        """
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        head = list(model[1].parameters())
        body = list(model.parameters())
        groups = [{"params": body}, {"params": head, "lr": 0.01}]
        optimizer = torch.optim.SGD(groups, lr=0.1)  # raises
        """,
        "",
        "Leave it out of one of the groups",
        (
            (
                "list(model.parameters())",
                "[p for p in model.parameters() if all(p is not q for q in head)]",
            ),
        ),
        says=("1.weight, 1.bias",),
        purpose="assert [len(one['params']) for one in optimizer.param_groups] == [2, 2]",
    ),
    Program(
        "A scheduler that goes on without a state",
        "scheduler without a beginning",
        """
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, last_epoch=4)  # raises
        """,
        "",
        "group['initial_lr'] = group['lr']",
        (
            (
                "lr=0.1)\n",
                "lr=0.1)\nfor group in optimizer.param_groups:\n"
                "    group['initial_lr'] = group['lr']\n",
            ),
        ),
        says=("last_epoch=4",),
        purpose="for _ in range(5):\n    optimizer.step()\n    scheduler.step()\n"
        "assert abs(scheduler.get_last_lr()[0] - 0.01) < 1e-12",
    ),
    Program(
        "Gradients are clipped at each backward of an accumulation",
        "unscaled twice",
        """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        rows = torch.randn(2, 8, 4)
        norms = []
        for at in range(2):
            scaler.scale(model(rows[at]).pow(2).mean() / 2).backward()
            scaler.unscale_(optimizer)  # raises
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 100.0))
        wanted = torch.autograd.grad(model(rows).pow(2).mean(), list(model.parameters()))
        """,
        "",
        "call scaler.unscale_(optimizer) in the round alone that steps",
        (
            ("    scaler.unscale_(optimizer)", "if at == 1:\n        scaler.unscale_(optimizer)"),
            ("    norms.append", "if at == 1:\n        norms.append"),
        ),
        purpose="for parameter, one in zip(model.parameters(), wanted):\n"
        "    assert torch.allclose(parameter.grad, one)",
    ),
    Program(
        "Two steps and one update",
        "stepped twice",
        """
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
            scaler.step(optimizer)  # raises
        scaler.update()
        """,
        "",
        "Call scaler.update() once after the steps of all optimizers",
        (
            ("    scaler.step(optimizer)", "    scaler.step(optimizer)\n    scaler.update()"),
            ("# raises\nscaler.update()", ""),
        ),
        purpose="assert all(one.grad.isfinite().all() for one in model.parameters())",
    ),
]
COMPILERS = [
    Program(
        "A branch on a value inside of vmap",
        "branch in a transform",
        """
        def doubled_if_positive(row):
            if row.sum() > 0:  # raises
                return row * 2
            return row

        rows = torch.randn(6, 3)
        found = torch.func.vmap(doubled_if_positive)(rows)
        """,
        "",
        "torch.where(condition, a, b)",
        (
            (
                "    if row.sum() > 0:  # raises\n        return row * 2\n    return row\n",
                "    return torch.where(row.sum() > 0, row * 2, row)\n",
            ),
        ),
        purpose="by_hand = torch.stack([one * 2 if one.sum() > 0 else one for one in rows])\n"
        "assert torch.equal(found, by_hand)",
    ),
    Program(
        "Gradients of each sample through a batch norm",
        "write in a transform",
        """
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        state = {name: one.detach() for name, one in model.named_parameters()}

        def loss(state, rows):
            return torch.func.functional_call(model, state, (rows,)).sum()  # raises

        found = torch.func.grad(loss)(state, torch.randn(5, 3))
        """,
        "1 (BatchNorm1d)",
        "torch.func.replace_all_batch_norm_modules_(model)",
        (("\nstate =", "\ntorch.func.replace_all_batch_norm_modules_(model)\nstate ="),),
        purpose="assert set(found) == set(state) and found['2.bias'].item() == 5",
    ),
    Program(
        "A branch on a value in one graph",
        "graph break",
        """
        @torch.compile(fullgraph=True, backend="eager")
        def shifted(x):
            if x.sum() > 0:  # raises
                return x + 1
            return x - 1

        found = [shifted(torch.ones(3)), shifted(-torch.ones(3))]
        """,
        "",
        "torch.where(condition, a, b)",
        (
            (
                "    if x.sum() > 0:  # raises\n        return x + 1\n    return x - 1\n",
                "    return torch.where(x.sum() > 0, x + 1, x - 1)\n",
            ),
        ),
        purpose="assert [one[0].item() for one in found] == [2.0, -2.0]",
    ),
    Program(
        "An argument of TorchScript of another type",
        "types of a script",
        """
        def total(x, dim: str):
            return x.sum(dim)

        scripted = torch.jit.script(total)  # raises
        """,
        "",
        "Say the types of arguments and attributes in annotations.",
        (("dim: str", "dim: int"),),
        purpose="assert scripted(torch.ones(1, 2), 1).tolist() == [2.0]",
    ),
    Program(
        "A function of the old kind",
        "legacy function",
        """
        class Reversed(torch.autograd.Function):
            def __init__(self, by):
                self.by = by

            def forward(self, x):
                return x.view_as(x)

            def backward(self, grad):
                return grad * -self.by

        x = torch.ones(2, requires_grad=True)
        Reversed(3.0)(x).sum().backward()  # raises
        """,
        "",
        "@staticmethod def forward(ctx, x, ...)",
        (
            ("    def __init__(self, by):\n        self.by = by\n\n", ""),
            (
                "    def forward(self, x):\n",
                "    @staticmethod\n    def forward(ctx, x, by):\n        ctx.by = by\n",
            ),
            (
                "    def backward(self, grad):\n        return grad * -self.by\n",
                "    @staticmethod\n"
                "    def backward(ctx, grad):\n        return grad * -ctx.by, None\n",
            ),
            ("Reversed(3.0)(x)", "Reversed.apply(x, 3.0)"),
        ),
        purpose="assert x.grad.tolist() == [-3.0, -3.0]",
    ),
]
VALUES = [
    Program(
        "A scale that is negative",
        "parameter of a distribution",
        """
        from torch.distributions import Normal

        raw = torch.tensor([0.5, -1.0], requires_grad=True)
        found = Normal(torch.zeros(2), raw, validate_args=True)  # raises
        """,
        "",
        "F.softplus(raw) + 1e-6",
        (("zeros(2), raw,", "zeros(2), F.softplus(raw) + 1e-6,"),),
        says=("of 2 elements, 1 below 0",),
        purpose="found.log_prob(torch.zeros(2)).sum().backward()\n"
        "assert raw.grad.isfinite().all() and (raw.grad != 0).all()",
    ),
    Program(
        "A draw by logits",
        "weights of a draw",
        """
        logits = torch.tensor([-40.0, 40.0, -40.0])
        drawn = torch.multinomial(logits, 1)  # raises
        """,
        "",
        "logits.softmax(-1)",
        (("(logits, 1)", "(logits.softmax(-1), 1)"),),
        says=("of 3 elements, 2 below 0",),
        purpose="assert drawn.item() == 1",
    ),
    Program(
        "A draw by weights that are all 0",
        "nothing to draw",
        """
        weights = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        drawn = torch.multinomial(weights, 1)  # raises
        """,
        "",
        "Leave such rows out",
        (("(weights, 1)", "(weights[weights.sum(1) > 0], 1)"),),
        purpose="assert drawn.tolist() == [[1]]",
    ),
    Program(
        "A covariance of fewer rows than columns",
        "not positive definite",
        """
        rows = torch.arange(1.0, 5.0)[:, None]
        covariance = rows @ rows.T
        root = torch.linalg.cholesky(covariance)  # raises
        """,
        "",
        "A + 1e-5 * torch.eye(A.shape[-1])",
        (("cholesky(covariance)", "cholesky(covariance + 1e-5 * torch.eye(4))"),),
        purpose="assert torch.allclose(root @ root.T, covariance, atol=1e-4)",
    ),
    Program(
        "A matrix that is not symmetric",
        "not positive definite",
        """
        matrix = torch.tensor([[1.0, 0.0], [4.0, 1.0]])
        matrix = matrix - 3 * torch.eye(2)
        root = torch.linalg.cholesky(matrix)  # raises
        """,
        "",
        "It is not symmetric.",
        (("matrix - 3 *", "(matrix + matrix.mT) / 2 + 3 *"),),
        purpose="assert torch.allclose(root @ root.T, matrix)",
    ),
    Program(
        "The action of each row, by gather",
        "dimensions of an index",
        """
        q = nn.Linear(4, 2)
        states, actions = torch.randn(6, 4), torch.randint(0, 2, (6,))
        chosen = q(states).gather(1, actions)  # raises
        """,
        "",
        "gather(1, actions.unsqueeze(1)).squeeze(1)",
        (("gather(1, actions)", "gather(1, actions.unsqueeze(1)).squeeze(1)"),),
        purpose="assert torch.equal(chosen, q(states)[torch.arange(6), actions])",
    ),
    Program(
        "A result of autocast written at an index",
        "dtypes of a written index",
        """
        out = torch.zeros(4, 8)
        at, fc = torch.tensor([0, 2]), nn.Linear(8, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out[at] = fc(torch.randn(2, 8))  # raises
        """,
        "",
        "out[at] = fc(torch.randn(2, 8)).to(out.dtype)",
        (("fc(torch.randn(2, 8))", "fc(torch.randn(2, 8)).to(out.dtype)"),),
        purpose="assert (out[at] != 0).any() and (out[[1, 3]] == 0).all()",
    ),
    Program(
        "A mask that is taken from 1",
        "minus of a mask",
        """
        mask = torch.tensor([True, False, True])
        scores = torch.zeros(3) + (1 - mask) * -1e9  # raises
        """,
        "",
        "Turn it round with ~: ~mask",
        (("(1 - mask)", "~mask"),),
        purpose="assert scores.tolist() == [0.0, -1e9, 0.0]",
    ),
    Program(
        "One letter too many",
        "letters of an einsum",
        """
        q, k = torch.randn(2, 5, 8), torch.randn(2, 7, 8)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)  # raises
        """,
        "",
        "q.unflatten(-1, (heads, -1))",
        (
            ('"bhqd,bhkd->bhqk"', '"bqhd,bkhd->bhqk"'),
            ("\nscores", "\nq, k = (one.unflatten(-1, (2, -1)) for one in (q, k))\nscores"),
        ),
        purpose="assert torch.allclose(scores.sum(1), q.flatten(2) @ k.flatten(2).mT, atol=1e-5)",
    ),
    Program(
        "A number too few for repeat",
        "dimensions of a repeat",
        """
        x = torch.randn(2, 3, 4)
        tiled = x.repeat(2, 2)  # raises
        """,
        "",
        "x.repeat(1, 2, 2)",
        (("repeat(2, 2)", "repeat(1, 2, 2)"),),
        purpose="assert torch.equal(tiled, torch.tile(x, (2, 2)))",
    ),
    Program(
        "A number among the losses",
        "no tensor in a list",
        """
        weight = torch.ones(2, requires_grad=True)
        losses = [weight.sum(), 0.5, (weight * 2).sum()]
        total = torch.stack(losses).sum()  # raises
        total.backward()
        """,
        "",
        "[torch.as_tensor(one) for one in losses]",
        (("stack(losses)", "stack([torch.as_tensor(one) for one in losses])"),),
        purpose="assert total.item() == 6.5 and weight.grad.tolist() == [3.0, 3.0]",
    ),
    Program(
        "A bound of max that is a number",
        "no such form",
        """
        x = torch.tensor([-1.0, 2.0])
        bounded = torch.max(x, 0.0)  # raises
        """,
        "",
        "x.clamp(min=0.0)",
        (("torch.max(x, 0.0)", "x.clamp(min=0.0)"),),
        purpose="assert bounded.tolist() == [0.0, 2.0]",
    ),
    Program(
        "Scores of a CTC loss with the batch first",
        "lengths of a ctc loss",
        """
        scores = torch.randn(4, 20, 10).log_softmax(2)
        targets = torch.randint(1, 10, (4, 6))
        given = torch.full((4,), 20), torch.full((4,), 6)
        loss = F.ctc_loss(scores, targets, *given)  # raises
        """,
        "",
        "Put time first: scores.transpose(0, 1).",
        (("ctc_loss(scores,", "ctc_loss(scores.transpose(0, 1),"),),
        purpose="assert loss.isfinite() and loss > 0",
    ),
    Program(
        "A file that holds more than tensors",
        "weights only",
        """
        import io
        from fractions import Fraction

        file, net = io.BytesIO(), nn.Linear(2, 1)
        torch.save({"net": net.state_dict(), "rate": Fraction(1, 10)}, file)
        file.seek(0)
        loaded = torch.load(file)  # raises
        """,
        "",
        "torch.serialization.safe_globals([Fraction])",
        (
            (
                "loaded = torch.load(file)",
                "with torch.serialization.safe_globals([Fraction]):\n    loaded = torch.load(file)",
            ),
        ),
        says=("torch.load(..., weights_only=False)", "names fractions.Fraction"),
        purpose="assert loaded['rate'] == Fraction(1, 10) and len(loaded['net']) == 2",
    ),
]
