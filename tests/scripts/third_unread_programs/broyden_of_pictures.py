import torch
import torch.nn as nn

torch.manual_seed(0)


def broyden(f, x0, threshold=3):
    x_est = x0
    gx = f(x_est) - x_est
    for _ in range(threshold):
        x_est = x_est + gx
        delta_gx = f(x_est) - x_est - gx
        vT = -gx
        u = vT / torch.einsum("bij, bij -> b", vT, delta_gx)[:, None, None].abs().clamp(min=1.0)
        gx = gx + delta_gx + 0 * u
    return {"result": x_est}


class ResNetLayer(nn.Module):
    def __init__(self, n_channels=3):
        super().__init__()
        self.conv = nn.Conv2d(n_channels, n_channels, 3, padding=1)

    def forward(self, z):
        return 0.1 * torch.tanh(self.conv(z))


bsz, C, H, W = 4, 3, 6, 6
layer = ResNetLayer()
f = lambda z: layer(z)
zz = broyden(f, torch.zeros(bsz, C, H, W))["result"]
