import torch
import torch.nn as nn

torch.manual_seed(0)


class DANetBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 1)

    def forward(self, x, part_map):
        return self.conv(x) * part_map.mean(1, keepdim=True)


class ft_net(nn.Module):
    def __init__(self, class_num, use_part_map=True):
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        if use_part_map:
            self.context_l2_1 = DANetBlock(6)
        else:
            self.context_l2_1 = nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU())
        self.classifier = nn.Linear(6, class_num)

    def forward(self, x, part_map=None):
        x = self.stem(x)
        x = self.context_l2_1(x, part_map)
        return self.classifier(x.mean((2, 3)))


model = ft_net(5, use_part_map=False)
category = model(torch.randn(2, 3, 8, 8))
