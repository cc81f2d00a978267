import torch
import torch.nn as nn
from torch.optim import lr_scheduler

torch.manual_seed(0)


def get_scheduler(optimizer, lr_policy):
    if lr_policy == "step":
        return lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    elif lr_policy == "plateau":
        return lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.2, threshold=0.01, patience=1)


class BaseModel:
    def __init__(self):
        self.netG = nn.Linear(3, 3)
        self.optimizers = [torch.optim.Adam(self.netG.parameters(), lr=0.01)]
        self.schedulers = [get_scheduler(o, "plateau") for o in self.optimizers]

    def optimize_parameters(self, x):
        self.loss_G = (self.netG(x) - x).pow(2).mean()
        self.optimizers[0].zero_grad()
        self.loss_G.backward()
        self.optimizers[0].step()

    def update_learning_rate(self):
        for scheduler in self.schedulers:
            scheduler.step()
        self.lr = self.optimizers[0].param_groups[0]["lr"]


model = BaseModel()
x = torch.zeros(4, 3)
for epoch in range(6):
    model.optimize_parameters(x)
    model.update_learning_rate()
