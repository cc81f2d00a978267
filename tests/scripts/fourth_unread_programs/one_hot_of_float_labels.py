import torch
import torch.nn as nn

torch.manual_seed(0)


class ACW_loss(nn.Module):
    def __init__(self, ini_weight=0, ignore_index=None):
        super().__init__()
        self.ignore_index = ignore_index

    def encode_one_hot_label(self, pred, target):
        one_hot_label = pred.detach() * 0
        if self.ignore_index is not None:
            mask = target == self.ignore_index
            target = target.clone()
            target[mask] = 0
            one_hot_label.scatter_(1, target.unsqueeze(1), 1)
            mask = mask.unsqueeze(1).expand_as(one_hot_label)
            one_hot_label[mask] = 0
            return one_hot_label, mask
        else:
            one_hot_label.scatter_(1, target.unsqueeze(1), 1)
            return one_hot_label, None


criterion = ACW_loss()
outputs = torch.randn(2, 4, 5, 5)
labels = torch.randint(0, 4, (2, 5, 5)).float()
one_hot, mask = criterion.encode_one_hot_label(torch.softmax(outputs, 1), labels)
