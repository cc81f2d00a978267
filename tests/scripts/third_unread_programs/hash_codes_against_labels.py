import torch
import torch.nn as nn

torch.manual_seed(0)
code_length, num_classes = 12, 21


class CNNNet(nn.Module):
    def __init__(self, code_length):
        super(CNNNet, self).__init__()
        self.features = nn.Sequential(nn.Linear(32, 24), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(24, code_length)

    def forward(self, x):
        return self.classifier(self.features(x))


model = CNNNet(code_length)
criterion = nn.BCEWithLogitsLoss()
train_label = (torch.rand(64, num_classes) > 0.8).float()
output = model(torch.randn(64, 32))
loss = criterion(output, train_label)
loss.backward()
