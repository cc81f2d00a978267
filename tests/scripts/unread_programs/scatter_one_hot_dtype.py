import torch

labels = torch.tensor([2, 0, 1, 2])
one_hot = torch.zeros(4, 3)
one_hot.scatter_(1, labels.unsqueeze(1), torch.ones_like(labels).unsqueeze(1))
