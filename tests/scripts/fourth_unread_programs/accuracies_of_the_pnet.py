import torch
import torch.nn as nn

torch.manual_seed(0)


def compute_accuracy(prob_cls, gt_cls):
    prob_cls = torch.squeeze(prob_cls)
    mask = torch.ge(gt_cls, 0)
    valid_gt_cls = torch.masked_select(gt_cls, mask)
    valid_prob_cls = torch.masked_select(prob_cls, mask)
    size = min(valid_gt_cls.size()[0], valid_prob_cls.size()[0])
    prob_ones = torch.ge(valid_prob_cls, 0.6).float()
    right_ones = torch.eq(prob_ones, valid_gt_cls).float()
    return torch.div(torch.mul(torch.sum(right_ones), float(1.0)), float(size))


net = nn.Sequential(nn.Linear(5, 1), nn.Sigmoid())
accuracy_list = []
for batch_idx in range(4):
    cls_pred = net(torch.randn(8, 5))
    gt_label = torch.randint(-1, 2, (8,)).float()
    accuracy_list.append(compute_accuracy(cls_pred, gt_label))
accuracy_avg = torch.mean(torch.cat(accuracy_list))
