import torch
from torch import nn

torch.manual_seed(0)


def accuracy(output, target, topk=(1, 5)):
    maxk = max(topk)
    _, pred = output.topk(maxk, dim=1)
    correct = pred.t().eq(target.view(1, -1).expand(maxk, -1))
    return [correct[:k].reshape(-1).float().sum() * 100 / len(target) for k in topk]


num_classes = 3
head = nn.Linear(6, num_classes)
output, target = head(torch.randn(10, 6)), torch.randint(num_classes, (10,))
results = accuracy(output, target)
