import torch
import torch.nn as nn
import torch.nn.functional as F


class SimpleUpsamplingBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear")
        self.refine = nn.Conv2d(2 * channels, channels, 3, padding="same")

    def forward(self, x, skip):
        x = self.up(x)
        x = torch.cat([x, skip], dim=1)
        return F.relu(self.refine(x))


class Backbone(nn.Module):
    def __init__(self, channels=4, parts=5):
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding="same")
        self.enc = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding="same") for _ in range(2))
        self.dec = nn.ModuleList(SimpleUpsamplingBlock(channels) for _ in range(2))
        self.head = nn.Conv2d(channels, parts, 1)

    def forward(self, x):
        x = self.stem(x)
        features = []
        for conv in self.enc:
            features.append(x)
            x = F.max_pool2d(F.relu(conv(x)), 2)
        for block, skip in zip(self.dec, features[::-1]):
            x = block(x, skip)
        return self.head(x)


torch.manual_seed(0)
frame = torch.rand(1, 1, 30, 32)
model = Backbone().eval()
with torch.inference_mode():
    confmaps = model(frame)
