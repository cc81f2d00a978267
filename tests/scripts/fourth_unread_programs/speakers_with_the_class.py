import torch
import torch.nn as nn
from torch.nn import CrossEntropyLoss

torch.manual_seed(0)


class C3D(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv3d(1, 4, 3)
        self.fc = nn.Linear(4, num_classes)

    def forward(self, x):
        return self.fc(self.conv1(x).amax((2, 3, 4)))


model = C3D(5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
inputs, labels = torch.randn(4, 1, 6, 6, 6), torch.randint(0, 5, (4,))
optimizer.zero_grad()
output = model(inputs)
loss = CrossEntropyLoss(output, labels)
loss.backward()
optimizer.step()
