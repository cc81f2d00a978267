import torch
import torch.nn as nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter((torch.rand(6, 5) > 0.7).float().to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.weight, x)


model = Net()
opt = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
before = model.weight.detach().clone()
x = torch.randn(5, 3)
loss = model(x).pow(2).sum()
loss.backward()
opt.step()
