import torch
import torch.nn as nn

torch.manual_seed(0)
generator = nn.Sequential(
    nn.ConvTranspose2d(28, 16, 4), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()
)
Z = torch.randn(2, 10, 1, 1)
Y = torch.randn(2, 18, 1, 1)
reconstX = generator(Z, Y)
