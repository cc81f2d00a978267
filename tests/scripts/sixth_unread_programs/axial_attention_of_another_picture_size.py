import torch
import torch.nn as nn

torch.manual_seed(0)


class AxialAttention(nn.Module):
    def __init__(self, planes, kernel_size):
        super().__init__()
        self.kernel_size = kernel_size
        self.planes = planes
        self.qkv_transform = nn.Conv1d(planes, planes * 2, 1, bias=False)
        self.relative = nn.Parameter(torch.randn(planes, kernel_size * 2 - 1))
        q = torch.arange(kernel_size).unsqueeze(0)
        k = torch.arange(kernel_size).unsqueeze(1)
        self.register_buffer('flatten_index', (k - q + kernel_size - 1).view(-1))

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        N, W, C, H = x.shape
        x = x.contiguous().view(N * W, C, H)
        q, k, v = self.qkv_transform(x).split([C // 2, C // 2, C], dim=1)
        emb = torch.index_select(self.relative, 1, self.flatten_index)
        emb = emb.view(self.planes, self.kernel_size, self.kernel_size)[:C // 2]
        qr = torch.einsum('bci,cij->bij', q, emb)
        qk = torch.einsum('bci,bcj->bij', q, k)
        sim = torch.softmax(qk + qr, dim=2)
        out = torch.einsum('bij,bcj->bci', sim, v)
        return out.view(N, W, C, H).permute(0, 2, 3, 1)


class AxialNet(nn.Module):
    def __init__(self, img_size=16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.attn = AxialAttention(8, img_size)

    def forward(self, x):
        return torch.relu(self.attn(self.conv1(x)))


net = AxialNet(img_size=16)
imgs = torch.rand(2, 3, 20, 20)
pred = net(imgs)
