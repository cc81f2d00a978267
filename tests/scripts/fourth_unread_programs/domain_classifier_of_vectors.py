import torch
import torch.nn as nn

torch.manual_seed(0)


class AlexModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
        self.class_classifier = nn.Sequential(nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3))
        self.domain_classifier = nn.Sequential()
        self.domain_classifier.add_module('d_fc1', nn.Linear(16, 10))
        self.domain_classifier.add_module('d_bn1', nn.BatchNorm2d(10))
        self.domain_classifier.add_module('d_relu1', nn.ReLU(True))
        self.domain_classifier.add_module('d_fc2', nn.Linear(10, 2))
        self.domain_classifier.add_module('d_softmax', nn.LogSoftmax(dim=1))

    def forward(self, input):
        feature = self.feature(input).view(-1, 16)
        return self.class_classifier(feature), self.domain_classifier(feature)


model = AlexModel()
class_out, domain_out = model(torch.randn(6, 3, 8, 8))
