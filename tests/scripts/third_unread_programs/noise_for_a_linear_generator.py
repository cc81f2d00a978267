import torch
import torch.nn as nn

torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self, latent_dim=100, out_dim=36):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(latent_dim, 256), nn.LeakyReLU(0.2), nn.Linear(256, out_dim), nn.Tanh())

    def forward(self, z):
        img = self.model(z)
        return img.view(z.size(0), 1, 6, 6)


generator = Generator()
batch_size = 16
noise = torch.randn(batch_size, 100, 1, 1)
fake = generator(noise)
