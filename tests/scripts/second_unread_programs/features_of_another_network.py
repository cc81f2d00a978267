import torch
from torch import nn

torch.manual_seed(0)


class MIL(nn.Module):
    def __init__(self, feature_size=96):
        super().__init__()
        self.fc1 = nn.Linear(feature_size, 32)
        self.fc2 = nn.Linear(32, 1)
        self.relu = nn.ReLU()

    def forward(self, inputs):
        x = self.relu(self.fc1(inputs))
        return torch.sigmoid(self.fc2(x))


model = MIL()
clips = torch.randn(88, 24)        # I3D features, where C3D features had 96
logits = model(inputs=clips)
