import torch
from torch import nn

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self, inp_dim, out_dim):
        super().__init__()
        mod = [nn.Linear(inp_dim, out_dim), nn.ReLU(True), nn.Linear(out_dim, out_dim)]
        self.mod = nn.Sequential(*mod)

    def forward(self, x):
        return self.mod(x)


class CANet(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.image_embedder_attr = MLP(64, 32)

    def forward(self, img):
        x = self.pool(img)
        return self.image_embedder_attr(x)


net = CANet()
img = torch.randn(8, 64, 7, 7)
omega = net(img)
