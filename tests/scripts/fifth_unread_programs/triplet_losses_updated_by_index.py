import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class AverageMeter(object):
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Tripletnet(nn.Module):
    def __init__(self, embeddingnet):
        super(Tripletnet, self).__init__()
        self.embeddingnet = embeddingnet

    def forward(self, x, y, z):
        ex, ey, ez = self.embeddingnet(x), self.embeddingnet(y), self.embeddingnet(z)
        return F.pairwise_distance(ex, ey, 2), F.pairwise_distance(ex, ez, 2), ex, ey, ez


tnet = Tripletnet(nn.Sequential(nn.Flatten(), nn.Linear(16, 4)))
criterion = nn.MarginRankingLoss(margin=0.2)
optimizer = torch.optim.SGD(tnet.parameters(), lr=0.01, momentum=0.5)
losses, emb_norms = AverageMeter(), AverageMeter()
for batch_idx in range(3):
    data1, data2, data3 = torch.randn(3, 4, 1, 4, 4)
    dista, distb, ea, eb, ec = tnet(data1, data2, data3)
    target = torch.ones_like(dista).fill_(1)
    loss_triplet = criterion(dista, distb, target)
    loss_embedd = ea.norm(2) + eb.norm(2) + ec.norm(2)
    loss = loss_triplet + 0.001 * loss_embedd
    losses.update(loss_triplet.data[0], data1.size(0))
    emb_norms.update(loss_embedd.data[0]/3, data1.size(0))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
