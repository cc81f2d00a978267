import numpy as np
import torch

num_inputs, num_examples = 2, 100
features = torch.from_numpy(np.random.default_rng(0).normal(0, 1, (num_examples, num_inputs)))
labels = 2 * features[:, 0] - 3.4 * features[:, 1] + 4.2
w = torch.tensor(np.random.default_rng(1).normal(0, 0.01, (num_inputs, 1)), dtype=torch.float32).requires_grad_()
b = torch.zeros(1, dtype=torch.float32, requires_grad=True)


def linreg(X, w, b):
    return torch.mm(X, w) + b


for epoch in range(40):
    loss = ((linreg(features, w, b) - labels.view(-1, 1)) ** 2 / 2).mean()
    loss.backward()
    for param in (w, b):
        param.data -= 0.2 * param.grad
        param.grad.zero_()
