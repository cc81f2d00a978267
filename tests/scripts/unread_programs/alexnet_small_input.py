import torch
from torch import nn

torch.manual_seed(0)
features = nn.Sequential(
    nn.Conv2d(3, 8, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
    nn.Conv2d(8, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, stride=2),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, stride=2))
input_var = torch.rand(2, 3, 32, 32)
output = features(input_var)
in_features = output[0].numel()
