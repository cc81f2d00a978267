import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 4)
batches = []


def compute_loss(inputs, labels):
    loss = F.cross_entropy(model(inputs), labels, reduction="none")
    logitems = {"trainloss/loss": loss.item()}
    batches.append(logitems)
    return loss


labels = torch.randint(4, (2,))
inputs = torch.randn(2, 6)
loss = compute_loss(inputs, labels)
loss.mean().backward()
