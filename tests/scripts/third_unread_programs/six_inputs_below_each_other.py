import torch
import torch.nn as nn

torch.manual_seed(0)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())

    def forward(self, x):
        return self.net(x)


class MultiInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.cnn = CNN()
        self.sec = nn.Sequential(nn.Linear(6 * 16, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, input1, input2, input3, input4, input5, input6):
        c1 = self.cnn(input1)
        c2 = self.cnn(input2)
        c3 = self.cnn(input3)
        c4 = self.cnn(input4)
        c5 = self.cnn(input5)
        c6 = self.cnn(input6)
        all = torch.cat((c1, c2, c3, c4, c5, c6), 0)
        return self.sec(all)


model = MultiInputs()
inputs = [torch.randn(5, 1, 20) for _ in range(6)]
out = model(*inputs)
