import math

import torch
import torch.nn as nn

torch.manual_seed(0)


class YOLOLayer(nn.Module):
    def __init__(self, nc):
        super().__init__()
        self.na, self.nc, self.no = 3, nc, nc + 5


def create_modules():
    modules = YOLOLayer(nc=3)
    module = nn.Sequential(nn.Conv2d(4, modules.no * modules.na, 1))
    bias_ = module[0].bias  # shape(24,)
    bias = bias_[:modules.no * modules.na].view(modules.na, -1)
    bias[:, 4] += -4.5
    bias[:, 5:] += math.log(0.6 / (modules.nc - 0.99))
    module[0].bias = torch.nn.Parameter(bias_, requires_grad=True)
    return module


module = create_modules()
