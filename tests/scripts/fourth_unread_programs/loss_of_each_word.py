import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def compute_loss(model_output, gt, seq_len):
    input_len = model_output.shape[1]
    cce = F.cross_entropy(model_output.permute(0, 2, 1), gt, reduction='none')
    mask_2d = torch.arange(input_len)[None, :] >= seq_len[:, None]
    cce[mask_2d] = 0
    ce_loss = cce.sum(1) / seq_len.to(dtype=torch.float32)
    return ce_loss.unsqueeze(1)


model = nn.Linear(6, 9)
features, targets = torch.randn(3, 5, 6), torch.randint(0, 9, (3, 5))
seq_len = torch.tensor([5, 2, 3])
logits = model(features)
loss = compute_loss(logits, targets, seq_len)
loss.backward()
