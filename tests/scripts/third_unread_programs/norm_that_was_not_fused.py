import torch
import torch.nn as nn

torch.manual_seed(0)


class ShuffleBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.conv = nn.Conv1d(3, 4, 3)
        self.bn = nn.BatchNorm1d(4)
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, x):
        return self.dequant(self.bn(self.conv(self.quant(x))))


model = ShuffleBlock().eval()
x = torch.randn(4, 3, 9)
want = model(x)
model.qconfig = torch.ao.quantization.default_qconfig
prepared = torch.ao.quantization.prepare(model)
prepared(x)
quantized = torch.ao.quantization.convert(prepared)
out = quantized(x)
