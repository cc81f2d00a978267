import torch
import torch.nn as nn
from torch.ao.quantization import DeQuantStub, QuantStub

torch.manual_seed(0)
torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant = QuantStub()
        self.features = nn.Conv2d(3, 4, 3)
        self.classifier = nn.Conv2d(4, 2, 1)
        self.dequant = DeQuantStub()

    def forward(self, x):
        x = self.quant(x)
        x = self.features(x)
        x = self.classifier(x)
        return self.dequant(x)


myModel = MobileNet().eval()
images = torch.rand(1, 3, 8, 8)
reference = myModel(images).detach()
myModel.qconfig = torch.ao.quantization.default_qconfig
myModel.classifier.qconfig = None
torch.ao.quantization.prepare(myModel, inplace=True)
myModel(images)
torch.ao.quantization.convert(myModel, inplace=True)
out = myModel(images)
