import torch
from torch import nn

torch.manual_seed(0)


class LiftLayer(nn.Module):
    def __init__(self, in_channels_0):
        super().__init__()
        self.att = nn.Linear(2 * in_channels_0, 1, bias=False)

    def forward(self, x_0, neighborhood_0_to_0):
        source, target = neighborhood_0_to_0.indices()
        return torch.tanh(self.att(torch.cat((x_0[source], x_0[target]), dim=1)))


x_0 = torch.randn(4, 3)
neighborhood_0_to_0 = torch.sparse_coo_tensor(torch.tensor([[0, 1, 0, 2], [1, 0, 1, 3]]), torch.ones(4), (4, 4))
lift = LiftLayer(3)
x_1 = lift(x_0, neighborhood_0_to_0)
