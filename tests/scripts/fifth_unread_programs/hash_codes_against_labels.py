import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)


class CNNNet(nn.Module):
    def __init__(self, code_length):
        super(CNNNet, self).__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.1),
            nn.Linear(24, 16),
            nn.ReLU(inplace=True),
            nn.Linear(16, code_length),
        )

    def forward(self, x):
        x = self.features(x)
        x = x.view(x.size(0), 24)
        return self.classifier(x)


model = CNNNet(code_length=12)
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.SGD(model.parameters(), lr=0.001, weight_decay=1e-4)
train_input = torch.randn(8, 3, 9, 9)
train_label = torch.randint(0, 2, (8, 21)).float()
output = model(train_input)
model.zero_grad()
loss = criterion(output, train_label)
loss.backward()
optimizer.step()
