import torch
import torch.nn as nn

torch.manual_seed(0)


class EncoderBig(nn.Module):
    def __init__(self, z_dim, hidden_dim):
        super(EncoderBig, self).__init__()
        self.conv3 = nn.Conv2d(1, 8, (1, 4), (1, 2), (0, 1))
        self.bn3 = nn.BatchNorm2d(8)
        self.conv4 = nn.Conv2d(8, 8, (1, 1), (1, 1), (0, 0))
        self.bn4 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 5, hidden_dim)
        self.bn4 = nn.BatchNorm1d(hidden_dim)
        self.mu_layer = nn.Linear(hidden_dim, z_dim)
        self.lrelu = nn.LeakyReLU()

    def forward(self, x):
        x = self.lrelu(self.bn3(self.conv3(x)))
        x = self.lrelu(self.bn4(self.conv4(x)))
        x = x.view(x.size(0), -1)
        x = self.lrelu(self.bn4(self.fc(x)))
        return self.mu_layer(x)


encoder = EncoderBig(3, 8)
mu = encoder(torch.randn(4, 1, 1, 10))
