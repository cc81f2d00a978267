import torch
from torch import nn

torch.manual_seed(0)
l1 = nn.Linear(6, 4)


def training_step(x, y):
    y_hat = l1(x)
    loss = nn.CrossEntropyLoss(y_hat, y)
    return {"loss": loss, "y_hat": y_hat}


x, y = torch.randn(5, 6), torch.tensor([0, 3, 1, 2, 2])
step = training_step(x, y)
step["loss"].backward()
