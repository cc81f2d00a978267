import torch
import torch.nn as nn

torch.manual_seed(0)
gru = nn.GRUCell(6, 12)
lstm = nn.LSTMCell(6, 12)
x = torch.randn(1, 6)
h = torch.randn(1, 12)
print('Testing GRUCell')
print(gru(x, h).shape)
print('Testing LSTMCell')
out = lstm(x, h)[0]
print(out.shape)
