import torch
from torch import nn

torch.manual_seed(0)


class BiSeNet(nn.Module):
    def __init__(self, n_classes=3):
        super().__init__()
        self.conv = nn.Conv2d(3, n_classes, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


net = BiSeNet()
net = nn.parallel.DistributedDataParallel(net)
net.eval()
image = torch.randn(1, 3, 8, 8)
logits = net(image)
