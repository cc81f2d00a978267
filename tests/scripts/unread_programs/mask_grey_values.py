import torch
import torch.nn as nn

torch.manual_seed(0)
n_classes = 2
net = nn.Conv2d(3, n_classes, 3, padding=1)
images = torch.rand(2, 3, 8, 8)
true_masks = (torch.rand(2, 8, 8) > 0.5).to(torch.uint8) * 255      # as the PNG stores them
masks = true_masks
masks_pred = net(images)
criterion = nn.CrossEntropyLoss()
loss = criterion(masks_pred, true_masks.long())
loss.backward()
