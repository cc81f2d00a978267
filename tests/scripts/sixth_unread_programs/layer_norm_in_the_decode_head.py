import torch
import torch.nn as nn

torch.manual_seed(0)

NORMS = {'BN': nn.BatchNorm2d, 'LN': nn.LayerNorm, 'SyncBN': nn.SyncBatchNorm}


def build_norm_layer(cfg, num_features):
    return NORMS[cfg['type']](num_features)


class ConvModule(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, norm_cfg):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, padding=kernel_size // 2, bias=False)
        self.norm = build_norm_layer(norm_cfg, out_channels)
        self.activate = nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.conv(x)
        x = self.norm(x)
        return self.activate(x)


class SegformerHead(nn.Module):
    def __init__(self, in_channels, channels, num_classes, norm_cfg):
        super().__init__()
        self.fusion = ConvModule(in_channels, channels, 1, norm_cfg)
        self.conv_seg = nn.Conv2d(channels, num_classes, 1)

    def forward(self, x):
        return self.conv_seg(self.fusion(x))


head = SegformerHead(in_channels=6, channels=8, num_classes=4, norm_cfg=dict(type='LN'))
feats = torch.randn(2, 6, 16, 16)
seg = head(feats)
