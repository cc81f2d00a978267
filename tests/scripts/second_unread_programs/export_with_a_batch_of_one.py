import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        bsz = x.shape[0]
        y = x.view(bsz, -1)
        if bsz == 3:
            y = y * 1.0
        return self.fc(y)


batch = torch.export.Dim("batch", max=128)
model = Net()
exported = torch.export.export(model, (torch.randn(3, 2, 4),), dynamic_shapes={"x": {0: batch}})
out = exported.module()(torch.randn(5, 2, 4))
