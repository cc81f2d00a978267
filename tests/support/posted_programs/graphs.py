"""Posted: writes in place, backward, gradients, checkpoints, functions of one's own."""

from __future__ import annotations

from posted_programs.posted import Posted

GITHUB = "https://github.com/"

POSTED = [
    Posted(
        "a mask multiplied into each source of a loop",
        GITHUB + "facebookresearch/svoice/issues/53",
        "one of several views",
        """
        x, w = torch.randn(2, 4), torch.randn(4, 4, requires_grad=True)
        sources, mask = torch.randn(2, 4), torch.tensor([1.0, 1.0, 1.0, 0.0])

        def loss_of(source, estimate):
            estimate *= mask
            return (source - estimate).square().mean()

        pairs = zip(sources, x @ w)
        loss = sum(loss_of(source, estimate) for source, estimate in pairs)
        loss.backward()
        """,
        r"one of several views",
        r"^Compute a new tensor.*: estimate = estimate \* mask",
        (("estimate *= mask", "estimate = estimate * mask"),),
        "v = w.detach().double().requires_grad_()\n"
        "by_hand = (sources.double() - x.double() @ v * mask).square().mean(1).sum()\n"
        "by_hand.backward()\nassert torch.allclose(w.grad.double(), v.grad, atol=1e-5)",
    ),
    Posted(
        "a picture denormalised channel by channel",
        GITHUB + "MisaOgura/flashtorch/issues/42",
        "one of several views",
        """
        means, stds = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

        def denormalize(tensor):
            denormalized = tensor.clone()
            for channel, mean, std in zip(denormalized[0], means, stds):
                channel.mul_(std).add_(mean)
            return denormalized

        picture = torch.rand(1, 3, 4, 4, requires_grad=True)
        shown = denormalize(picture)
        """,
        r"one of several views",
        r"denormalized\[0\]\[i\]|denormalized\[0, i\]",
        (
            (
                "for channel, mean, std in zip(denormalized[0], means, stds)",
                "for i, (mean, std) in enumerate(zip(means, stds))",
            ),
            ("channel.mul_", "denormalized[0][i].mul_"),
        ),
        "m, s = (torch.tensor(one)[:, None, None] for one in (means, stds))\n"
        "assert torch.allclose(shown, picture * s + m)",
    ),
    Posted(
        "states squeezed in place, each of unbind",
        GITHUB + "alibaba/TinyNeuralNetwork/issues/238",
        "one of several views",
        """
        gru = nn.GRU(3, 5, num_layers=2)
        start = torch.zeros(2, 1, 4, 5, requires_grad=True)
        hx = start.unbind(0)
        hx = [hx[at].squeeze_(0) for at in range(2)]
        out, _ = gru(torch.randn(6, 4, 3), torch.stack(hx))
        """,
        r"one of several views",
        r"hx\[at\]\.squeeze\(0\)",
        ((".squeeze_(0)", ".squeeze(0)"),),
        "out.sum().backward()\nassert start.grad.shape == start.shape and (start.grad != 0).any()",
    ),
    Posted(
        "a token forbidden in each row of logits",
        GITHUB + "microsoft/DialoGPT/issues/57",
        "one of several views",
        """
        net, unknown = nn.Linear(4, 6), 2
        logits = net(torch.randn(3, 4))
        for row in logits:
            row[unknown] = -float("inf")
        drawn = logits.softmax(-1)
        """,
        r"one of several views",
        r"logits\[i\]",
        (
            ("for row in logits:", "for i in range(len(logits)):"),
            ("    row[unknown] =", "    logits[i][unknown] ="),
        ),
        "assert (drawn[:, 2] == 0).all() and torch.allclose(drawn.sum(1), torch.ones(3))",
    ),
    Posted(
        "kernels brought to 0 to 1 for a picture of them",
        GITHUB + "pytorch/pytorch/issues/48149",
        "one of several views",
        """
        conv = nn.Conv2d(3, 4, 3)
        before = conv.weight.detach().clone()

        def norm(kernel, low, high):
            kernel.clamp_(min=low, max=high)
            kernel.sub_(low).div_(high - low)

        shown = conv.weight
        for kernel in shown:
            norm(kernel, float(kernel.min()), float(kernel.max()))
        """,
        r"one of several views.*parameter weight",
        r"shown = shown\.detach\(\)\.clone\(\)",
        (("shown = conv.weight\n", "shown = conv.weight.detach().clone()\n"),),
        "assert torch.equal(conv.weight, before)\n"
        "assert shown.amin() == 0 and torch.allclose(shown.flatten(1).amax(1), torch.ones(4))",
    ),
    Posted(
        "both losses of a GAN, then both steps",
        GITHUB + "pytorch/pytorch/issues/39141",
        "overwritten",
        """
        G, D = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        opt_D, opt_G = (torch.optim.SGD(one.parameters(), 0.1) for one in (D, G))
        first = copy.deepcopy(D)
        real, noise = torch.randn(8, 3), torch.randn(8, 2)
        fake = G(noise)
        D_loss = F.softplus(-D(real)).mean() + F.softplus(D(fake)).mean()
        G_loss = F.softplus(-D(fake)).mean()
        opt_D.zero_grad()
        D_loss.backward(retain_graph=True)
        opt_D.step()
        opt_G.zero_grad()
        G_loss.backward()
        opt_G.step()
        """,
        r"(parameter|D\.2\.weight).*changed between the forward and this backward",
        r"(Run|Compute).*(again|behind|after).*opt_D\.step\(\)",
        (
            ("G_loss = F.softplus(-D(fake)).mean()\n", ""),
            ("opt_G.zero_grad()\n", "G_loss = F.softplus(-D(fake)).mean()\nopt_G.zero_grad()\n"),
        ),
        "at = copy.deepcopy(first)\n"
        "loss = F.softplus(-at(real)).mean() + F.softplus(at(fake.detach()))"
        ".mean()\nfor p, g, q in zip(at.parameters(), torch.autograd.grad(loss, at.parameters()), "
        "D.parameters()):\n    assert torch.allclose(p - 0.1 * g, q, atol=1e-5)\n"
        "assert all((p.grad != 0).any() for p in G.parameters())",
    ),
    Posted(
        "the score of the discriminator, read before its step",
        GITHUB + "leftthomas/SRGAN/issues/79",
        "overwritten",
        """
        netG, netD = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        optimizerD = torch.optim.Adam(netD.parameters())
        optimizerG = torch.optim.Adam(netG.parameters())
        z, real = torch.randn(5, 2), torch.randn(5, 3)
        fake = netG(z)
        fake_out = netD(fake).mean()
        d_loss = 1 - netD(real).mean() + fake_out
        optimizerD.zero_grad()
        d_loss.backward(retain_graph=True)
        kept = [p.grad.clone() for p in netD.parameters()]
        optimizerD.step()
        optimizerG.zero_grad()
        g_loss = 1 - fake_out + F.mse_loss(fake, real)
        g_loss.backward()
        used = [p.grad.clone() for p in netG.parameters()]
        optimizerG.step()
        """,
        r"changed between the forward and this backward",
        r"(Run|Compute).*(again|behind|after).*optimizerD\.step\(\)",
        (("g_loss = 1 - fake_out", "g_loss = 1 - netD(fake).mean()"),),
        "assert all((one != 0).any() for one in used)",
    ),
    Posted(
        "a loss summed by numpy",
        GITHUB + "swz30/MPRNet/issues/108",
        "number without backward",
        """
        import numpy as np

        net = nn.Linear(3, 3)
        x = torch.randn(2, 3)
        restored = [net(x), net(net(x))]
        loss = np.sum([(one - x).abs().mean().item() for one in restored])
        loss.backward()
        """,
        r"loss is a float64|loss is a number|numpy",
        r"Take the \.item\(\) away: \(one - x\)\.abs\(\)\.mean\(\).*sum",
        (
            (
                "np.sum([(one - x).abs().mean().item() for one in restored])",
                "sum([(one - x).abs().mean() for one in restored])",
            ),
        ),
        "assert (net.weight.grad != 0).any()",
    ),
    Posted(
        "a batch without boxes gives the loss 0",
        GITHUB + "ghimiredhikura/Complex-YOLOv3/issues/8",
        "number without backward",
        """
        net = nn.Linear(3, 4)

        def loss_of(boxes, targets):
            loss = 0
            for target in targets:
                loss = loss + (boxes - target).abs().mean()
            return loss

        for targets in ([torch.ones(4)], []):
            loss = loss_of(net(torch.randn(2, 3)), targets)
            loss.backward()
        """,
        r"loss is (the number 0|0, a number|an int).*",
        r"if isinstance\(loss, torch\.Tensor\)",
        (
            (
                "    loss.backward()",
                "    if isinstance(loss, torch.Tensor):\n        loss.backward()",
            ),
        ),
        "assert (net.weight.grad != 0).any()",
    ),
    Posted(
        "a risk turned into a number before backward",
        GITHUB + "v-mipeng/LexiconNER/issues/7",
        "number without backward",
        """
        net, prior = nn.Linear(3, 1), 0.3
        x, y = torch.randn(8, 3), torch.tensor([1, 0] * 4)

        def risks(scores):
            positive = F.softplus(-scores[y == 1]).mean()
            negative = F.softplus(scores[y == 0]).mean()
            risk = prior * positive + negative
            return positive.item(), negative.item(), risk.item()

        positive, negative, risk = risks(net(x))
        (risk).backward()
        """,
        r"risk.*number \(float\)",
        r"Take the \.item\(\) away: risk",
        (("risk.item()", "risk"),),
        "v = net.weight.detach().double().requires_grad_()\nb = net.bias.detach().double()\n"
        "s = x.double() @ v.T + b\n(prior * F.softplus(-s[y == 1]).mean() + "
        "F.softplus(s[y == 0]).mean()).backward()\n"
        "assert torch.allclose(net.weight.grad.double(), v.grad, atol=1e-5)",
    ),
    Posted(
        "the values of a loss taken in the wrong order",
        GITHUB + "bnu-wangxun/Deep_Metric/issues/26",
        "number without backward",
        """
        net = nn.Linear(3, 2)
        x = torch.randn(4, 3)

        def criterion(found):
            loss = found.square().mean()
            return 0.7, float(found.detach().mean()), loss

        loss, similarity, precision = criterion(net(x))
        loss.backward()
        """,
        r"loss.*number \(float\)",
        r"precision\.backward",
        (("loss.backward()", "precision.backward()"),),
        "assert (net.weight.grad != 0).any()",
    ),
    Posted(
        "a loss made where it was to be called",
        GITHUB + "CoinCheung/pytorch-loss/issues/12",
        "no such attribute",
        """
        class FocalLossV1(nn.Module):
            def __init__(self, alpha=0.25, gamma=2):
                super().__init__()
                self.alpha, self.gamma = alpha, gamma

            def forward(self, logits, label):
                return F.binary_cross_entropy_with_logits(logits, label)

        net = nn.Linear(3, 1)
        outputs, targets = net(torch.randn(4, 3)), torch.ones(4, 1)
        loss = FocalLossV1(outputs, targets)
        loss.backward()
        """,
        r"loss is a FocalLossV1|FocalLossV1.*(module|was made)",
        r"FocalLossV1\(\)\(outputs, targets\)",
        (("FocalLossV1(outputs, targets)", "FocalLossV1()(outputs, targets)"),),
        "assert (net.weight.grad != 0).any()",
    ),
    Posted(
        "a checkpoint whose input needs no gradient",
        GITHUB + "pytorch/pytorch/issues/7617",
        "no graph",
        """
        from torch.utils.checkpoint import checkpoint

        layer = nn.Linear(4, 3)
        x = torch.randn(10, 4)
        loss = checkpoint(lambda one: layer(one), x, use_reentrant=True).square().sum()
        loss.backward()
        """,
        r"checkpoint",
        r"use_reentrant=False",
        (("use_reentrant=True", "use_reentrant=False"),),
        "v = layer.weight.detach().clone().requires_grad_()\n"
        "F.linear(x, v, layer.bias).square().sum().backward()\n"
        "assert torch.allclose(layer.weight.grad, v.grad)",
    ),
    Posted(
        "a cache that grows inside of a checkpoint",
        GITHUB + "pytorch/pytorch/issues/155171",
        "checkpoint",
        """
        from torch.utils.checkpoint import checkpoint

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.k, self.cache = nn.Linear(4, 4), []

            def forward(self, x):
                self.cache.append(self.k(x))
                keys = torch.cat(self.cache)
                return (x @ keys.T).softmax(-1) @ keys

        block, x = Block(), torch.randn(3, 4, requires_grad=True)
        checkpoint(block, x, use_reentrant=False).sum().backward()
        """,
        r"when backward ran it again|checkpointed",
        r"[Cc]ache",
        (
            ("self.cache.append(self.k(x))\n", "cache = [self.k(x)]\n"),
            ("torch.cat(self.cache)", "torch.cat(cache)"),
        ),
        "assert (block.k.weight.grad != 0).any()",
    ),
    Posted(
        "one layer through two reentrant checkpoints, in DDP",
        GITHUB + "microsoft/FocalNet/issues/4",
        "ready twice",
        """
        import tempfile
        import torch.distributed as dist
        from torch.utils.checkpoint import checkpoint

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.fc = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, x):
                x = self.first(x)
                for _ in range(2):
                    x = checkpoint(self.fc, x, use_reentrant=True)
                return x

        store = dist.FileStore(tempfile.mktemp(), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            net = nn.parallel.DistributedDataParallel(Net())
            net(torch.randn(2, 4)).sum().backward()
        finally:
            dist.destroy_process_group()
        """,
        r"fc\.(weight|bias)",
        r"use_reentrant=False",
        (("use_reentrant=True", "use_reentrant=False"),),
        "assert (net.module.fc.weight.grad != 0).any()",
    ),
    Posted(
        "a stride saved for backward",
        GITHUB + "pytorch/pytorch/issues/31869",
        "saved no tensor",
        """
        class Skip(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, stride):
                ctx.save_for_backward(x, stride)
                return x[::stride].clone()

            @staticmethod
            def backward(ctx, grad):
                x, stride = ctx.saved_tensors
                found = torch.zeros_like(x)
                found[::stride] = grad
                return found, None

        x = torch.randn(6, requires_grad=True)
        Skip.apply(x, 2).sum().backward()
        """,
        r"save_for_backward.*stride.*int|stride.*save_for_backward",
        r"ctx\.stride = stride",
        (
            (
                "ctx.save_for_backward(x, stride)",
                "ctx.stride = stride\n        ctx.save_for_backward(x)",
            ),
            (
                "x, stride = ctx.saved_tensors",
                "(x,) = ctx.saved_tensors\n        stride = ctx.stride",
            ),
        ),
        "assert x.grad.tolist() == [1, 0, 1, 0, 1, 0]",
    ),
    Posted(
        "a tensor of zeros written into inside of vmap",
        GITHUB + "pytorch/pytorch/issues/103329",
        "write into what is not batched",
        """
        def func(x, y):
            mat = torch.zeros(x.shape)
            mat[0, 0] = mat[0, 1] + x[0, 0]
            return mat

        x, y = torch.ones(10, 5, 6), torch.ones(10, 5, 6)
        found = torch.vmap(func)(x, y)
        """,
        r"mat.*(not|no).*vmap|vmap.*mat",
        r"(x\.new_zeros\(x\.shape\)|torch\.zeros_like\(x\))",
        (("torch.zeros(x.shape)", "x.new_zeros(x.shape)"),),
        "assert found.shape == (10, 5, 6) and (found[:, 0, 0] == 1).all() and found.sum() == 10",
    ),
    Posted(
        "a copy into an empty tensor inside of vmap",
        GITHUB + "pytorch/functorch/issues/105",
        "write into what is not batched",
        """
        def f(y):
            x = torch.empty(5)
            x.copy_(y)
            return x

        given = torch.randn(3, 5)
        found = torch.vmap(f)(given)
        """,
        r"x.*vmap|vmap.*\bx\b",
        r"y\.new_empty\(5\)|torch\.empty_like\(y\)",
        (("torch.empty(5)", "y.new_empty(5)"),),
        "assert torch.equal(found, given)",
    ),
    Posted(
        "an error filled in, part by part, inside of vmap",
        GITHUB + "facebookresearch/theseus/issues/650",
        "write into what is not batched",
        """
        def error_of(maps):
            error = torch.zeros(1, 6)
            for i in range(2):
                error[:, 3 * i : 3 * i + 3] = maps[i] - maps[1 - i]
            return error

        maps = torch.randn(4, 2, 3)
        found = torch.vmap(error_of)(maps)
        """,
        r"error.*vmap|vmap.*error",
        r"maps\.new_zeros\(1, 6\)",
        (("torch.zeros(1, 6)", "maps.new_zeros(1, 6)"),),
        "assert torch.allclose(found[:, 0, :3], maps[:, 0] - maps[:, 1])\n"
        "assert torch.allclose(found[:, 0, 3:], maps[:, 1] - maps[:, 0])",
    ),
]
