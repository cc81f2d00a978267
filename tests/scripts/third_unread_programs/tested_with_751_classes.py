import tempfile

import torch
import torch.nn as nn

torch.manual_seed(0)


class ClassBlock(nn.Module):
    def __init__(self, input_dim, class_num, num_bottleneck=8):
        super().__init__()
        self.add_block = nn.Sequential(nn.Linear(input_dim, num_bottleneck), nn.BatchNorm1d(num_bottleneck))
        self.classifier = nn.Sequential(nn.Linear(num_bottleneck, class_num))

    def forward(self, x):
        return self.classifier(self.add_block(x))


class ft_net(nn.Module):
    def __init__(self, class_num):
        super().__init__()
        self.model = nn.Linear(12, 16)
        self.classifier = ClassBlock(16, class_num)

    def forward(self, x):
        return self.classifier(torch.relu(self.model(x)))


save_path = tempfile.mktemp(suffix=".pth")
trained = ft_net(15).eval()
torch.save(trained.state_dict(), save_path)

model = ft_net(75)
model.load_state_dict(torch.load(save_path))
model = model.eval()
x = torch.randn(4, 12)
scores = model(x)
