import torch
import torch.nn as nn

torch.manual_seed(0)


class Rotary(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.cos_cached = None

    def forward(self, x):
        if self.cos_cached is None or self.cos_cached.shape[0] < x.shape[1]:
            t = torch.arange(x.shape[1]).float()
            inv_freq = 1.0 / (100 ** (torch.arange(0, self.dim).float() / self.dim))
            self.cos_cached = torch.outer(t, inv_freq).cos()
        return x * self.cos_cached[: x.shape[1]]


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(6, 6)
        self.rotary = Rotary(6)

    def forward(self, x):
        return self.rotary(self.q_proj(x))


model = Llama()
x = torch.randn(2, 5, 6)


@torch.inference_mode()
def generate(x):
    return model(x)


pre_update = generate(x)
loss = model(x).pow(2).mean()
loss.backward()
