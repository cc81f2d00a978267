import torch
import torch.nn as nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(5, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.backbone(x)))


model = Net()
start = {n: p.detach().clone() for n, p in model.named_parameters()}
optimizer = torch.optim.SGD(
    [{"params": model.parameters()}, {"params": model.fc.parameters(), "lr": 0.1}], lr=0.01
)
model(torch.randn(6, 5)).pow(2).mean().backward()
optimizer.step()
