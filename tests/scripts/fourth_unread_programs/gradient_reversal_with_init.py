import torch
import torch.nn as nn
from torch.autograd import Function

torch.manual_seed(0)


class GradReverse(Function):
    def __init__(self, lambd):
        self.lambd = lambd

    def forward(self, x):
        return x.view_as(x)

    def backward(self, grad_output):
        return -self.lambd * grad_output


def grad_reverse(x, lambd=1.0):
    return GradReverse(lambd)(x)


model = nn.Linear(3, 2)
x = torch.randn(4, 3, requires_grad=True)
out = model(grad_reverse(x, 0.5))
out.sum().backward()
