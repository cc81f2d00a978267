import torch
import torch.nn as nn

torch.manual_seed(0)

inp = torch.randn(6, requires_grad=True)
model = nn.Sequential(
    nn.Linear(6, 5),
    nn.Linear(5, 1)
)
out = model(inp)
grad = torch.autograd.grad(out, inp, create_graph=True)[0]
laplacian = 0
for i in range(6):
    grad2 = torch.autograd.grad(grad[i], inp, retain_graph=True)[0]
    laplacian = laplacian + grad2[i]
