import torch

torch.manual_seed(0)


# define a floating point model where some layers could benefit from QAT
class M(torch.nn.Module):
    def __init__(self):
        super(M, self).__init__()
        self.quant = torch.ao.quantization.QuantStub()
        self.conv = torch.nn.Conv2d(1, 3, 3)
        self.bn = torch.nn.BatchNorm2d(3)
        self.relu = torch.nn.ReLU()
        self.dequant = torch.ao.quantization.DeQuantStub()

    def forward(self, x):
        x = self.quant(x)
        x = self.conv(x)
        x = self.bn(x)
        x = self.relu(x)
        return self.dequant(x)


model_fp32 = M()
model_fp32.train()
model_fp32.qconfig = torch.ao.quantization.get_default_qat_qconfig('fbgemm')
model_fp32_fused = torch.ao.quantization.fuse_modules(model_fp32, [['conv', 'bn', 'relu']])
model_fp32_prepared = torch.ao.quantization.prepare_qat(model_fp32_fused)
out = model_fp32_prepared(torch.randn(2, 1, 8, 8))
out.sum().backward()
