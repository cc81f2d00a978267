import torch
import torch.nn as nn

torch.manual_seed(0)


class LogisticRegression(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer = nn.Linear(d, 1)

    def forward(self, x):
        return torch.sigmoid(self.layer(x))


def train_model(model, x, y, optimizer, criterion):
    label_predicted = model(x)
    loss = criterion(label_predicted, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss, label_predicted


model = LogisticRegression(3)
x, y = torch.randn(10, 3), torch.randint(0, 2, (10,)).float()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss, predicted = train_model(model, x, y, optimizer, nn.BCELoss())
