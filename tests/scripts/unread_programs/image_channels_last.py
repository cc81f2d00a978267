import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(0)
picture = rng.integers(0, 256, (1, 24, 24, 3)).astype("float32") / 255   # as PIL and OpenCV give it
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
image = torch.from_numpy(picture)
mask = torch.sigmoid(net(image))
