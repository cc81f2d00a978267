import torch
import torch.nn as nn


class MyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [
            nn.Linear(6, 4),
            nn.Linear(4, 3),
        ]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


torch.manual_seed(0)
model = MyModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = [layer.weight.detach().clone() for layer in model.layers]
loss = model(torch.randn(5, 6)).pow(2).mean()
loss.backward()
optimizer.step()
