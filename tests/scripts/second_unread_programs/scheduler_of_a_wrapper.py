import torch
from torch import nn

torch.manual_seed(0)


class LARC(object):
    def __init__(self, optimizer, trust_coefficient=0.02):
        self.optim = optimizer
        self.trust_coefficient = trust_coefficient

    def __getattr__(self, name):
        return getattr(self.__dict__["optim"], name)

    def step(self):
        self.optim.step()


model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = LARC(optimizer=optimizer, trust_coefficient=0.001)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
    scheduler.step()
