import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def log_sum_exp(x):
    x_max = x.data.max()
    return torch.log(torch.sum(torch.exp(x - x_max), 1, keepdim=True)) + x_max


class MultiBoxLoss(nn.Module):
    def __init__(self, num_classes, neg_pos=3):
        super().__init__()
        self.num_classes = num_classes
        self.negpos_ratio = neg_pos

    def forward(self, conf_data, conf_t):
        num = conf_data.size(0)
        pos = conf_t > 0

        # Compute max conf across batch for hard negative mining
        batch_conf = conf_data.view(-1, self.num_classes)
        loss_c = log_sum_exp(batch_conf) - batch_conf.gather(1, conf_t.view(-1, 1))

        # Hard Negative Mining
        loss_c[pos] = 0  # filter out pos boxes for now
        loss_c = loss_c.view(num, -1)
        _, loss_idx = loss_c.sort(1, descending=True)
        _, idx_rank = loss_idx.sort(1)
        num_pos = pos.long().sum(1, keepdim=True)
        num_neg = torch.clamp(self.negpos_ratio * num_pos, max=pos.size(1) - 1)
        neg = idx_rank < num_neg.expand_as(idx_rank)

        # Confidence Loss Including Positive and Negative Examples
        keep = (pos + neg).gt(0)
        return F.cross_entropy(conf_data[keep], conf_t[keep], reduction='sum') / num_pos.sum()


conf_data = torch.randn(2, 6, 4, requires_grad=True)
conf_t = torch.tensor([[0, 0, 3, 0, 0, 0], [1, 0, 0, 0, 2, 0]])
criterion = MultiBoxLoss(4)
loss_c = criterion(conf_data, conf_t)
loss_c.backward()
