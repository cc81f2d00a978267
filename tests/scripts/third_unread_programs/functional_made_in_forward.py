import torch
import torch.nn as nn

torch.manual_seed(0)


class Bottleneck(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.cv1 = nn.Conv2d(c, c, 1)
        self.cv2 = nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return torch.ao.nn.quantized.FloatFunctional().add(x, self.cv2(self.cv1(x)))


class Yolo(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.b = Bottleneck(4)
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, x):
        return self.dequant(self.b(self.quant(x)))


model = Yolo().eval()
x = torch.randn(2, 4, 6, 6)
want = model(x)
model.qconfig = torch.ao.quantization.default_qconfig
prepared = torch.ao.quantization.prepare(model)
prepared(x)
quantized = torch.ao.quantization.convert(prepared)
out = quantized(x)
