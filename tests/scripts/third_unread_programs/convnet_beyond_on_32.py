from collections import OrderedDict

import torch

torch.manual_seed(0)
channels, classes = 3, 5
model = torch.nn.Sequential(
    OrderedDict(
        [
            ("conv1", torch.nn.Conv2d(channels, 8, 3, stride=2, padding=1)),
            ("relu0", torch.nn.LeakyReLU()),
            ("conv2", torch.nn.Conv2d(8, 8, 3, stride=1, padding=1)),
            ("relu1", torch.nn.LeakyReLU()),
            ("conv3", torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)),
            ("relu2", torch.nn.LeakyReLU()),
            ("flatt", torch.nn.Flatten()),
            ("linear0", torch.nn.Linear(784, 32)),
            ("relu3", torch.nn.LeakyReLU()),
            ("linear1", torch.nn.Linear(32, classes)),
        ]
    )
)
out = model(torch.randn(1, channels, 32, 32))
