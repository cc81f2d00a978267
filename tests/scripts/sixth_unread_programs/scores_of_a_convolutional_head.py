import torch
import torch.nn as nn

torch.manual_seed(0)


class DPN(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.last_linear = nn.Conv2d(12, num_classes, kernel_size=1, bias=True)

    def logits(self, features):
        x = nn.functional.adaptive_avg_pool2d(features, 1)
        return self.last_linear(x)

    def forward(self, input):
        return self.logits(self.features(input))


model = DPN()
criterion = nn.CrossEntropyLoss()
input = torch.rand(20, 3, 16, 16)
target = torch.randint(0, 10, (20,))
output = model(input)
loss = criterion(output, target)
loss.backward()
