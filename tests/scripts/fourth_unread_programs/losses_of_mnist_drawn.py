import numpy as np
import torch

torch.manual_seed(0)


def nn(x, w1, w2):
    l1 = x @ w1
    l1 = torch.relu(l1)
    l2 = l1 @ w2
    return l2


def plot(values):
    return np.array([np.asarray(v) for v in values])


w1 = torch.randn(12, 20, requires_grad=True)
w2 = torch.randn(20, 10, requires_grad=True)
train_data, train_labels = torch.rand(50, 12), torch.randint(0, 10, (50,))
lr = 0.0001
losses = []
lossfn = torch.nn.CrossEntropyLoss()
for i in range(5):
    rid = np.random.randint(0, train_data.shape[0], size=8)
    pred = nn(train_data[rid], w1, w2)
    loss = lossfn(pred, train_labels[rid])
    losses.append(loss)
    loss.backward()
    with torch.no_grad():
        w1 -= lr * w1.grad
        w2 -= lr * w2.grad
drawn = plot(losses)
