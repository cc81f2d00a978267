import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

torch.manual_seed(0)


class BasicCNN(nn.Module):
    """Build the Mean Basic model performing a classification with CNN"""
    def __init__(self, num_classes):
        super(BasicCNN, self).__init__()
        self.conv1 = nn.Conv2d(5, 8, (3, 3), stride=(1, 1), padding=1)
        self.conv2 = nn.Conv2d(8, 8, (3, 3), stride=(1, 1), padding=1)
        self.pool1 = nn.MaxPool2d((2, 2))
        self.fc = nn.Linear(8 * 4 * 4, num_classes)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = self.pool1(F.relu(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        return self.fc(x)


images = torch.randn(6, 3, 8, 8)
labels = torch.randint(0, 4, (6,))
net = BasicCNN(num_classes=4)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(net.parameters(), lr=0.001)
optimizer.zero_grad()
pred = net(images)
loss = criterion(pred, labels)
loss.backward()
optimizer.step()
