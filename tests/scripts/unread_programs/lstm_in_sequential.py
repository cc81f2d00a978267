import torch
import torch.nn as nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.LSTM(10, 20, batch_first=True),
    nn.Linear(20, 2),
)
x = torch.randn(4, 7, 10)
y = model(x)
