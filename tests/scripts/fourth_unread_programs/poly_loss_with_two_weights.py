import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Poly1FocalLoss(nn.Module):
    def __init__(self, num_classes, epsilon=1.0, gamma=2.0, reduction="none", weight=None):
        super().__init__()
        self.num_classes, self.epsilon, self.gamma = num_classes, epsilon, gamma
        self.reduction, self.weight = reduction, weight

    def forward(self, logits, labels):
        p = torch.sigmoid(logits)
        labels = F.one_hot(labels, self.num_classes).permute(0, 3, 1, 2)
        labels = labels.to(dtype=logits.dtype)
        ce_loss = F.binary_cross_entropy_with_logits(input=logits, target=labels, reduction="none", weight=self.weight)
        pt = labels * p + (1 - labels) * (1 - p)
        FL = ce_loss * ((1 - pt) ** self.gamma)
        poly1 = FL + self.epsilon * torch.pow(1 - pt, self.gamma + 1)
        return poly1.mean() if self.reduction == "mean" else poly1


criterion = Poly1FocalLoss(num_classes=2, reduction='mean', weight=torch.tensor([0.1, 0.9]))
x = torch.randn(3, 2, 8, 8)
y = torch.randint(0, 2, (3, 8, 8))
loss = criterion(x, y)
