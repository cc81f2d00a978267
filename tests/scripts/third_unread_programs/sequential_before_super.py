import torch
import torch.nn as nn

torch.manual_seed(0)


class PAM_CAM_Layer(nn.Module):
    def __init__(self, in_ch, use_pam=True):
        self.attn = nn.Sequential(
            nn.Conv2d(in_ch * 2, in_ch, kernel_size=3, padding=1),
            nn.BatchNorm2d(in_ch),
            nn.PReLU(),
        )

    def forward(self, x):
        return self.attn(x)


class DAF_stack(nn.Module):
    def __init__(self):
        super(DAF_stack, self).__init__()
        self.pam_attention_1_1 = PAM_CAM_Layer(4, True)

    def forward(self, x):
        return self.pam_attention_1_1(x)


net = DAF_stack()
out = net(torch.randn(2, 8, 6, 6))
