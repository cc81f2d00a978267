import torch
import torch.nn as nn

torch.manual_seed(0)


class conv_block(nn.Module):
    def __init__(self, in_c, out_c):
        super().__init__()
        self.conv1 = nn.Conv2d(in_c, out_c, kernel_size=3)
        self.conv2 = nn.Conv2d(out_c, out_c, kernel_size=3)

    def forward(self, inputs):
        return torch.relu(self.conv2(torch.relu(self.conv1(inputs))))


class decoder_block(nn.Module):
    def __init__(self, in_c, out_c):
        super().__init__()
        self.up = nn.ConvTranspose2d(in_c, out_c, kernel_size=2, stride=2, padding=0)
        self.conv = conv_block(out_c + out_c, out_c)

    def forward(self, inputs, skip):
        x = self.up(inputs)
        x = torch.cat([x, skip], axis=1)
        x = self.conv(x)
        return x


class build_unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.e1 = conv_block(3, 8)
        self.pool = nn.MaxPool2d((2, 2))
        self.b = conv_block(8, 16)
        self.d1 = decoder_block(16, 8)
        self.outputs = nn.Conv2d(8, 1, kernel_size=1, padding=0)

    def forward(self, inputs):
        s1 = self.e1(inputs)
        b = self.b(self.pool(s1))
        d1 = self.d1(b, s1)
        return self.outputs(d1)


model = build_unet()
y = model(torch.randn(1, 3, 32, 32))
