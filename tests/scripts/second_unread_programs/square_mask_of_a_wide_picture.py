import torch
import torch.nn.functional as F

torch.manual_seed(0)
latents = torch.randn(3, 4, 85, 64)
styled = torch.randn(3, 4, 85, 64)
mask = torch.zeros(170, 128)
mask[:85] = 1.0
mask = F.interpolate(mask[None, None], size=(64, 64))[0, 0].bool()
before = latents.clone()
latents[:, :, mask] = styled[:, :, mask]
