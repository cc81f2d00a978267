import torch
import torch.nn as nn

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.num_layers = len(dims) - 1
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x):
        for i in range(self.num_layers):
            x = torch.relu(self.layers[i](x))
        return x


model = MLP([4, 8, 8, 2])
scripted = torch.jit.script(model)
x = torch.randn(3, 4)
y = scripted(x)
