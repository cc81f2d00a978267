import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Linear(9, 3)
features = torch.randn(12, 9)
gt_norm = F.normalize(torch.randn(12, 3), dim=1)
cos_target = torch.tensor(torch.ones((gt_norm.shape[0], 1)))
output = model(features)
cos_loss = F.cosine_embedding_loss(output, gt_norm, cos_target)
cos_loss.backward()
