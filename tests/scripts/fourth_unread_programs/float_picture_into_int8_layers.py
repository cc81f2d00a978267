import copy

import torch
import torch.nn as nn

torch.manual_seed(0)
torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
model.eval()
x = torch.rand(1, 3, 8, 8)
reference = model(x).detach()
model.qconfig = torch.ao.quantization.default_qconfig
torch.ao.quantization.prepare(model, inplace=True)
model(x)
torch.ao.quantization.convert(model, inplace=True)
out = model(x)
