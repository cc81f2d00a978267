import torch
import torch.nn as nn

torch.manual_seed(0)


def load_audio(name):
    frames = {'7913-3-3-0.wav': 6, '100032-3-0-0.wav': 40}[name]
    return torch.randn(1, 1, frames, 32)


class AudioCRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv2d(1, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU())
        self.dense = nn.Linear(16, 10)

    def forward(self, x):
        x = self.convs(x)
        return self.dense(x.mean((2, 3)))


net = AudioCRNN()
out = net(load_audio('100032-3-0-0.wav'))
audio = load_audio('7913-3-3-0.wav')
out = net(audio)
