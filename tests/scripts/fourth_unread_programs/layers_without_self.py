import torch
import torch.nn as nn

torch.manual_seed(0)


class Autoencoder(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size):
        super(Autoencoder, self).__init__()
        self_layer_e_1 = nn.Conv1d(in_channels, out_channels, kernel_size)
        self_layer_d_1 = nn.ConvTranspose1d(out_channels, in_channels, kernel_size)

    def forward(self, x):
        x = self_layer_e_1(x)
        return self_layer_d_1(torch.relu(x))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(params=list(self.parameters()), lr=0.01)
        return optimizer


model = Autoencoder(1, 4, 3)
optimizer = model.configure_optimizers()
out = model(torch.randn(2, 1, 8)) if hasattr(model, "layer_e_1") else None
