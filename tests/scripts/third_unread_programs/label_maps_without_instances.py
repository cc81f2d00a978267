import torch
import torch.nn as nn
from types import SimpleNamespace

torch.manual_seed(0)


class BaseGenerator(nn.Module):
    def __init__(self, opt):
        super().__init__()
        input_nc = opt.label_nc + (0 if opt.no_instance else 1)
        self.model = nn.Sequential(nn.ReflectionPad2d(3), nn.Conv2d(input_nc, 8, kernel_size=7), nn.ReLU(), nn.Conv2d(8, 3, 1))

    def forward(self, semantics):
        return self.model(semantics)


def preprocess_input(label_map, opt):
    bs, h, w = label_map.size()
    return torch.zeros(bs, opt.label_nc, h, w).scatter_(1, label_map.unsqueeze(1), 1.0)


opt = SimpleNamespace(label_nc=13, no_instance=False)
netG = BaseGenerator(opt)
label_map = torch.randint(0, 13, (2, 12, 12))
input_semantics = preprocess_input(label_map, opt)
fake_image = netG(input_semantics)
