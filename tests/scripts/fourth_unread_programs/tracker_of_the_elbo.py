from collections import defaultdict

import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
tensor = torch.Tensor
tracker = defaultdict(tensor)
for iteration in range(3):
    batch = torch.randn(6, 4)
    loss = (model(batch) - batch).pow(2).sum() / 6
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    tracker['ELBO'] = torch.cat((tracker['ELBO'], loss.data))
