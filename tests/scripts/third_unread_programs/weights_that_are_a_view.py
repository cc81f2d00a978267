import torch

a = torch.tensor([1.0, 2.0, 3.0]).view(1, 3)
b = torch.tensor([4.0, 5.0, 6.0], requires_grad=True).view(3, 1)
start = b.detach().clone()
for _ in range(2):
    c = a.mm(b).sum()
    c.backward()
    with torch.no_grad():
        b -= 0.1 * b.grad
        b.grad = None
