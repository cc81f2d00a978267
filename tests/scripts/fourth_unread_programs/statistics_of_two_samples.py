import torch
from torch.autograd import Function

torch.manual_seed(0)


class KSmallest(Function):
    def forward(self, dists):
        self.save_for_backward(dists)
        return dists.min(1)[0]

    def backward(self, grad):
        dists, = self.saved_tensors
        mask = dists == dists.min(1, keepdim=True)[0]
        return mask.type_as(grad) * grad.unsqueeze(1)


def knn_statistic(sample_1, sample_2):
    dists = torch.cdist(sample_1, sample_2)
    return dists, KSmallest()(dists).sum()


sample_1 = torch.randn(4, 2, requires_grad=True)
dists, val = knn_statistic(sample_1, torch.randn(5, 2))
val.backward()
