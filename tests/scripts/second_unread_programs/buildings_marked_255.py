import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
n_classes = 2
seg_gt = (torch.rand(2, 6, 6) > 0.7).long() * 255          # the PNG has 255 for a building
seg_gt_one_hot = F.one_hot(seg_gt, num_classes=n_classes).permute(0, 3, 1, 2).float()
denoiser = nn.Conv2d(n_classes, n_classes, 3, padding=1)
loss = F.mse_loss(denoiser(seg_gt_one_hot + torch.randn_like(seg_gt_one_hot)), seg_gt_one_hot)
