import torch
import torch.nn as nn

torch.manual_seed(0)
num_layers, hidden = 2, 4
cells = nn.ModuleList([nn.GRUCell(3, hidden), nn.GRUCell(hidden, hidden)])
h0 = nn.Parameter(torch.randn(num_layers, 1, 1, hidden))
hx = h0.unbind(0)
hx = [hx[idx].squeeze_(0) for idx in range(num_layers)]
x = torch.randn(1, 3)
for idx, cell in enumerate(cells):
    x = cell(x, hx[idx])
x.sum().backward()
