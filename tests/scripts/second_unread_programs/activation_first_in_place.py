import torch
from torch import nn

torch.manual_seed(0)


class ActFirstResBlock(nn.Module):
    def __init__(self, fin, fout):
        super().__init__()
        self.activation = nn.LeakyReLU(0.2, inplace=True)
        self.conv_0 = nn.Conv2d(fin, fout, 3, padding=1)
        self.conv_1 = nn.Conv2d(fout, fout, 3, padding=1)
        self.conv_s = nn.Conv2d(fin, fout, 1, bias=False)

    def forward(self, x):
        x_s = self.conv_s(x)
        dx = self.conv_0(self.activation(x))
        dx = self.conv_1(self.activation(dx))
        return x_s + dx


block = nn.Sequential(nn.ConstantPad2d(1, 0.0), nn.Conv2d(3, 4, 3), ActFirstResBlock(4, 8))
images = torch.randn(2, 3, 8, 8)
out = block(images)
loss = out.pow(2).mean()
loss.backward()
