import torch
import torch.nn as nn

torch.manual_seed(0)


def power_compress(x):
    real, imag = x[..., 0], x[..., 1]
    spec = torch.complex(real, imag)
    mag, phase = spec.abs() ** 0.3, spec.angle()
    return torch.stack([mag, mag * torch.cos(phase), mag * torch.sin(phase)], 1)


class Trainer:
    def __init__(self, n_fft=16, hop=4):
        self.n_fft, self.hop = n_fft, hop
        self.model = nn.Conv2d(3, 3, 1)

    def forward_step(self, noisy):
        c = torch.sqrt(noisy.size(-1) / torch.sum(noisy ** 2.0, dim=-1))
        noisy = (noisy.T * c).T
        window = torch.hamming_window(self.n_fft)
        noisy_spec = torch.stft(noisy, self.n_fft, self.hop, window=window, onesided=True)
        noisy_spec = power_compress(noisy_spec)
        return self.model(noisy_spec)


trainer = Trainer()
spec = trainer.forward_step(torch.randn(2, 64))
