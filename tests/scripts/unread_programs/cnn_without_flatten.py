import torch
import torch.nn as nn


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2))
        self.conv2 = nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2))
        self.conv3 = nn.Sequential(nn.Conv2d(32, 64, 2, 1, 1), nn.ReLU(), nn.MaxPool2d(2))
        self.out = nn.Linear(128, 4)

    def forward(self, x):
        x = self.conv1(x)
        x = self.conv2(x)
        x = self.conv3(x)
        output = self.out(x)
        return output


cnn = CNN()
batch_x = torch.randn(6, 1, 28, 28)
batch_y = torch.randint(0, 4, (6,))
output = cnn(batch_x)
loss = nn.CrossEntropyLoss()(output, batch_y)
loss.backward()
