import torch
import torch.nn as nn

torch.manual_seed(0)


class Lipreading(nn.Module):
    def __init__(self, inputDim=8, nClasses=5):
        super(Lipreading, self).__init__()
        self.inputDim = inputDim
        self.frontend3D = nn.Sequential(nn.Conv3d(1, 4, (5, 3, 3), padding=(2, 1, 1)), nn.BatchNorm3d(4), nn.ReLU(True))
        self.backend = nn.Sequential(
            nn.Linear(4, self.inputDim),
            nn.BatchNorm2d(self.inputDim),
            nn.ReLU(True),
            nn.Linear(self.inputDim, nClasses),
        )

    def forward(self, x):
        x = self.frontend3D(x)
        x = x.mean((2, 3, 4))
        return self.backend(x)


net = Lipreading()
out = net(torch.randn(3, 1, 6, 8, 8))
