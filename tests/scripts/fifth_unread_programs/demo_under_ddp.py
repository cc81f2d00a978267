import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)


class BiSeNetV2(nn.Module):
    def __init__(self, n_classes):
        super(BiSeNetV2, self).__init__()
        self.detail = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.head = nn.Conv2d(6, n_classes, 1)

    def forward(self, x):
        logits = self.head(self.detail(x))
        return nn.functional.interpolate(logits, size=x.shape[2:], mode='bilinear')


torch.save(BiSeNetV2(5).state_dict(), 'model_final.pth')

# define model
net = BiSeNetV2(5)
net.eval()
net = nn.parallel.DistributedDataParallel(net)
net.module.load_state_dict(torch.load('model_final.pth', map_location='cpu'))

# prepare data
im = np.full((8, 8, 3), 128, np.uint8)
im = torch.from_numpy(im.astype(np.float32).transpose(2, 0, 1) / 255).unsqueeze(0)

# inference
with torch.no_grad():
    pred = net(im).argmax(dim=1)
