import torch
from torch import nn

torch.manual_seed(0)


class FeatureGraphNet(nn.Module):
    def __init__(self, return_dict: bool = False):
        super().__init__()
        self.return_dict = return_dict
        self.stem = nn.Conv2d(3, 4, 3)
        self.stage = nn.Conv2d(4, 6, 3)

    def forward(self, x):
        x0 = self.stem(x)
        out = {"stem": x0, "stage": self.stage(x0)}
        if self.return_dict:
            return out
        return list(out.values())


model = FeatureGraphNet()
scripted = torch.jit.script(model)
image = torch.randn(1, 3, 8, 8)
features = scripted(image)
