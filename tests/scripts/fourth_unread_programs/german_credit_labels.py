import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
np.random.seed(0)
data = np.random.rand(20, 5)
data[:, -1] = data[:, 0] > 0.5
train_data, train_lab = data[:, :4], data[:, 4:]


class LR(nn.Module):
    def __init__(self):
        super(LR, self).__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return torch.sigmoid(self.fc(x))


net = LR()
criterion = nn.CrossEntropyLoss()
optm = torch.optim.Adam(net.parameters(), lr=0.05)
losses = []
for i in range(5):
    net.train()
    x = torch.from_numpy(train_data).float()
    y = torch.from_numpy(train_lab).long()
    y_hat = net(x)
    loss = criterion(y_hat, y)
    optm.zero_grad()
    loss.backward()
    optm.step()
    losses.append(loss.item())
