import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class UNet3Plus_DeepSup(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.outs = nn.ModuleList([nn.Conv2d(4, 1, 3, padding=1) for _ in range(5)])

    def forward(self, x):
        x = F.relu(self.conv(x))
        return tuple(out(x) for out in self.outs)


net = UNet3Plus_DeepSup()
criterion = nn.BCEWithLogitsLoss()
imgs = torch.rand(2, 3, 8, 8)
true_masks = (torch.rand(2, 1, 8, 8) > 0.5).float()
masks_pred = net(imgs)
loss = criterion(masks_pred, true_masks)
loss.backward()
