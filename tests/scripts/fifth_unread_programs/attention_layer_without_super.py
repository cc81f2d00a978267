import torch
import torch.nn as nn

torch.manual_seed(0)


class PAM_Module(nn.Module):
    def __init__(self, in_dim):
        super(PAM_Module, self).__init__()
        self.query_conv = nn.Conv2d(in_dim, in_dim // 2, 1)
        self.key_conv = nn.Conv2d(in_dim, in_dim // 2, 1)

    def forward(self, x):
        b, c, h, w = x.size()
        q = self.query_conv(x).view(b, -1, h * w).permute(0, 2, 1)
        k = self.key_conv(x).view(b, -1, h * w)
        attention = torch.bmm(q, k).softmax(-1)
        return torch.bmm(x.view(b, c, h * w), attention.permute(0, 2, 1)).view(b, c, h, w) + x


class PAM_CAM_Layer(nn.Module):
    def __init__(self, in_ch, use_pam=True):
        self.attn = nn.Sequential(
            nn.Conv2d(in_ch * 2, in_ch, kernel_size=3, padding=1),
            nn.BatchNorm2d(in_ch),
            nn.PReLU(),
            PAM_Module(in_ch) if use_pam else nn.Identity(),
            nn.Conv2d(in_ch, in_ch, kernel_size=3, padding=1),
            nn.PReLU()
        )

    def forward(self, x):
        return self.attn(x)


class DAF_stack(nn.Module):
    def __init__(self):
        super(DAF_stack, self).__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.pam_attention_1_1 = PAM_CAM_Layer(4, True)

    def forward(self, x):
        x = self.down(x)
        return self.pam_attention_1_1(torch.cat((x, x), 1))


net = DAF_stack()
out = net(torch.randn(1, 3, 6, 6))
