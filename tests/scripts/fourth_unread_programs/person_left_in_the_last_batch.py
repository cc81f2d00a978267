import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


class ClassBlock(nn.Module):
    def __init__(self, input_dim, class_num, num_bottleneck=6):
        super().__init__()
        self.add_block = nn.Sequential(nn.Linear(input_dim, num_bottleneck), nn.BatchNorm1d(num_bottleneck))
        self.classifier = nn.Linear(num_bottleneck, class_num)

    def forward(self, x):
        x = self.add_block(x)
        return self.classifier(x)


class ft_net(nn.Module):
    def __init__(self, class_num):
        super().__init__()
        self.model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d((1, 1)))
        self.classifier = ClassBlock(8, class_num)

    def forward(self, x):
        x = self.model(x)
        x = x.squeeze()
        return self.classifier(x)


data = TensorDataset(torch.randn(9, 3, 6, 6), torch.arange(9) % 5)
model = ft_net(5)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for inputs, labels in DataLoader(data, batch_size=4, shuffle=False):
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
