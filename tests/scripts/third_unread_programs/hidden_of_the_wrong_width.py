import torch
import torch.nn as nn

torch.manual_seed(0)
lstm = nn.LSTM(3, 2)
hidden = (torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
input = torch.randn(6, 4, 5)
out, hidden = lstm(input, hidden)
