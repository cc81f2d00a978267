import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class PopArt(nn.Module):
    def __init__(self, input_shape, output_shape, beta=0.9):
        super(PopArt, self).__init__()
        self.beta = beta
        self.weight = nn.Parameter(torch.randn(output_shape, input_shape))
        self.bias = nn.Parameter(torch.zeros(output_shape))
        self.stddev = nn.Parameter(torch.ones(output_shape), requires_grad=False)
        self.mean = nn.Parameter(torch.zeros(output_shape), requires_grad=False)
        self.mean_sq = nn.Parameter(torch.zeros(output_shape), requires_grad=False)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)

    @torch.no_grad()
    def update(self, vector):
        self.mean.mul_(self.beta).add_(vector.mean(0) * (1.0 - self.beta))
        self.mean_sq.mul_(self.beta).add_(vector.pow(2).mean(0) * (1.0 - self.beta))
        self.stddev = (self.mean_sq - self.mean ** 2).sqrt().clamp(min=1e-4)


value_head = PopArt(4, 1)
returns = torch.randn(32, 1) * 3 + 1
value_head.update(returns)
values = value_head(torch.randn(5, 4))
