import torch
import torch.nn.functional as F

torch.manual_seed(0)
up_ft_tar = torch.randn(2, 4, 8, 8)
resized = []
for f_id in range(up_ft_tar.shape[0]):
    ft = F.interpolate(up_ft_tar[f_id], (16, 16), mode="bilinear")
    resized.append(ft)
