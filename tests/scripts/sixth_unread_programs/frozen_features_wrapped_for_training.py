import os
import socket
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(0)
with socket.socket() as s:
    s.bind(('127.0.0.1', 0))
    port = s.getsockname()[1]
os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'] = '127.0.0.1', str(port)
dist.init_process_group('gloo', rank=0, world_size=1)


class VGGFeatures(nn.Module):
    """Fixed features for the perceptual loss."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        for param in self.parameters():
            param.requires_grad = False

    def forward(self, x):
        return self.features(x)


try:
    generator = DDP(nn.Conv2d(3, 3, 3, padding=1))
    vgg = DDP(VGGFeatures())
    x, y = torch.rand(2, 3, 8, 8), torch.rand(2, 3, 8, 8)
    loss = nn.functional.l1_loss(vgg(generator(x)), vgg(y))
    loss.backward()
    loss_again = nn.functional.l1_loss(vgg(generator(x)), vgg(y))
finally:
    dist.destroy_process_group()
