import torch
import torch.nn as nn

torch.manual_seed(0)
dtype = torch.float64
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(dtype)
weights_to_be_quantized = [p for n, p in model.named_parameters() if 'weight' in n]
scaling_factors = [torch.ones(2, requires_grad=True).to(dtype) for _ in range(len(weights_to_be_quantized))]
optimizer_scaling = torch.optim.Adam(scaling_factors, lr=0.01)
