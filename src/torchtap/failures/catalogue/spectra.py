"""Complex numbers and transforms of Fourier."""

from __future__ import annotations

from torchtap.failures.situation_row import Situation, SituationRow

SITUATIONS: dict[str, Situation] = {
    "parts of complex numbers": SituationRow(
        "view_as_complex takes real and imaginary part in the last dimension, of size 2, "
        "and {name} "
        "is {looks}.",
        "Give them there: torch.stack([real, imaginary], -1), or torch.complex(real, imaginary).",
        about="argument",
    ),
    "imaginary part of real numbers": SituationRow(
        "A real tensor has no imaginary part, and .imag was read of one.",
        "If the input is to be complex, make it so first: x.to(torch.complex64), or "
        "torch.complex(real, imaginary).",
        "If the imaginary part is 0: torch.zeros_like(x).",
        about="tensors",
    ),
    "no complex numbers": SituationRow(
        "{name} holds {kept}, and complex numbers are needed.",
        "If its last dimension, of size 2, holds real and imaginary part: "
        "torch.view_as_complex({name}).",
        "Otherwise make them complex where they come from: torch.stft(..., return_complex=True).",
        about="argument",
    ),
    "complex loss": SituationRow(
        "A loss is a real number, and this one is {given}.",
        "Make it real, as it is meant: its size, .abs(), or its real part, .real.",
        about="argument",
    ),
    "window of a transform": SituationRow(
        "The window has {given} elements, and win_length={wanted}.",
        "Make the window of that length: torch.hann_window({wanted}), or give win_length={given}.",
    ),
    "kind of a spectrum": SituationRow(
        "torch.stft returns complex numbers, and must be told so.",
        "Give return_complex=True: the result is complex, and torch.view_as_real of it is what "
        "older programs got, with real and imaginary part in a last dimension of 2.",
    ),
    "real input": SituationRow(
        "{op} is for real numbers, and {name} holds complex ones.",
        "Use the transform of complex numbers: torch.fft.fft.",
        "If the imaginary part is 0: {name_it}.real.",
        about="argument",
    ),
    "dtype of a spectrum": SituationRow(
        "The transform has no form for {given} here.",
        "Convert it around: torch.fft.fft({name_it}.float()).",
        "Under autocast, leave it out: with torch.autocast(device_type, enabled=False).",
        about="argument",
    ),
}
