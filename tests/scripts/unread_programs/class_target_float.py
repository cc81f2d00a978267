import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
data = np.concatenate([np.random.default_rng(0).normal(size=(20, 4)), (np.arange(20) % 3)[:, None]], axis=1)
features = torch.Tensor(data[:, :4])
target = torch.Tensor(data[:, 4])
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
output = model(features)
loss = criterion(output, target)
loss.backward()
