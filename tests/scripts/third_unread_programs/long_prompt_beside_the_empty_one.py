import torch

torch.manual_seed(0)


def encode(words, width=6):
    """Pieces of 77 tokens, one after the other."""
    chunks = max(1, -(-words // 75))
    return torch.randn(1, 77 * chunks, width)


def apply_model(x_in, cond_in):
    return x_in * cond_in.mean(dim=(1, 2))[:, None]


cond = encode(words=120)
uncond = encode(words=0)
x = torch.randn(1, 4)
x_in = torch.cat([x] * 2)
cond_in = torch.cat([uncond, cond])
eps = apply_model(x_in, cond_in)
