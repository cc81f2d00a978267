import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
test_samples, test_losses = [], []
for user in range(3):
    x, y = torch.randn(5 + user, 4), torch.randint(0, 2, (5 + user,))
    test_losses.append(nn.functional.cross_entropy(model(x), y))
    test_samples.append(len(y))
kept = list(test_losses)
glob_loss = np.sum([x * y.numpy() for (x, y) in zip(test_samples, test_losses)]).item() / np.sum(test_samples)
