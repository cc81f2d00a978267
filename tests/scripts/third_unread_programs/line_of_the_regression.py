import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
n = 50
x = torch.ones(n, 2)
x[:, 0].uniform_(-1.0, 1)
y = x @ torch.tensor([3.0, 2.0]) + torch.rand(n)
a = nn.Parameter(torch.tensor([-1.0, 1.0]))
lines = []


def draw(points, heights):
    lines.append(np.stack([np.asarray(points), np.asarray(heights)]))


draw(x[:, 0], x @ a)
for t in range(30):
    y_hat = x @ a
    loss = ((y - y_hat) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        a.sub_(0.1 * a.grad)
        a.grad.zero_()
draw(x[:, 0], x @ a)
