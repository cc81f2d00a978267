import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class FocalLoss(nn.Module):
    def __init__(self, gamma, ignore_index=-100):
        super().__init__()
        self.gamma, self.ignore_index = gamma, ignore_index

    def forward(self, x, target):
        num_classes = x.shape[-1]
        x, target = x.reshape(-1, num_classes), target.reshape(-1)
        mask = target != self.ignore_index
        one_hot = F.one_hot(target, num_classes)
        p = (x * one_hot).sum(-1)[mask]
        return -((1 - p) ** self.gamma * p.log()).mean()


criterion = FocalLoss(gamma=0.7, ignore_index=-100)
batch_size, max_length, n_class = 10, 20, 5
logits = torch.randn(batch_size, max_length, n_class)
target = torch.randint(0, n_class, size=(batch_size, max_length))
target[:, -10:] = -100
ans = criterion(logits.softmax(-1), target)
