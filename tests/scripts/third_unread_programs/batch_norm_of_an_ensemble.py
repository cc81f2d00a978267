import torch
import torch.nn as nn
from torch.func import functional_call, vmap

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
params = {k: torch.stack([v + 0.1 * torch.randn_like(v) for _ in range(5)]) for k, v in model.named_parameters()}
x = torch.randn(6, 3)


def sample_forward(p, x):
    return functional_call(model, p, (x,))


out = vmap(sample_forward, in_dims=(0, None))(params, x)
