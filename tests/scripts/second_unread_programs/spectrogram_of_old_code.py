import torch
import torch.nn.functional as F

torch.manual_seed(0)


def mel_spectrogram(y, n_fft, hop_size, win_size):
    y = F.pad(y.unsqueeze(1), (int((n_fft - hop_size) / 2), int((n_fft - hop_size) / 2)), mode="reflect").squeeze(1)
    spec = torch.stft(y, n_fft, hop_length=hop_size, win_length=win_size, window=torch.hann_window(win_size),
                      center=False, pad_mode="reflect", normalized=False, onesided=True)
    spec = torch.sqrt(spec.pow(2).sum(-1) + 1e-9)
    return spec


wav = torch.sin(torch.linspace(0, 60, 200))[None]
spec = mel_spectrogram(wav, 16, 4, 16)
