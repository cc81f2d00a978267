import torch
import torch.nn as nn

torch.manual_seed(0)
shared = nn.Linear(4, 6)
heads = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
weights = nn.Parameter(torch.ones(2))
x, y = torch.randn(8, 4), torch.randn(8, 2)
features = torch.relu(shared(x))
L1 = weights[0] * (heads[0](features)[:, 0] - y[:, 0]).pow(2).mean()
L2 = weights[1] * (heads[1](features)[:, 0] - y[:, 1]).pow(2).mean()
param = list(shared.parameters())
G1R = torch.autograd.grad(L1, param[0].clone(), retain_graph=True, create_graph=True)
G2R = torch.autograd.grad(L2, param[0].clone(), retain_graph=True, create_graph=True)
G1, G2 = torch.norm(G1R[0], 2), torch.norm(G2R[0], 2)
Lgrad = (G1 - G2).abs()
Lgrad.backward()
