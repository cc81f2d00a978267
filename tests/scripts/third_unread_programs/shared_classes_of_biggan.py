import tempfile

import torch
import torch.nn as nn

torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self, n_classes, shared_dim=6):
        super().__init__()
        self.shared = nn.Embedding(n_classes, shared_dim)
        self.linear = nn.Linear(4 + shared_dim, 12)

    def forward(self, z, y):
        return self.linear(torch.cat([z, self.shared(y)], 1))


path = tempfile.mktemp(suffix=".pth")
imagenet = Generator(10)
torch.save(imagenet.state_dict(), path)

G = Generator(n_classes=2)
G.load_state_dict(torch.load(path))
out = G(torch.randn(3, 4), torch.tensor([0, 1, 1]))
