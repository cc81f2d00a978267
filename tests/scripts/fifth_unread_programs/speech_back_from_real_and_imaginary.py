import torch

torch.manual_seed(0)


def power_compress(x):
    real, imag = x[..., 0], x[..., 1]
    spec = torch.complex(real, imag)
    mag = spec.abs() ** 0.3
    phase = spec.angle()
    return torch.stack([mag * torch.cos(phase), mag * torch.sin(phase)], 1)


def power_uncompress(real, imag):
    spec = torch.complex(real, imag)
    mag = spec.abs() ** (1.0 / 0.3)
    phase = spec.angle()
    return torch.stack([mag * torch.cos(phase), mag * torch.sin(phase)], -1)


n_fft, hop = 16, 4
noisy = torch.randn(1, 64)
window = torch.hamming_window(n_fft)
noisy_spec = torch.view_as_real(torch.stft(noisy, n_fft, hop, window=window, onesided=True, return_complex=True))
noisy_spec = power_compress(noisy_spec).permute(0, 1, 3, 2)
est_real, est_imag = noisy_spec[:, :1], noisy_spec[:, 1:]
est_real, est_imag = est_real.permute(0, 1, 3, 2), est_imag.permute(0, 1, 3, 2)
est_spec_uncompress = power_uncompress(est_real, est_imag).squeeze(1)
est_audio = torch.istft(est_spec_uncompress, n_fft, hop, window=window, onesided=True)
