import torch

torch.manual_seed(0)
x, y = torch.randn(8, 5), torch.randn(8, 2)
w1 = torch.randn(5, 6, requires_grad=True)
w2 = torch.randn(6, 2, requires_grad=True)
start = w1.detach().clone(), w2.detach().clone()
learning_rate = 1e-3
for t in range(4):
    y_pred = x.mm(w1).clamp(min=0).mm(w2)
    loss = (y_pred - y).pow(2).sum()
    w1.grad.data.zero_()
    w2.grad.data.zero_()
    loss.backward()
    w1.data -= learning_rate * w1.grad.data
    w2.data -= learning_rate * w2.grad.data
