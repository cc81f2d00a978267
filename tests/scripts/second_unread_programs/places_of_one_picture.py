import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class ResNetPlaces(nn.Module):
    def __init__(self, classes=8):
        super().__init__()
        self.features = nn.Conv2d(3, 6, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Conv2d(6, classes, 1)

    def forward(self, x):
        return self.fc(self.pool(F.relu(self.features(x)))).squeeze()


model = ResNetPlaces()
loader = torch.utils.data.DataLoader(torch.randn(5, 3, 6, 6), batch_size=2)
top3 = []
for data in loader:
    score = model(data)
    top3.append(torch.topk(score, 3, 1)[1])
top3 = torch.cat(top3)
