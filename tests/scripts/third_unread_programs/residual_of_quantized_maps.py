import torch
import torch.nn as nn

torch.manual_seed(0)


class BasicBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.relu1 = nn.ReLU()
        self.relu2 = nn.ReLU()

    def forward(self, x):
        identity = x
        out = self.relu1(self.conv1(x))
        out += identity
        return self.relu2(out)


model = nn.Sequential(torch.ao.quantization.QuantStub(), BasicBlock(4), torch.ao.quantization.DeQuantStub()).eval()
x = torch.randn(2, 4, 5, 5)
want = model(x)
model.qconfig = torch.ao.quantization.default_qconfig
prepared = torch.ao.quantization.prepare(model)
prepared(x)
quantized = torch.ao.quantization.convert(prepared)
out = quantized(x)
