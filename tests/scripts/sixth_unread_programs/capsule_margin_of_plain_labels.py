import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
NUM_CLASSES = 10


class CapsuleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(28, NUM_CLASSES * 4)

    def forward(self, x):
        capsules = self.fc(x).view(x.size(0), NUM_CLASSES, 4)
        lengths = (capsules ** 2).sum(dim=-1) ** 0.5
        return F.softmax(lengths, dim=-1)


class CapsuleLoss(nn.Module):
    def forward(self, labels, classes):
        left = F.relu(0.9 - classes, inplace=True) ** 2
        right = F.relu(classes - 0.1, inplace=True) ** 2
        margin_loss = labels * left + 0.5 * (1. - labels) * right
        return margin_loss.sum() / labels.size(0)


net = CapsuleNet()
images = torch.rand(16, 28)
targets = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
labels = torch.LongTensor(targets)
classes = net(images)
loss = CapsuleLoss()(labels, classes)
loss.backward()
