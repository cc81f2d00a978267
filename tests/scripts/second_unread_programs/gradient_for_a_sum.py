import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
grads = {}


class GAIN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 2)

    def forward(self, images, labels_ohe):
        feature = self.features(images)
        feature.register_hook(lambda grad: grads.update(feature=grad))
        logits = self.fc(feature.mean((2, 3)))
        gradient = logits * labels_ohe
        grad_logits = (logits * labels_ohe).sum()
        grad_logits.backward(gradient=gradient, retain_graph=True)
        return logits, feature


model = GAIN()
labels_ohe = F.one_hot(torch.randint(2, (5,)), 2).float()
logits, feature = model(torch.randn(5, 3, 8, 8), labels_ohe)
