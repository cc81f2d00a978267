import torch
import torch.nn.functional as F
from torch import nn
import numpy as np

torch.manual_seed(0)


class mydataset(torch.utils.data.Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.X, self.Y = rng.normal(size=(10, 4)), rng.normal(size=(10, 1))

    def __getitem__(self, index):
        return torch.from_numpy(self.X[index]), torch.from_numpy(self.Y[index])

    def __len__(self):
        return len(self.X)


net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
for x, y in torch.utils.data.DataLoader(mydataset(), batch_size=5):
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
