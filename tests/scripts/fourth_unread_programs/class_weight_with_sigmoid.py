import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def cross_entropy(pred, label, class_weight=None):
    loss = F.cross_entropy(pred, label, weight=class_weight, reduction='none')
    return loss.mean()


def binary_cross_entropy(pred, label, class_weight=None):
    label = F.one_hot(label, pred.size(1)).permute(0, 3, 1, 2)
    loss = F.binary_cross_entropy_with_logits(pred, label.float(), pos_weight=class_weight, reduction='none')
    return loss.mean()


class CrossEntropyLoss(nn.Module):
    def __init__(self, use_sigmoid=False, loss_weight=1.0, class_weight=None):
        super().__init__()
        self.loss_weight, self.class_weight = loss_weight, class_weight
        self.cls_criterion = binary_cross_entropy if use_sigmoid else cross_entropy

    def forward(self, cls_score, label):
        class_weight = cls_score.new_tensor(self.class_weight)
        return self.loss_weight * self.cls_criterion(cls_score, label, class_weight=class_weight)


loss_decode = CrossEntropyLoss(use_sigmoid=True, loss_weight=1, class_weight=[1, 1, 1, 1, 1, 1, 1, 2, 1])
pred = torch.randn(2, 9, 10, 12)
label = torch.randint(0, 9, (2, 10, 12))
loss = loss_decode(pred, label)
