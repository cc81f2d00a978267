import torch

x = torch.zeros((3, 3, 3), dtype=torch.float32)
y = torch.tensor(5, dtype=torch.float64)
x[:, :, 1] = y
x[[0, 1, 2], :, 1] = y + 1
