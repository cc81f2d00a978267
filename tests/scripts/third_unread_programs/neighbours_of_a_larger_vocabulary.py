import torch
import torch.nn as nn

torch.manual_seed(0)
vocab_size = 18
V = torch.tensor([[i, (i + 1) % 20, (i + 2) % 20] for i in range(20)])
D = torch.softmax(-torch.rand(20, 3), 1)
m1 = nn.Sequential(nn.Linear(6, vocab_size), nn.LogSoftmax(dim=1))


def KLDIVloss(output, target, criterion, V, D):
    indices = torch.index_select(V, 0, target)
    outputk = torch.gather(output, 1, indices)
    targetk = torch.index_select(D, 0, target)
    return criterion(outputk, targetk)


target = torch.tensor([0, 5, 18, 19])
output = m1(torch.randn(4, 6))
loss = KLDIVloss(output, target, nn.KLDivLoss(reduction="sum"), V, D)
loss.backward()
