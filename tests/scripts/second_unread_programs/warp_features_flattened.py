import torch
from torch import nn

torch.manual_seed(0)


class FeatureRegression(nn.Module):
    def __init__(self, input_nc=6, output_dim=8):
        super(FeatureRegression, self).__init__()
        self.conv = nn.Sequential(nn.Conv2d(input_nc, 4, kernel_size=3, padding=1), nn.ReLU())
        self.linear = nn.Linear(4 * 4 * 3, output_dim)

    def forward(self, x):
        x = self.conv(x)
        x = x.view(x.size(0), -1)
        x = self.linear(x)
        return torch.tanh(x)


regression = FeatureRegression().to(memory_format=torch.channels_last)
correlation = torch.randn(2, 6, 4, 3).to(memory_format=torch.channels_last)
theta = regression(correlation)
