import torch
import torch.nn as nn

torch.manual_seed(0)


def normalized_columns_initializer(weights, std=1.0):
    out = torch.randn(weights.size())
    out *= std / torch.sqrt(out.pow(2).sum(1).expand_as(out))
    return out


linear_policy_1 = nn.Linear(9, 6)
linear_policy_1.weight.data = normalized_columns_initializer(linear_policy_1.weight.data, 0.01)
linear_policy_1.bias.data.fill_(0)
