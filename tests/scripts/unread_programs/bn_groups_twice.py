import torch
from torch import nn, optim


def separate_bn_paras(modules):
    paras_only_bn, paras_wo_bn = [], []
    for layer in modules.modules():
        if isinstance(layer, nn.BatchNorm2d):
            paras_only_bn.extend([*layer.parameters()])
        else:
            paras_wo_bn.extend([*layer.parameters()])
    return paras_only_bn, paras_wo_bn


torch.manual_seed(0)
backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
kernel = nn.Parameter(torch.randn(5, 7))
paras_only_bn, paras_wo_bn = separate_bn_paras(backbone)
optimizer = optim.SGD([
    {"params": paras_wo_bn + [kernel], "weight_decay": 5e-4},
    {"params": paras_only_bn},
], lr=0.1, momentum=0.9)
