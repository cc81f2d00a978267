import torch
import torch.nn as nn

torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self, nz=8):
        super().__init__()
        self.fc = nn.Linear(nz, 8 * 4 * 4)
        self.layers = nn.Sequential(
            self.block(8, 8, stride=2),
            nn.ReLU(),
            self.block(8, 4, stride=2),
            nn.ReLU(),
            self.block(4, 3, stride=1),
            nn.Tanh(),
        )

    def block(self, cin, cout, stride):
        return nn.ConvTranspose2d(cin, cout, 3, stride=stride, padding=1, output_padding=1)

    def forward(self, z):
        x = self.fc(z).view(-1, 8, 4, 4)
        return self.layers(x)


netG = Generator()
noise = torch.randn(2, 8)
img = netG(noise)
