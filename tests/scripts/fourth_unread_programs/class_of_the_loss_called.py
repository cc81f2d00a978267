import torch
import torch.nn as nn

torch.manual_seed(0)


class DDANet(nn.Module):
    def __init__(self):
        super().__init__()
        self.e1 = nn.Conv2d(3, 4, 3, padding=1)
        self.out = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        return self.out(torch.relu(self.e1(x)))


model = DDANet()
optimizer = torch.optim.Adam(model.parameters())
i, m = torch.rand(2, 3, 8, 8), torch.randint(0, 2, (2, 1, 8, 8)).float()
optimizer.zero_grad()
m_pred = model(i)
loss = nn.BCEWithLogitsLoss(m_pred, m)
loss.backward()
optimizer.step()
