import torch

torch.manual_seed(0)
layer1 = torch.nn.LSTM(100, 20, batch_first=True)
boards = torch.randn((5, 30, 10, 10))
out = layer1(boards)[0]
