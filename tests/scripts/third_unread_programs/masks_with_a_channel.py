import torch
import torch.nn as nn

torch.manual_seed(0)
net = nn.Conv2d(3, 8, 3, padding=1)
criterion = nn.CrossEntropyLoss()
imgs = torch.randn(2, 3, 8, 9)
true_masks = torch.randint(0, 8, (2, 1, 8, 9)).float()
masks_pred = net(imgs)
loss = criterion(masks_pred, true_masks.long())
loss.backward()
