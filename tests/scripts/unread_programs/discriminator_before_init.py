import torch
from torch import nn


class GAE(nn.Module):
    def __init__(self, encoder, decoder=None):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder


class ARGA(GAE):
    def __init__(self, encoder, discriminator, decoder=None):
        self.discriminator = discriminator
        super().__init__(encoder, decoder)
        for p in self.discriminator.parameters():
            nn.init.zeros_(p)


model = ARGA(nn.Linear(3, 2), nn.Linear(2, 1))
names = [name for name, _ in model.named_parameters()]
