import numpy as np
import torch

images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 1, 28, 28), dtype="uint8"))
net = torch.nn.Sequential(torch.nn.Conv2d(1, 10, 5), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(5760, 10))
out = net(images)
