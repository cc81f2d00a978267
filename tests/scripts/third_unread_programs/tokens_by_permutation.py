import torch

torch.manual_seed(0)
x = torch.randn(2, 10, 6)
indices = torch.stack([torch.randperm(10), torch.randperm(10)])
result = torch.gather(x, dim=1, index=indices)
