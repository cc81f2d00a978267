import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class ERFNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.initial_block = nn.Conv2d(3, 4, 3, padding=1)
        self.output_conv = nn.Conv2d(4, 2, 1)

    def forward(self, input):
        output = self.initial_block(input)
        return self.output_conv(F.relu(output))


model = ERFNet().eval()
images = torch.randn(4, 3, 8, 8)
floats = model(images).detach()
model.qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
torch.ao.quantization.prepare(model, inplace=True)
model(images)
torch.ao.quantization.convert(model, inplace=True)
out = model(images)
