import torch
import torch.nn as nn

torch.manual_seed(0)


class AudioUNet(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        n_filters, n_filtersizes = [4, 8, 8], [9, 5, 3]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        cin = 1
        for l, nf, fs in zip(range(layers), n_filters, n_filtersizes):
            self.down.append(nn.Conv1d(cin, nf, fs, stride=2, padding=fs / 2))
            cin = nf
        for nf in [8, 4, 1]:
            self.up.append(nn.ConvTranspose1d(cin, nf, 4, stride=2, padding=1))
            cin = nf

    def forward(self, x):
        inp = x
        for conv in self.down:
            x = torch.nn.functional.leaky_relu(conv(x), 0.2)
        for conv in self.up:
            x = conv(x)
        return x + inp


model = AudioUNet()
x = torch.randn(2, 1, 32)
y = model(x)
