import torch
from torch import nn

torch.manual_seed(0)


class FashionMNISTModelV2(nn.Module):
    def __init__(self, input_shape, hidden_units, output_shape):
        super().__init__()
        self.conv_block_1 = nn.Sequential(nn.Conv2d(input_shape, hidden_units, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.conv_block_2 = nn.Sequential(nn.Conv2d(hidden_units, hidden_units, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(hidden_units * 7 * 7, output_shape))

    def forward(self, x: torch.Tensor):
        x = self.conv_block_1(x)
        x - self.conv_block_2(x)
        x = self.classifier(x)
        return x


model = FashionMNISTModelV2(1, 10, 4)
image = torch.randn(3, 1, 28, 28)
out = model(image)
