import numpy as np
import torch
import torch.nn.functional as F


class STFT(torch.nn.Module):
    def __init__(self, filter_length=1024, hop_length=256):
        super().__init__()
        self.hop_length = hop_length
        fourier_basis = np.fft.fft(np.eye(filter_length))
        cutoff = filter_length // 2 + 1
        fourier_basis = np.vstack([np.real(fourier_basis[:cutoff]), np.imag(fourier_basis[:cutoff])])
        inverse_basis = torch.FloatTensor(np.linalg.pinv(fourier_basis).T[:, None, :])
        self.register_buffer('inverse_basis', inverse_basis.float())

    def inverse(self, magnitude, phase):
        recombine = torch.cat([magnitude * torch.cos(phase), magnitude * torch.sin(phase)], dim=1)
        return F.conv_transpose1d(recombine, self.inverse_basis, stride=self.hop_length, padding=0)


def griffin_lim(magnitudes, stft_fn):
    angles = torch.zeros_like(magnitudes)
    return stft_fn.inverse(magnitudes, angles)


signal = torch.sin(torch.arange(80.0)).repeat(2, 1)
spec = torch.stft(signal, 10, 4, window=torch.hann_window(10), return_complex=True).abs()
stft_fn = STFT(filter_length=16, hop_length=4)
wav = griffin_lim(spec, stft_fn)
