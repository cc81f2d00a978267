import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class LogisticRegression(nn.Module):
    def __init__(self):
        super(LogisticRegression, self).__init__()
        self.linear = nn.Linear(28 * 28, 10)

    def forward(self, x):
        return self.linear(x)


model = LogisticRegression()
images = torch.rand(100, 28, 28)
labels = torch.randint(10, (100,))
output = model(images)
loss = F.cross_entropy(output, labels)
loss.backward()
