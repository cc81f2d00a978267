import torch
import torch.nn as nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        blocks = []
        c = 1
        for out in (8, 16, 32, 64):
            blocks += [nn.Conv2d(c, out, kernel_size=(3, 3), stride=(1, 1), padding=1), nn.BatchNorm2d(out), nn.ReLU(),
                       nn.MaxPool2d(kernel_size=(2, 2), stride=(2, 2))]
            c = out
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Sequential(nn.Linear(64 * 2 * 2, 32), nn.ReLU(True), nn.Linear(32, 10))

    def forward(self, x):
        x = self.blocks(x)
        x = x.view(x.size(0), -1)
        logits = self.classifier(x)
        return logits


net = Net()
logits = net(torch.randn(12, 1, 28, 28))
