import torch
import torch.nn as nn

torch.manual_seed(0)
criterion = nn.TripletMarginLoss(margin=0.3, reduction="none")
net = nn.Conv2d(3, 8, 1)
feat = net(torch.randn(2, 3, 6, 3))
feat_recon_pos = torch.randn(2, 8, 6, 3)
feat_recon_neg = torch.randn(2, 8, 6, 3)
comask_pos = torch.rand(2, 1, 6, 3)
loss = torch.mean(comask_pos * criterion(feat, feat_recon_pos, feat_recon_neg))
loss.backward()
