import torch

torch.manual_seed(0)


def mm_cfg_forward(x, denoise, closed_loop=(0, 3)):
    denoised = torch.zeros_like(x)
    idx = torch.tensor(closed_loop)
    for part in (idx, torch.tensor([1, 2])):
        denoised[part] = denoise(x[part].half())
    return denoised


x = torch.randn(4, 3, 2)
denoised = mm_cfg_forward(x, lambda v: v * 0.5)
