import torch
import torch.nn as nn

torch.manual_seed(0)


class CenterLoss(nn.Module):
    def __init__(self, classes, feature_dims, use_double=True):
        super(CenterLoss, self).__init__()
        self.classes = classes
        if use_double:
            centers = nn.Parameter(torch.randn(classes, feature_dims)).double()
        else:
            centers = nn.Parameter(torch.randn(classes, feature_dims))
        self.centers = centers

    def forward(self, x, labels):
        return (x - self.centers[labels]).pow(2).sum(1).mean()


centerLoss = CenterLoss(classes=4, feature_dims=6)
before = centerLoss.centers.detach().clone()
optimizer_centerloss = torch.optim.SGD(list(centerLoss.parameters()), lr=0.5)
loss = centerLoss(torch.randn(10, 6).double(), torch.randint(0, 4, (10,)))
loss.backward()
optimizer_centerloss.step()
