import torch
import torch.nn as nn

torch.manual_seed(0)


class cLinear(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, dtype=torch.complex64) * 0.3)

    def forward(self, x):
        return x @ self.weight.t()


model = nn.Sequential(cLinear(6, 8), cLinear(8, 4))
criterion = nn.CrossEntropyLoss()
signal = torch.fft.fft(torch.randn(5, 6))
label = torch.randint(0, 4, (5,))
output = model(signal)
loss = criterion(output, label)
loss.backward()
