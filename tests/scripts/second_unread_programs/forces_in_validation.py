import torch
from torch import nn

torch.manual_seed(0)


class TorchMD(nn.Module):
    def __init__(self):
        super().__init__()
        self.representation = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, pos):
        pos.requires_grad_(True)
        y = self.representation(pos).sum()
        neg_dy = -torch.autograd.grad([y], [pos], create_graph=self.training)[0]
        return y, neg_dy


model = TorchMD()
pos = torch.randn(5, 3)
model.eval()
with torch.no_grad():                      # validation step
    energy, forces = model(pos)
